"""Event loops under test: whether they are blocked, and waits that do not block them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

FREE = 1.0
"""Seconds: a loop that was blocked for longer waited for Redis, whose timeouts are longer."""


@contextlib.asynccontextmanager
async def free_loop() -> AsyncIterator[None]:
    """Fail if the loop was blocked for longer than FREE."""
    lags: list[float] = []

    async def tick() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            lags.append(time.monotonic() - before)

    ticking = asyncio.create_task(tick())
    try:
        yield
    finally:
        ticking.cancel()
    assert max(lags) < FREE


async def until(predicate: Callable[[], object]) -> None:
    """Wait for *predicate* without blocking the loop."""
    deadline = time.monotonic() + 20
    while not predicate():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
