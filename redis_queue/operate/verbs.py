"""Verbs: actions on messages and entries, in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from redis_queue.catalog import AnyQueue
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidDelayError, InvalidValueError
from redis_queue.model import CancelOutcome
from redis_queue.operate.access import Access
from redis_queue.operate.faults import Faults
from redis_queue.operate.relative_time import When
from redis_queue.store.chunks import CHUNK, chunks


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a batch of *tried* items: *count* were changed; *maybe_sent* of them may have been sent before."""

    count: int
    maybe_sent: int = 0
    tried: int = 0


@dataclass(frozen=True, slots=True)
class Verb:
    """An action on waiting entries, or on dead letters if *dead*; *run* yields a result for each batch of ids.

    The time that *run* takes is the new due time for ``reschedule``. For ``delete`` it is the latest time of death
    (default: now), so that messages which die later stay.
    """

    name: str
    label: str
    past: str
    run: Callable[[Access, AnyQueue, Sequence[str], When | None], Iterator[Done]]
    dead: bool = False
    destroys: bool = False


def as_delay_queue(queue: AnyQueue) -> DelayQueue:
    """Return *queue*; raises InvalidValueError for a RedisQueue."""
    if not isinstance(queue, DelayQueue):
        raise InvalidValueError(f"queue={queue.name!r}: must be a DelayQueue, got a RedisQueue")
    return queue


def check_new_time(when: When) -> None:
    """Raise InvalidDelayError for a time span in the past, as a new due time."""
    if isinstance(when, timedelta) and when < timedelta(0):
        raise InvalidDelayError("must not be in the past; run-now makes entries due at once")


def purge(queue: AnyQueue, places: Sequence[Any], size: int, faults: Faults) -> Iterator[Done]:
    """Delete up to *size* items of *queue* from *places*; errors of the queue are recorded in *faults*."""
    left = size
    while left > 0:
        count = 0
        with faults.of_queue(queue):
            count = queue.purge(*places, limit=min(CHUNK, left))
        # Another process may have taken the rest.
        tried = count or left
        left -= tried
        yield Done(count, tried=tried)


def _cancel(access: Access, queue: AnyQueue, ids: Sequence[str], _: When | None) -> Iterator[Done]:
    for chunk in chunks(ids, CHUNK):
        outcomes = access.cancel(as_delay_queue(queue), chunk)
        maybe_sent = outcomes.count(CancelOutcome.MAYBE_SENT)
        yield Done(sum(outcome.taken_out for outcome in outcomes), maybe_sent, len(chunk))


def _reschedule(access: Access, queue: AnyQueue, ids: Sequence[str], when: When | None) -> Iterator[Done]:
    for id_ in ids:
        yield Done(access.reschedule(as_delay_queue(queue), id_, when), tried=1)


def _run_now(access: Access, queue: AnyQueue, ids: Sequence[str], _: When | None) -> Iterator[Done]:
    return _reschedule(access, queue, ids, None)


def _redrive(_: Access, queue: AnyQueue, ids: Sequence[str], __: When | None) -> Iterator[Done]:
    for chunk in chunks(ids, CHUNK):
        yield Done(queue.redrive(chunk), tried=len(chunk))


def _delete(access: Access, queue: AnyQueue, ids: Sequence[str], when: When | None) -> Iterator[Done]:
    until = when if isinstance(when, datetime) else access.inspector.now()
    for chunk in chunks(ids, CHUNK):
        yield Done(access.delete_dead(queue, chunk, until), tried=len(chunk))


CANCEL: Final = Verb("cancel", "Cancel", "cancelled", _cancel, destroys=True)
RUN_NOW: Final = Verb("run-now", "Run now", "made due", _run_now)
RESCHEDULE: Final = Verb("reschedule", "Reschedule", "rescheduled", _reschedule)
REDRIVE: Final = Verb("redrive", "Redrive", "redriven", _redrive, dead=True)
DELETE: Final = Verb("delete", "Delete", "deleted", _delete, dead=True, destroys=True)

VERBS: Final = {verb.name: verb for verb in (CANCEL, RUN_NOW, RESCHEDULE, REDRIVE, DELETE)}
