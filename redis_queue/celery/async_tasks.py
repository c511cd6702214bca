"""Tasks that are ``async def``: workers run them on one event loop per process, which a thread of its own runs."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, Final, TypeVar

from celery import Celery
from celery._state import _task_stack
from celery.exceptions import SoftTimeLimitExceeded

T = TypeVar("T")

_RUN: Final[ContextVar[_Run | None]] = ContextVar("redis_queue_task_run", default=None)


def run_async_tasks(app: Celery) -> None:
    """Let the ``async def`` tasks of *app*, those that there are and will be, run when a worker calls them."""
    if app.finalized:
        wrap_async_tasks(app)
    else:
        app.on_after_finalize.connect(lambda **_: wrap_async_tasks(app), weak=False)


def wrap_async_tasks(app: Celery) -> None:
    """Do so for the tasks that *app* has; no-op for those that were wrapped before."""
    for task in app.tasks.values():
        # With autoretry, Celery's own function calls the one of the task by this name.
        name = "_orig_run" if hasattr(task, "_orig_run") else "run"
        run = getattr(task, name)
        if inspect.iscoroutinefunction(inspect.unwrap(run)) and not hasattr(run, "redis_queue_runs"):
            setattr(task, name, _runs(task, run))


def _runs(task: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = run(*args, **kwargs)
        # Whoever calls the task as a function awaits it.
        if task.request.called_directly or not inspect.iscoroutine(found):
            return found
        return _Run(task).result_of(found)

    call.redis_queue_runs = True  # type: ignore[attr-defined]
    return call


class _Run:
    """One run of an ``async def`` task, which the calling thread waits for."""

    def __init__(self, task: Any) -> None:
        self._task = task
        self._request = task.request_stack.top
        self._loop = _loop()
        self._main: asyncio.Task[Any] | None = None
        self._error: BaseException | None = None

    def result_of(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Return what *coroutine* returns; a soft time limit, which Celery raises here, is raised in it."""
        # Under gevent other greenlets of this thread see the running loop, too.
        if _RUN.get() is not None and asyncio._get_running_loop() is self._loop:
            coroutine.close()
            raise RuntimeError(f"{self._task.name}: an async task cannot wait for another one here: use `await task()`")
        context = copy_context()
        context.run(_RUN.set, self)
        done = context.run(asyncio.run_coroutine_threadsafe, self._steps(coroutine), self._loop)
        while True:
            try:
                return done.result()
            except BaseException as error:
                if done.done():
                    raise
                self._loop.call_soon_threadsafe(self._interrupt, error)
                if not isinstance(error, SoftTimeLimitExceeded):
                    raise

    async def _steps(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        self._main = asyncio.current_task()
        if self._error is not None:
            self._main.cancel()  # type: ignore[union-attr]
        return await coroutine

    def _interrupt(self, error: BaseException) -> None:
        self._error = error
        if self._main is not None:
            self._main.cancel()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make the task and its request the current ones of this thread, as Celery does around a task."""
        _task_stack.push(self._task)
        self._task.request_stack.push(self._request)
        try:
            yield
        finally:
            self._task.request_stack.pop()
            _task_stack.pop()

    def in_place_of(self, error: BaseException) -> BaseException:
        """Return the error that a cancellation stands for."""
        if self._main is not asyncio.current_task() or self._error is None:
            return error
        found, self._error = self._error, None
        return found


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
                step = functools.partial(self._coroutine.throw, self._run.in_place_of(error))
            else:
                step = functools.partial(self._coroutine.send, reply)


def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process; a forked child has its own."""
    found = _loops.get(os.getpid())
    if found is None:
        made = asyncio.new_event_loop()
        made.set_task_factory(_new_task)
        found = _loops.setdefault(os.getpid(), made)
        if found is made:
            threading.Thread(target=made.run_forever, name="redis-queue-async-tasks", daemon=True).start()
        else:
            made.close()
    return found


_loops: Final[dict[int, asyncio.AbstractEventLoop]] = {}


def _new_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """Return a task; it belongs to the run of the task that made it."""
    run = _RUN.get()

    async def steps() -> Any:
        return await (coroutine if run is None else _Steps(coroutine, run))

    return asyncio.Task(steps(), loop=loop, **options)
