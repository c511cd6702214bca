"""RedisQueue and DelayQueue for asyncio: each method is that of the synchronous class, to be awaited.

:mod:`redis_queue.aio.calls` runs it. The types are in ``queues.pyi``, which is generated from the synchronous classes.
"""

from __future__ import annotations

import inspect
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, Final

from redis_queue.aio.calls import in_thread, run
from redis_queue.delay import queue as delay
from redis_queue.queue import queue
from redis_queue.store.base_queue import BaseQueue
from redis_queue.store.connection import check_server, connect
from redis_queue.store.links import DirectLink, link

LEFT_OUT: Final = ("keep_alive", "ack_then_get")
"""Methods whose results are synchronous themselves."""


class _Queue:
    """What both queues share: they hold the synchronous queue, and connect when they are first used."""

    _kind: Any

    def __init__(self, name: str, redis: Any, **options: Any) -> None:
        self.sync = self._kind(name, connect(redis, check=False), **options)
        self.name = self.sync.name
        self.settings = self.sync.settings

    def __repr__(self) -> str:
        return f"aio.{self.sync!r}"

    async def __aenter__(self) -> Any:
        await in_thread(lambda: check_server(self.sync.client))
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        server = link(self.sync.client)
        if isinstance(server, DirectLink):
            await run(server.close)


def _awaitable(name: str, method: Any) -> Any:
    """Return *method* of a synchronous queue as a method of an asynchronous one: for ``await``, or ``async for``."""

    async def call(self: _Queue, *args: Any, **kwargs: Any) -> Any:
        return await run(getattr(self.sync, name), *args, **kwargs)

    async def each(self: _Queue, *args: Any, **kwargs: Any) -> Any:
        steps = getattr(self.sync, name)(*args, **kwargs)
        try:
            while (item := await run(next, steps, _END)) is not _END:
                yield item
        finally:
            await run(steps.close)

    @asynccontextmanager
    async def held(self: _Queue, *args: Any, **kwargs: Any) -> Any:
        manager = getattr(self.sync, name)(*args, **kwargs)
        found = await run(manager.__enter__)
        try:
            yield found
        except BaseException as error:
            await run(manager.__exit__, type(error), error, error.__traceback__)
            raise
        await run(manager.__exit__, None, None, None)

    form = each if inspect.isgeneratorfunction(method) else call
    if inspect.isgeneratorfunction(inspect.unwrap(method)) and form is call:
        form = held
    return wraps(method)(form)


_END: Final = object()


def _made(kind: type[BaseQueue[Any]]) -> type[_Queue]:
    """Return the class for asyncio of the synchronous class *kind*."""
    members: dict[str, Any] = {"_kind": kind, "__doc__": kind.__doc__, "__module__": __name__}
    for name in dir(kind):
        member = inspect.getattr_static(kind, name)  # `getmembers_static` needs Python 3.11
        if name.startswith("_") or name in LEFT_OUT:
            continue
        if isinstance(member, staticmethod):
            members[name] = member
        elif inspect.isfunction(member):
            members[name] = _awaitable(name, member)
    if hasattr(kind, "__iter__"):
        members["__aiter__"] = members["scan"]
    return type(kind.__name__, (_Queue,), members)


RedisQueue = _made(queue.RedisQueue)
DelayQueue = _made(delay.DelayQueue)
