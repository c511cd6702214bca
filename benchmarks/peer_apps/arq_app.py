"""ARQ with its default of ten tasks at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import arq
from arq.connections import RedisSettings

from benchmarks import recording
from benchmarks.peer_apps import ARGUMENT, URL


async def hit(_context: Any, due: float, _argument: str) -> None:
    recording.record(due)


class WorkerSettings:
    """The settings of ARQ's worker."""

    functions = (hit,)
    redis_settings = RedisSettings.from_dsn(URL)


def schedule(dues: Sequence[float]) -> None:
    """Delay one task for each due time."""
    asyncio.run(_schedule(dues))


async def _schedule(dues: Sequence[float]) -> None:
    pool = await arq.create_pool(WorkerSettings.redis_settings)
    for due in dues:
        await pool.enqueue_job("hit", due, ARGUMENT, _defer_until=datetime.fromtimestamp(due, timezone.utc))
    await pool.close()


def commands() -> list[list[str]]:
    """Return the commands of the worker."""
    return [["arq", "benchmarks.peer_apps.arq_app.WorkerSettings"]]
