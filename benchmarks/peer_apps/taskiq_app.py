"""Taskiq on Redis with one worker process; its scheduler polls every second, not every minute."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timezone

from taskiq import TaskiqScheduler
from taskiq_redis import ListQueueBroker, ListRedisScheduleSource

from benchmarks import recording
from benchmarks.peer_apps import ARGUMENT, URL

broker = ListQueueBroker(URL)
scheduler = TaskiqScheduler(broker, [ListRedisScheduleSource(URL)])


async def hit(due: float, _argument: str) -> None:
    """Record the start."""
    recording.record(due)


task = broker.task(task_name="hit")(hit)


def schedule(dues: Sequence[float]) -> None:
    """Delay one task for each due time."""
    asyncio.run(_schedule(dues))


async def _schedule(dues: Sequence[float]) -> None:
    own = ListRedisScheduleSource(URL)
    await own.startup()
    for due in dues:
        await task.schedule_by_time(own, datetime.fromtimestamp(due, timezone.utc), due, ARGUMENT)
    await own.shutdown()


def commands() -> list[list[str]]:
    """Return the commands of the scheduler and the worker."""
    module = "benchmarks.peer_apps.taskiq_app"
    return [
        ["taskiq", "worker", f"{module}:broker", "--workers", "1"],
        ["taskiq", "scheduler", f"{module}:scheduler", "--update-interval", "1"],
    ]
