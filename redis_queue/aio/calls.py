"""Run synchronous code on an event loop: where it would wait for Redis, the loop runs other tasks.

The code runs in a greenlet. When it must wait, it switches to the coroutine that started it, which awaits and switches
back with the reply, or throws the error, a cancellation too, into the greenlet.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from functools import partial
from inspect import signature
from itertools import chain, count
from typing import Any, Final, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.sentinel import SentinelConnectionPool

from redis_queue.basics.waits import CURRENT, PerLoop, Threads
from redis_queue.errors import ConfigurationError

try:
    from greenlet import getcurrent, greenlet
except ImportError:
    raise ImportError("redis_queue.aio needs greenlet: pip install 'celery-redis-queue[aio]'") from None

P = ParamSpec("P")
T = TypeVar("T")

THREADS: Final = Threads(64)
"""For what has no form in asyncio: Redis Cluster, Sentinel's answers, and the ends of heartbeats."""

_free_lanes: Final[list[int]] = []
_lanes: Final = count(1)


class _Call(greenlet):  # type: ignore[misc]
    """A LoopCall: *work* in a greenlet."""

    def __init__(self, work: Callable[[], Any], lane: int) -> None:
        super().__init__(work)
        self.lane = lane
        self.is_abandoned = False
        context = contextvars.copy_context()
        context.run(CURRENT.set, self)
        self.gr_context = context

    def is_current(self) -> bool:
        return getcurrent() is self

    def wait(self, awaitable: Awaitable[T]) -> T:
        """Return the result of *awaitable*, which the event loop awaits meanwhile."""
        if self.is_abandoned:
            if asyncio.iscoroutine(awaitable):
                awaitable.close()
            raise GeneratorExit
        found: T = self.parent.switch(awaitable)
        return found

    def sleep(self, seconds: float) -> None:
        self.wait(asyncio.sleep(seconds))

    def in_thread(self, work: Callable[[], T]) -> T:
        return self.wait(in_thread(work))

    def idle(self, link: object) -> list[_Connection]:
        kept = _CONNECTIONS.get()
        if not kept.is_guarded:
            kept.is_guarded = True
            self.wait(anext(kept.guard))
        return kept.idle.setdefault(link, [])

    def connect(self, pool: Any) -> _Connection:
        return _Connection(self, pool)


class _Connections:
    """The idle connections of one event loop, by their links."""

    def __init__(self) -> None:
        self.idle: WeakKeyDictionary[object, list[_Connection]] = WeakKeyDictionary()
        self.guard = self._close_at_end()
        self.is_guarded = False

    async def _close_at_end(self) -> AsyncGenerator[None, None]:
        # asyncio.run() closes all asynchronous generators of its loop when that ends.
        try:
            yield
        finally:
            for connection in chain.from_iterable(self.idle.values()):
                connection.disconnect()
            self.idle.clear()


_CONNECTIONS: Final = PerLoop(_Connections)


async def run(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return what *work* returns for these arguments; it may call synchronous code of redis_queue.

    If the task is cancelled, CancelledError is raised where *work* waits.
    """
    lane = _free_lanes.pop() if _free_lanes else next(_lanes)
    call = _Call(partial(work, *args, **kwargs), lane)
    try:
        found = call.switch()
        while not call.dead:
            try:
                reply = await found
            except GeneratorExit:
                # The loop has dropped the task: nothing can be awaited any more.
                call.is_abandoned = True
                call.throw(GeneratorExit())
                raise
            except BaseException as error:  # noqa: BLE001 - *work* gets it
                found = call.throw(error)
            else:
                found = call.switch(reply)
    finally:
        _free_lanes.append(lane)
    result: T = found
    return result


async def in_thread(work: Callable[[], T]) -> T:
    """Return what *work* returns in another thread. If the task is cancelled, *work* runs on."""
    return await asyncio.wrap_future(THREADS.submit(work))


class _Connection:
    """A connection of redis.asyncio that looks like one of redis-py; its methods wait on the event loop."""

    def __init__(self, call: _Call, pool: Any) -> None:
        kind, options = _as_asyncio(pool)
        if isinstance(pool, SentinelConnectionPool):
            options["host"], options["port"] = call.in_thread(pool.get_master_address)
        self._connection = kind(**options, retry=Retry(NoBackoff(), 0))
        self.pack_command = self._connection.pack_command

    def connect(self) -> None:
        try:
            _wait(self._connection.connect())
        except BaseException:
            # redis-py leaves the socket open if a cancellation breaks off the handshake.
            self.disconnect()
            raise

    def send_packed_command(self, command: Any, *, check_health: bool) -> None:
        _wait(self._connection.send_packed_command(command, check_health=check_health))

    def read_response(self, **options: Any) -> Any:
        return _wait(self._connection.read_response(**options))

    def disconnect(self) -> None:
        """Close it. That waits for nothing: it must also work in a task that is cancelled or dropped."""
        with suppress(StopIteration, Exception):
            self._connection.disconnect(nowait=True).send(None)
        with suppress(Exception):
            # Outside a running loop redis-py has refused that.
            self._connection._close()


def _wait(awaitable: Awaitable[T]) -> T:
    call = CURRENT.get()
    assert isinstance(call, _Call)  # noqa: S101 - only such a call has such a connection
    return call.wait(awaitable)


def _as_asyncio(pool: Any) -> tuple[type[redis.asyncio.Connection], dict[str, Any]]:
    """Return the class of redis.asyncio and the options for connections as those of *pool*, of redis-py."""
    kind = next((form for known, form in _KINDS if issubclass(pool.connection_class, known)), None)
    if kind is None or not pool.connection_class.__module__.startswith("redis."):
        raise ConfigurationError(f"connection_class={pool.connection_class.__name__}: must be one of redis-py")
    options = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(_OWN)}
    names = {name for base in kind.__mro__ if base is not object for name in signature(base).parameters}
    for name in sorted(options.keys() - names):
        if options.pop(name) not in (None, False):
            raise ConfigurationError(f"option {name}: redis.asyncio does not have it")
    return kind, options


_KINDS: Final[tuple[tuple[type[Any], type[Any]], ...]] = (
    (redis.SSLConnection, redis.asyncio.SSLConnection),
    (redis.UnixDomainSocketConnection, redis.asyncio.UnixDomainSocketConnection),
    (redis.Connection, redis.asyncio.Connection),
)

_OWN: Final = ("retry", "connection_pool", "himport_", "maint", "oss_cluster_", "orig_", "parser_class", "event_disp")
"""Options that are objects of the pool of redis-py, or that it has added by itself."""
