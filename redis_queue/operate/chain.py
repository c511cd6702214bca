"""Chains: what comes after a task, and the failed task before it because of which it was never sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import message_in
from redis_queue.celery.message.next_steps import Link, NextStep, next_steps
from redis_queue.celery.queues.message import WaitingMessage
from redis_queue.errors import InvalidValueError
from redis_queue.model import Item
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure
from redis_queue.store.ids import is_id

MAX_LOOKS: Final = 50
"""Maximum number of failures whose messages are read, each of up to 64 KiB."""

NEAR: Final = timedelta(seconds=5)
"""Celery stores the results of later steps within this time of the failure before them."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A failed task, and the tasks that its message names to come after it. *root*: the first task of its canvas."""

    failure: Failure
    next: Sequence[NextStep] = ()
    root: str = ""

    @property
    def link(self) -> Link | None:
        """What has stopped: a chain or a chord; None if nothing has."""
        return next((step.link for step in self.next if step.link in ("chain", "chord")), None)

    @property
    def unsent(self) -> list[tuple[NextStep, str]]:
        """The tasks with known ids that were not sent, and the ids of those before each."""
        return steps_after(self.failure.id, self.next)

    def lineage_of(self, id_: str) -> tuple[str, str, str]:
        """Return the ids of root, parent and group of a task that was not sent; "" for each that is unknown."""
        step, before = next(((step, before) for step, before in self.unsent if step.id == id_), (None, ""))
        return self.root or self.failure.id, before, step.group if step is not None else ""


def steps_after(id_: str, steps: Iterable[NextStep]) -> list[tuple[NextStep, str]]:
    """Return those of *steps* that follow the task *id_* if it succeeds and have ids, with the id of the one before."""
    found: list[tuple[NextStep, str]] = []
    before = id_
    for step in steps:
        if step.id and step.link != "errback":
            found.append((step, before))
            before = step.id if step.link == "chain" else id_
    return found


def stops(failures: Failures, ids: Iterable[str]) -> list[Stop]:
    """Return the stops at those of *ids* whose failures are kept. Raises StoreError."""
    return [stop_at(failure, message_of(None, None, failure)) for failure in failures.full(ids)]


def stop_at(failure: Failure, message: Envelope | None) -> Stop:
    """Return the stop at *failure*, whose task had this *message*."""
    root = "" if message is None else str(message.headers.get("root_id") or "")
    return Stop(failure, next_of(message) or (), root if is_id(root) else "")


def stop_before(failures: Failures, id_: str, ended_at: datetime | None) -> Stop | None:
    """Return the failed task whose message names the task *id_* as a later one; None if no kept failure does.

    It reads up to :data:`MAX_LOOKS` failures: those near *ended_at*, when the result of *id_* was stored, else the last
    ones. Raises StoreError.
    """
    since, until = (None, None) if ended_at is None else (ended_at - NEAR, ended_at + NEAR)
    rows, _ = failures.list(limit=MAX_LOOKS, since=since, until=until)
    found = stops(failures, (row.id for row in rows if row.size))
    return next((stop for stop in found if any(step.id == id_ for step, _ in stop.unsent)), None)


def next_of(message: Envelope | None) -> tuple[NextStep, ...] | None:
    """Return the tasks after that of *message*; None if they are unknown."""
    return None if message is None else next_steps(message)


def message_of(item: Item | None, waiting: WaitingMessage | None, failure: Failure | None) -> Envelope | None:
    """Return the message of a task from the first source that has it whole and readable; None without one."""
    body = failure.body if failure is not None else None
    with suppress(InvalidValueError):
        if item is not None and isinstance(item.body, bytes):
            return Envelope.unpack(item.body, item.id, item.headers)
        if waiting is not None and not waiting.element.tail:
            return Envelope.of_element(message_in(waiting.element.head))
        if body is not None:
            return Envelope.unpack(body, "")
    return None
