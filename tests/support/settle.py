"""Waiting for a set of servers to come to rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import redis

from .wait import wait_until

T = TypeVar("T")

SETTLE_TIMEOUT = 30.0


def wait_until_settled(check: Callable[[], T | None], description: str) -> T:
    """Return the first truthy value of `check`; a server that does not answer, or still loads, means not yet."""

    def attempt() -> T | None:
        try:
            return check()
        except (redis.ConnectionError, redis.TimeoutError):
            return None

    return wait_until(attempt, timeout=SETTLE_TIMEOUT, description=description)
