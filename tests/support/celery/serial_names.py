"""Names used by `tests.support.celery.serial_app`, a module that only workers can import."""

from __future__ import annotations

from typing import Final

WRITE: Final = "tests.write"
MEET: Final = "tests.meet"
HOLD: Final = "tests.hold"
GATHER: Final = "tests.gather"
RETRY_ONCE: Final = "tests.retry_once"

ROWS: Final = "tests:rows"
LEASE: Final = 1.0
"""Seconds of the lease of HOLD."""


def finish_key(task_id: str) -> str:
    """Return the list whose first element lets the task end."""
    return f"tests:told:{task_id}"
