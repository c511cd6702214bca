"""Waiting for a fact instead of for time to pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_INTERVAL = 0.005


def wait_until(predicate: Callable[[], T | None], *, timeout: float = 30.0, description: str) -> T:
    """Return the first truthy value of `predicate`, asked every few milliseconds.

    An exception of `predicate` passes through. Raises AssertionError that names `description` when no truthy value came
    within `timeout` seconds; `predicate` is asked at least once, and once more after the time is up.
    """
    deadline = time.monotonic() + timeout
    while True:
        late = time.monotonic() >= deadline
        value = predicate()
        if value:
            return value
        if late:
            msg = f"waited {timeout:g} s in vain for: {description}"
            raise AssertionError(msg)
        time.sleep(POLL_INTERVAL)
