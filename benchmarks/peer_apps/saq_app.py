"""SAQ with its default of ten concurrent tasks; its resolution is one second, so due times are rounded up."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from redis import asyncio as redis
from saq.queue.redis import RedisQueue

from benchmarks import recording
from benchmarks.peer_apps import ARGUMENT, URL


async def hit(_context: Any, *, due: float, argument: str) -> None:  # noqa: ARG001 - its size counts
    """Record the start."""
    recording.record(due)


settings = {"queue": RedisQueue(redis.Redis.from_url(URL)), "functions": [hit]}


def schedule(dues: Sequence[float]) -> None:
    """Delay one task for each due time."""
    asyncio.run(_schedule(dues))


async def _schedule(dues: Sequence[float]) -> None:
    queue = RedisQueue(redis.Redis.from_url(URL))
    for due in dues:
        await queue.enqueue("hit", scheduled=math.ceil(due), due=due, argument=ARGUMENT)
    await queue.disconnect()


def commands() -> list[list[str]]:
    """Return the command of the worker."""
    return [["saq", "benchmarks.peer_apps.saq_app.settings"]]
