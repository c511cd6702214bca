"""Huey, two threads."""

from __future__ import annotations

import time
from collections.abc import Sequence

from huey import RedisHuey

from benchmarks import recording
from benchmarks.peer_apps import ARGUMENT, URL

huey = RedisHuey("bench", url=URL)


def hit(due: float, _argument: str) -> None:
    """Record the start."""
    recording.record(due)


task = huey.task(name="hit")(hit)


def schedule(dues: Sequence[float]) -> None:
    """Delay one task for each due time."""
    for due in dues:
        # A naive eta would lose its fraction of a second.
        task.schedule(args=(due, ARGUMENT), delay=due - time.time())


def commands() -> list[list[str]]:
    """Return the command of the worker."""
    return [["huey_consumer", "benchmarks.peer_apps.huey_app.huey", "-w", "2", "-k", "thread"]]
