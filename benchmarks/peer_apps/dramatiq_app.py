"""Dramatiq on Redis, one process with two threads."""

from __future__ import annotations

import time
from collections.abc import Sequence

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks import recording
from benchmarks.peer_apps import ARGUMENT, URL

dramatiq.set_broker(RedisBroker(url=URL))


def hit(due: float, _argument: str) -> None:
    """Record the start."""
    recording.record(due)


actor = dramatiq.actor(hit, actor_name="hit")


def schedule(dues: Sequence[float]) -> None:
    """Delay one task for each due time."""
    for due in dues:
        actor.send_with_options(args=(due, ARGUMENT), delay=round((due - time.time()) * 1000))


def commands() -> list[list[str]]:
    """Return the command of the worker."""
    return [["dramatiq", "benchmarks.peer_apps.dramatiq_app", "-p", "1", "-t", "2"]]
