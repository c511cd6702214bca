"""The worlds: one for each part of redis_queue."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from proof.simulate import network, patches

WORLDS: Final = {
    "queue": "QueueWorld",
    "delay": "DelayWorld",
    "lock": "LockWorld",
    "celery": "CeleryWorld",
    "flows": "FlowsWorld",
    "schedules": "SchedulesWorld",
    "relay": "RelayWorld",
}


def load(name: str) -> Callable[[Any], Any]:
    """Return the class of a world, after time and threads were replaced."""
    if "redis_queue" not in sys.modules:
        patches.install()
        network.install()
    found: Callable[[Any], Any] = getattr(import_module(f"{__name__}.{name}"), WORLDS[name])
    from proof.simulate.run import prepare  # noqa: PLC0415 - it imports redis-py

    prepare(found)
    return found
