"""Wait until a set of servers has reached a stable state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import redis

from .wait import wait_until

T = TypeVar("T")

SETTLE_TIMEOUT = 30.0


def wait_until_settled(check: Callable[[], T | None], description: str) -> T:
    """Wait for the first truthy value of `check`; a server that is down or loading counts as not ready."""

    def attempt() -> T | None:
        try:
            return check()
        except (redis.ConnectionError, redis.TimeoutError):
            return None

    return wait_until(attempt, timeout=SETTLE_TIMEOUT, description=description)
