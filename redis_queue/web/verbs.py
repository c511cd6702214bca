"""Verbs: actions on messages and entries, in batches. Knows nothing of HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidValueError
from redis_queue.inspector import AnyQueue
from redis_queue.model import CancelOutcome
from redis_queue.operate.access import Access
from redis_queue.operate.relative_time import When
from redis_queue.store.chunks import CHUNK, chunks


@dataclass(frozen=True, slots=True)
class Done:
    """Result of a batch: *count* items were changed; *maybe_sent* of them may have been sent before."""

    count: int
    maybe_sent: int = 0


@dataclass(frozen=True, slots=True)
class Verb:
    """An action on waiting entries, or on dead letters if *dead*; *run* yields a result for each batch of ids."""

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


def _cancel(access: Access, queue: AnyQueue, ids: Sequence[str], _: When | None) -> Iterator[Done]:
    for chunk in chunks(ids, CHUNK):
        outcomes = access.cancel(as_delay_queue(queue), chunk)
        yield Done(sum(outcome.taken_out for outcome in outcomes), outcomes.count(CancelOutcome.MAYBE_SENT))


def _run_now(_: Access, queue: AnyQueue, ids: Sequence[str], __: When | None) -> Iterator[Done]:
    for id_ in ids:
        yield Done(as_delay_queue(queue).run_now(id_))


def _reschedule(_: Access, queue: AnyQueue, ids: Sequence[str], when: When | None) -> Iterator[Done]:
    choice = {"delay": when} if isinstance(when, timedelta) else {"due_at": when}
    for id_ in ids:
        yield Done(as_delay_queue(queue).reschedule(id_, **choice))


def _redrive(_: Access, queue: AnyQueue, ids: Sequence[str], __: When | None) -> Iterator[Done]:
    for chunk in chunks(ids, CHUNK):
        yield Done(queue.redrive(chunk))


def _delete(access: Access, queue: AnyQueue, ids: Sequence[str], _: When | None) -> Iterator[Done]:
    now = access.inspector.now()
    for chunk in chunks(ids, CHUNK):
        yield Done(queue.delete_dead(chunk, until=now))


VERBS: Final = {
    verb.name: verb
    for verb in (
        Verb("cancel", "Cancel", "cancelled", _cancel, destroys=True),
        Verb("run-now", "Run now", "made due", _run_now),
        Verb("reschedule", "Reschedule", "rescheduled", _reschedule),
        Verb("redrive", "Redrive", "redriven", _redrive, dead=True),
        Verb("delete", "Delete", "deleted", _delete, dead=True, destroys=True),
    )
}
