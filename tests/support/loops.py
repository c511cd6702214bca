"""Event loops under test: whether they are blocked, and waits that do not block them."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable

FREE = 1.0
"""Seconds: a callback that took longer waited for Redis, whose timeouts are longer."""


@contextlib.asynccontextmanager
async def free_loop() -> AsyncIterator[None]:
    """Fail if one callback held the loop for longer than FREE; many short ones may, on a slow machine."""
    loop, slow = asyncio.get_running_loop(), list[str]()
    handler = logging.Handler()
    handler.emit = lambda record: slow.append(record.getMessage())  # type: ignore[method-assign]
    loop.slow_callback_duration = FREE
    loop.set_debug(True)
    # Else the place of each new task is looked up, which takes ten times as long as the task.
    loop.get_debug = lambda: False  # type: ignore[method-assign]
    logging.getLogger("asyncio").addHandler(handler)
    try:
        yield
    finally:
        loop.set_debug(False)
        del loop.get_debug
        logging.getLogger("asyncio").removeHandler(handler)
    assert not slow


async def until(predicate: Callable[[], object]) -> None:
    """Wait for *predicate* without blocking the loop."""
    deadline = time.monotonic() + 20
    while not predicate():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
