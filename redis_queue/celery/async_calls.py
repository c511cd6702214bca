"""Calls of Celery for an event loop: each runs in one of a few threads, with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeVar

from celery import Celery, states
from celery.backends.base import KeyValueStoreBackend
from celery.result import ResultSet

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import Seconds, duration_ms, monotonic
from redis_queue.basics.waits import PerLoop, Threads
from redis_queue.celery.async_tasks import as_part_of_run

logger = logger_of(__name__)

T = TypeVar("T")

TIMEOUT: Final = 10.0
"""Seconds for one call."""

THREADS: Final = Threads(8)
"""Fewer than the connections to the broker that an app keeps (10)."""

TURNS: Final = PerLoop(lambda: asyncio.Semaphore(THREADS.limit))

FIRST_LOOK: Final = 0.01
LAST_LOOK: Final = 0.5
"""Seconds between two looks for results: they grow from the first to the last while no new result is waited for."""


async def within(timeout: Seconds, work: Callable[[], T], name: str) -> T:
    """Return what *work* returns in another thread, which gets a copy of the context of the caller.

    Raises TimeoutError after *timeout*. Work that has not begun by then is dropped; else it runs on, and whether it
    takes effect is unknown: the error says so. The same holds if the task is cancelled; then the log says so.
    """
    seconds = duration_ms(timeout, name="timeout") / 1000
    deadline = monotonic() + seconds
    turns = TURNS.get()
    # Without turns, a burst would be handed to the threads at once, which then keep the loop from its work.
    turn = asyncio.ensure_future(turns.acquire())
    try:
        # Not wait_for(), which before Python 3.12 ignores a cancellation in the step in which the turn comes.
        await asyncio.wait([turn], timeout=seconds)
    except asyncio.CancelledError:
        if not turn.cancel():
            turns.release()
        raise
    if turn.cancel():
        raise TimeoutError(f"{name}: not begun within {seconds:g} s, so it had no effect; threads are busy")
    job = THREADS.submit(as_part_of_run(work))
    waiting = asyncio.wrap_future(job)
    waiting.add_done_callback(lambda _: turns.release())
    waiting.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        done, _ = await asyncio.wait([waiting], timeout=max(0.0, deadline - monotonic()))
    except asyncio.CancelledError:
        if not job.cancel():
            logger.warning("%s: cancelled; whether it took effect is unknown", name, extra={"action": "call_unknown"})
        raise
    if done:
        return waiting.result()
    # Threads may be busy with calls of other loops.
    unknown = "so it had no effect" if job.cancel() else "whether it took effect is unknown"
    raise TimeoutError(f"{name}: no answer within {seconds:g} s; {unknown}")


def without_subscription(app: Celery, send: Callable[[], T]) -> T:
    """Return what *send* returns. It does not subscribe to its results: only ``get()`` would need that.

    Celery's subscription is one connection, which several threads break, and it would grow with each result.
    """
    consumer: Any = getattr(app.backend, "result_consumer", None)
    if consumer is not None and "consume_from" not in vars(consumer):
        subscribe = consumer.consume_from
        consumer.consume_from = lambda task_id: None if _QUIET.get() else subscribe(task_id)
    before = _QUIET.set(True)
    try:
        return send()
    finally:
        _QUIET.reset(before)


_QUIET: Final[ContextVar[bool]] = ContextVar("redis_queue_quiet", default=False)


class ResultWaits:
    """What the tasks of one event loop wait for: the states of all results are read together."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._waiting: dict[asyncio.Future[str], str] = {}
        self._looking: asyncio.Task[None] | None = None
        self._pause = FIRST_LOOK
        self._new = asyncio.Event()

    async def wait(self, result: Any, timeout: Seconds) -> Any:
        """Return the value of *result* when it is ready; raise the error of its task, or of one before it in a chain.

        Raises TimeoutError after *timeout*.
        """
        deadline = monotonic() + duration_ms(timeout, name="timeout") / 1000
        pending = {self._future(node.id): node for node in _nodes(result)}
        try:
            while pending:
                left = max(0.0, deadline - monotonic())
                done, _ = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    raise TimeoutError(f"the result of {result.id} is not ready after {timeout} s")
                ended = {pending.pop(future): future.result() for future in done}
                failed = [node for node, state in ended.items() if state in states.PROPAGATE_STATES]
                if failed:
                    result = failed[0]
                    break
        finally:
            for future in pending:
                self._waiting.pop(future, None)
        left = max(0.001, deadline - monotonic())
        return await within(left, partial(_value, result), f"the result of {result.id}")

    def _future(self, id_: str) -> asyncio.Future[str]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        self._waiting[future] = id_
        self._pause = FIRST_LOOK
        self._new.set()
        if self._looking is None:
            self._looking = loop.create_task(self._look())
        return future

    async def _look(self) -> None:
        try:
            while self._waiting:
                self._new.clear()
                await self._look_once(dict(self._waiting))
                await asyncio.sleep(FIRST_LOOK)
                new = asyncio.ensure_future(self._new.wait())
                try:
                    await asyncio.wait([new], timeout=self._pause)
                finally:
                    new.cancel()
                self._pause = min(LAST_LOOK, self._pause * 1.3)
        finally:
            # A finished task would keep its loop alive.
            self._looking = None

    async def _look_once(self, asked: Mapping[asyncio.Future[str], str]) -> None:
        found: dict[str, str] = {}
        failure: Exception | None = None
        try:
            found = await asyncio.wrap_future(THREADS.submit(partial(_states, self._app, set(asked.values()))))
        except Exception as error:  # noqa: BLE001 - those who wait get it
            failure = error
        for future, id_ in asked.items():
            if (failure is None and id_ not in found) or self._waiting.pop(future, None) is None or future.done():
                continue
            if failure is None:
                future.set_result(found[id_])
            else:
                future.set_exception(failure)


def _nodes(result: Any) -> Iterator[Any]:
    """Yield the results of the single tasks that *result* stands for, and of those before it in a chain."""
    while result is not None:
        if isinstance(result, ResultSet):
            for child in result.results:
                yield from _nodes(child)
        else:
            yield result
        result = result.parent


def _states(app: Celery, ids: Iterable[str]) -> dict[str, str]:
    backend = app.backend
    if isinstance(backend, KeyValueStoreBackend):
        found = dict(backend.get_many(set(ids), interval=0, max_iterations=1))
    else:
        found = {id_: backend.get_task_meta(id_) for id_ in ids}
    return {id_: meta["status"] for id_, meta in found.items() if meta["status"] in states.READY_STATES}


def _value(result: Any) -> Any:
    if isinstance(result, ResultSet):
        return [_value(child) for child in result.results]
    # Reading its state keeps the record in the result, so that get() does not subscribe to it.
    return result.get(disable_sync_subtasks=False) if result.state else None
