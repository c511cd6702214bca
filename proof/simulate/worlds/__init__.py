"""The worlds: one for each part of redis_queue."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

WORLDS: Final = {
    "queue": "QueueWorld",
    "delay": "DelayWorld",
    "lock": "LockWorld",
    "celery": "CeleryWorld",
    "flows": "FlowsWorld",
    "schedules": "SchedulesWorld",
}


def load(name: str) -> Callable[[Any], Any]:
    """Return the class of a world, after time and threads were replaced."""
    from proof.simulate import network, patches  # noqa: PLC0415

    patches.install()
    network.install()
    found: Callable[[Any], Any] = getattr(import_module(f"{__name__}.{name}"), WORLDS[name])
    from proof.simulate import run  # noqa: PLC0415

    run.prepare(found)
    return found
