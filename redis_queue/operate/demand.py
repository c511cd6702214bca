"""Demand for workers: what waits, runs and falls due soon in Celery's queues, for an autoscaler."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from redis_queue.errors import ConfigurationError, InvalidValueError, StoreError
from redis_queue.operate.access import Access
from redis_queue.operate.forecast import by_destination

MOST_QUEUES: Final = 20
"""Most queues of one request."""

MOST_SECONDS: Final = 3600

_SECONDS: Final = re.compile(r"\d{1,4}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Demand:
    """Messages of *queues*: *ready* in the broker, *in_flight* with workers, *due* soon; *total* is their sum."""

    queues: Sequence[str]
    ready: int
    in_flight: int
    due: int
    total: int


def demand(access: Access, parameters: Sequence[tuple[str, str]]) -> Demand:
    """Return the demand of a request: ``queue`` (once or more) and ``due_within`` in seconds (0 to 3,600; default 0).

    Of many tasks that fall due soon, a sample is read. Raises InvalidValueError, InvalidNameError for an unknown queue,
    ConfigurationError without a Celery app, and StoreError if queues cannot be counted.
    """
    names, seconds = _read(parameters)
    queues = access.celery_queues
    if queues is None:
        raise ConfigurationError("Celery's queues are known to a Celery app only: use celery -A app redis-queue")
    rows = queues.known_rows(names)
    for row in rows:
        if row.error or row.ready is None:
            raise StoreError(f"queue {row.name!r} cannot be counted: {row.error or 'its broker does not tell'}")
    ready, in_flight = sum(row.ready or 0 for row in rows), sum(row.in_flight or 0 for row in rows)
    soon = by_destination(access.delay_queue(), timedelta(seconds=seconds)) if seconds else {}
    due = sum(soon.get(name, 0) for name in names)
    return Demand(names, ready, in_flight, due, ready + in_flight + due)


def _read(parameters: Sequence[tuple[str, str]]) -> tuple[list[str], int]:
    for name, _ in parameters:
        if name not in ("queue", "due_within"):
            raise InvalidValueError(f"{name[:60]!r}: unknown parameter; expected queue or due_within")
    names = list(dict.fromkeys(value for name, value in parameters if name == "queue"))
    if not 1 <= len(names) <= MOST_QUEUES:
        raise InvalidValueError(f"queue: must be given 1 to {MOST_QUEUES} times, got {len(names)}")
    times = [value for name, value in parameters if name == "due_within"]
    text = times[0] if times else "0"
    if len(times) > 1 or not _SECONDS.fullmatch(text) or int(text) > MOST_SECONDS:
        raise InvalidValueError(f"due_within={text[:60]!r}: must be given once, whole seconds from 0 to {MOST_SECONDS}")
    return names, int(text)
