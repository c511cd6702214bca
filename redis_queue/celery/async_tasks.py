"""Tasks that are ``async def``: workers run them on one event loop per process, which a thread of its own runs.

Thread-sensitive calls of asgiref, such as those of Django's ORM, run in the thread that waits for the task, as below
``async_to_sync``: there Celery closes the database connections before and after each task.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Executor, Future, InvalidStateError
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from queue import Empty, SimpleQueue
from typing import Any, Final, TypeVar

from celery import Celery, _state
from celery.app import base as celery_base
from celery.exceptions import SoftTimeLimitExceeded

from redis_queue.basics.logs import logger_of
from redis_queue.celery.kombu.internals import ASGIREF, ASYNC_TASKS, check, has

logger = logger_of(__name__)

T = TypeVar("T")

_RUN: Final[ContextVar[_Run | None]] = ContextVar("redis_queue_task_run", default=None)


def run_async_tasks(app: Celery) -> None:
    """Let the ``async def`` tasks of *app*, those that there are and will be, run when a worker calls them."""
    if app.finalized:
        wrap_async_tasks(app)
    else:
        app.on_after_finalize.connect(lambda **_: wrap_async_tasks(app), weak=False)


def wrap_async_tasks(app: Celery) -> None:
    """Do so for the tasks that *app* has; no-op for those that were wrapped before.

    Raises ConfigurationError if Celery lacks what it needs.
    """
    for task in app.tasks.values():
        # With autoretry, Celery's own function calls the one of the task by this name.
        name = "_orig_run" if hasattr(task, "_orig_run") else "run"
        run = getattr(task, name)
        if inspect.iscoroutinefunction(inspect.unwrap(run)) and not hasattr(run, "redis_queue_runs"):
            check(ASYNC_TASKS)
            _run_within_pydantic(task, run)
            setattr(task, name, _runs(task, run))


def _run_within_pydantic(task: Any, run: Any) -> None:
    """Let Celery's wrapper of a task with ``pydantic=True`` get the value that it converts, not a coroutine."""
    wrapper = getattr(run, "__func__", run)
    if not inspect.isfunction(wrapper) or wrapper.__globals__ is not vars(celery_base):
        return
    cells = dict(zip(wrapper.__code__.co_freevars, wrapper.__closure__ or (), strict=True))
    if "task_fun" in cells:
        cells["task_fun"].cell_contents = _runs(task, cells["task_fun"].cell_contents)


def _runs(task: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = run(*args, **kwargs)
        # Whoever calls the task as a function awaits it.
        if task.request.called_directly or not inspect.iscoroutine(found):
            return found
        return run_to_end(task, found)

    call.redis_queue_runs = True  # type: ignore[attr-defined]
    return call


def run_to_end(task: Any, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return what *coroutine*, a part of the running *task*, returns on the event loop of this process.

    Raises what it raises, and SoftTimeLimitExceeded if that limit cancelled it.
    """
    return _Run(task).result_of(coroutine)


class _Run:
    """One run of an ``async def`` task, which the calling thread waits for."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._request = task.request_stack.top
        self._main: asyncio.Task[Any] | None = None
        self._limit: SoftTimeLimitExceeded | None = None
        self.end: Future[Any] = Future()

    def result_of(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        loop_thread = _loop_thread()
        loop = loop_thread.loop
        # Under gevent other greenlets of this thread see the running loop, too.
        if _RUN.get() is not None and asyncio._get_running_loop() is loop:
            coroutine.close()
            raise RuntimeError(f"{self._task.name}: an async task cannot wait for another one here: use `await task()`")
        context = copy_context()
        context.run(_RUN.set, self)
        with loop_thread.running(self), _CallingThread(self.end).for_calls_of(context) as calls:
            loop.call_soon_threadsafe(context.run, loop.create_task, self._steps(coroutine))
            while True:
                try:
                    calls.run_until_end()
                    return self.end.result()
                except BaseException as error:
                    if self.end.done():
                        raise
                    loop.call_soon_threadsafe(self._interrupt, error)
                    if not isinstance(error, SoftTimeLimitExceeded):
                        raise

    async def _steps(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._main = asyncio.current_task()
        if self._limit is not None:
            self._main.cancel()  # type: ignore[union-attr]
        # An exit must not reach the loop, which it would end.
        try:
            self.end.set_result(await coroutine)
        except asyncio.CancelledError as error:
            found: Exception = self._limit or RuntimeError(f"{self._task.name}: the task was cancelled by its own code")
            found.__cause__ = error
            self.end.set_exception(found)
        except BaseException as error:  # noqa: BLE001 - the calling thread raises it
            self.end.set_exception(error)

    def _interrupt(self, error: BaseException) -> None:
        # What waits for other tasks ends them at a cancellation, and at no other error.
        if isinstance(error, SoftTimeLimitExceeded):
            self._limit = error
        if self._main is not None:
            self._main.cancel(repr(error))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the task and its request the current ones of this thread, as Celery does around a task."""
        _state._task_stack.push(self._task)
        self._task.request_stack.push(self._request)
        try:
            yield
        finally:
            self._task.request_stack.pop()
            _state._task_stack.pop()


class _CallingThread(Executor):
    """Runs calls in the thread that waits for a run; later calls in threads of their own."""

    def __init__(self, end: Future[Any]) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._is_closed = False
        end.add_done_callback(lambda _: self._calls.put(None))

    @contextmanager
    def for_calls_of(self, context: Context) -> Iterator[_CallingThread]:
        """Run the thread-sensitive calls of asgiref that are made in *context*."""
        asgiref: Any = sys.modules.get("asgiref.sync")
        # Django refuses its ORM in a thread with a running loop.
        if asgiref is None or not has(ASGIREF) or asyncio._get_running_loop() is not None:
            yield self
            return
        threads = asgiref.SyncToAsync
        marks: dict[str, Any] = threads.threadlocal.__dict__
        before = dict(marks)
        key = asgiref.ThreadSensitiveContext()
        threads.context_to_thread_executor[key] = self
        context.run(threads.thread_sensitive_context.set, key)
        # An executor below which this thread runs already would wait for itself.
        outer = asgiref.AsyncToSync.executors
        if context.run(getattr, outer, "current", None) is not None:
            context.run(setattr, outer, "current", None)
        try:
            yield self
        finally:
            self._close()
            # A later `async_to_sync` of this thread has a loop of its own.
            marks.clear()
            marks.update(before)

    def submit(self, work: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run *work* in the calling thread."""
        call: Future[T] = Future()
        self._calls.put(functools.partial(_complete, call, functools.partial(work, *args, **kwargs)))
        if self._is_closed:
            self._close()
        return call

    def run_until_end(self) -> None:
        """Run calls until the run has ended."""
        while (call := self._calls.get()) is not None:
            call()

    def _close(self) -> None:
        self._is_closed = True
        with suppress(Empty):
            while True:
                if (call := self._calls.get_nowait()) is not None:
                    threading.Thread(target=_alone, args=(call,), name="redis-queue-late-call", daemon=True).start()


def _complete(call: Future[T], work: Callable[[], T]) -> None:
    if not call.set_running_or_notify_cancel():
        return
    try:
        call.set_result(work())
    except BaseException as error:
        call.set_exception(error)
        if isinstance(error, SoftTimeLimitExceeded):
            raise


def _alone(call: Callable[[], None]) -> None:
    try:
        call()
    finally:
        database: Any = sys.modules.get("django.db")
        if database is not None:
            database.connections.close_all()


def as_part_of_run(work: Callable[[], T]) -> Callable[[], T]:
    """Return *work* as a part of the ``async def`` task that the caller is in, for another thread."""
    run = _RUN.get()
    if run is None:
        return work

    def call() -> T:
        with run.entered():
            return work()

    return call


class _Steps:
    """Awaits *coroutine* so that each of its steps sees the task of *run*, however tasks take turns on the loop."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], run: _Run) -> None:
        self._coroutine = coroutine
        self._run = run

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = functools.partial(self._coroutine.send, None)
        while True:
            with self._run.entered():
                try:
                    wanted = step()
                except StopIteration as end:
                    return end.value
            try:
                reply = yield wanted
            except GeneratorExit:
                self._coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - the coroutine gets it
                step = functools.partial(self._coroutine.throw, error)
            else:
                step = functools.partial(self._coroutine.send, reply)


class _LoopThread:
    """The event loop of a process, and the thread that runs it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(_new_task)
        self._runs: set[_Run] = set()
        self._is_over = False

    @contextmanager
    def running(self, run: _Run) -> Iterator[None]:
        """Let *run* fail if the loop ends before it."""
        self._runs.add(run)
        try:
            if self._is_over:
                self._fail()
            yield
        finally:
            self._runs.discard(run)

    def start(self) -> None:
        """Run the loop until it cannot go on: an exit in a task that nobody awaits, or a stop, does not end it."""
        threading.Thread(target=self._serve, name="redis-queue-async-tasks", daemon=True).start()

    def _serve(self) -> None:
        try:
            while not self.loop.is_closed():
                try:
                    self.loop.run_forever()
                except (SystemExit, KeyboardInterrupt) as error:
                    text = "%r left a task of asyncio: the event loop of async tasks goes on"
                    logger.warning(text, error, extra={"action": "async_exit"})
        finally:
            # The next task gets a new loop.
            _LOOPS.pop(os.getpid(), None)
            self._is_over = True
            self._fail()
            self.loop.close()

    def _fail(self) -> None:
        for run in list(self._runs):
            with suppress(InvalidStateError):
                run.end.set_exception(RuntimeError("the event loop of async tasks ended before the task"))


_LOOPS: Final[dict[int, _LoopThread]] = {}


def _loop_thread() -> _LoopThread:
    """Return the event loop of this process; a forked child has its own."""
    found = _LOOPS.get(os.getpid())
    if found is None:
        made = _LoopThread()
        found = _LOOPS.setdefault(os.getpid(), made)
        if found is made:
            made.start()
        else:
            made.loop.close()
    return found


def _new_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Return a task; it belongs to the run of the task that made it."""
    run = _RUN.get()

    async def steps() -> Any:
        return await (coroutine if run is None else _Steps(coroutine, run))

    return asyncio.Task(steps(), loop=loop, **options)
