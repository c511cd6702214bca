"""Wait for a condition instead of sleeping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import redis

T = TypeVar("T")

POLL_INTERVAL = 0.005


def wait_until(predicate: Callable[[], T | None], *, timeout: float = 30.0, description: str) -> T:
    """Poll `predicate` every few milliseconds and return its first truthy value.

    Exceptions of `predicate` propagate. Raises AssertionError with `description` if there is no truthy value
    within `timeout` seconds; `predicate` is called at least once, and once more after the timeout.
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


SETTLE_TIMEOUT = 30.0


def wait_until_settled(check: Callable[[], T | None], description: str) -> T:
    """Wait for the first truthy value of `check`; a server that is down or loading counts as not ready."""

    def attempt() -> T | None:
        try:
            return check()
        except (redis.ConnectionError, redis.TimeoutError):
            return None

    return wait_until(attempt, timeout=SETTLE_TIMEOUT, description=description)


def must(found: T | None) -> T:
    """Return *found*; fail if it is None."""
    assert found is not None
    return found
