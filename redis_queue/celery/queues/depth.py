"""Depth: what waits in one of Celery's queues, and what workers hold of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Depth:
    """Counts of one queue at the broker; None if the broker does not tell.

    *oldest_at* is when the oldest waiting message was sent, or was due if it was delayed: seconds since the epoch, by
    the clock of its producer. *waiting_for_place* counts those of the *ready* messages that wait for a place in a flow:
    they are not in the lists of the queue. *put_rate* counts messages put per second. *exists* is False if the broker
    does not know the queue.
    """

    ready: int | None = None
    in_flight: int | None = None
    consumers: int | None = None
    oldest_at: float | None = None
    exists: bool = True
    error: str = ""
    put_rate: float | None = None
    waiting_for_place: int = 0
