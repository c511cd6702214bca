"""One renewal of the leases of a worker: times, call and reply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol

LEASE: Final = 60.0
"""Seconds for which a worker leases messages by default."""

RENEWALS: Final = 3
"""Renewals per lease."""

TIMEOUTS: Final = 6
"""Socket timeouts per lease: the lease must not expire before a renewal times out and is tried again."""

LONGEST_TIMEOUT: Final = 10.0
"""Longest socket timeout in seconds, for leases of any length."""

TAGS: Final = 2000
"""Most tags in one call."""


class Renewal(NamedTuple):
    """Result of one renewal: the new time, and the lost tags."""

    score: float
    lost: list[str]


class Renewing(Protocol):
    """Renews leases."""

    def renew(self, held: Mapping[str, float]) -> Renewal:
        """Renew the leases of *held*, delivery tag -> last known time. Raises RenewalError."""
        ...


class RenewalError(Exception):
    """A renewal failed.

    *source* tells where the message comes from: ``reply`` for an error reply of Redis, ``connection`` for an error of
    the connection, both for :func:`redis_queue.store.redis_errors.translate`; empty for a translated message.
    """

    def __init__(self, message: str, source: Literal["", "reply", "connection"] = "") -> None:
        super().__init__(message)
        self.source = source


def renew(script: Callable[..., Any], lease: float, signature: int, held: Mapping[str, float]) -> Renewal:
    """Renew the leases of *held* by calls of *script*, ``held/renew``, for *lease* seconds.

    A lease is lost if its time has changed (another worker has the message) or is gone (the message was settled).
    Raises ValueError for a reply of another form, and the errors of *script*.
    """
    score, lost, items = 0.0, [], list(held.items())
    for start in range(0, len(items) or 1, TAGS):
        more = [item for tag, seen in items[start : start + TAGS] for item in (tag, f"{seen:.6f}")]
        now, *tags = script(now=0, lease=max(1, round(lease * 1000)), signature=signature, more=more)
        score = float(now)
        lost += [tag.decode() for tag in tags]
    return Renewal(score, lost)


def socket_timeout(lease: float) -> float:
    """Return the socket timeout for leases of *lease* seconds: a sixth, at most 10."""
    return min(lease / TIMEOUTS, LONGEST_TIMEOUT)


def bounded_timeout(seconds: float | None, lease: float) -> float:
    """Return the socket timeout *seconds* of a user, but not more than that for *lease*."""
    return min(seconds or LONGEST_TIMEOUT, socket_timeout(lease))
