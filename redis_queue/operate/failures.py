"""Failed tasks: conditions, pages, and the actions on them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from redis_queue.basics.times import When, to_ms
from redis_queue.celery.message.body import fresh, with_arguments
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import Attempt, call_name, new_call, sibling_id
from redis_queue.celery.message.task_entry import Conditions
from redis_queue.delay.model import Push
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidNameError, InvalidValueError
from redis_queue.monitor.model import Failure
from redis_queue.operate.access import Access
from redis_queue.operate.audit import MOST_SUBJECTS, Subject
from redis_queue.operate.listing import Chunk, Listing, SearchReport
from redis_queue.store.chunks import chunks, gap_ms
from redis_queue.store.codec import read_document

PLACE: Final = "failures"
"""What the audit log names in place of a queue."""

BATCH: Final = 50
"""Failures that are retried at once: each message may have 64 KiB."""

NO_MESSAGE: Final = "its message was too large to be kept, or could not be read"
NOT_MINE: Final = "it is gone, has failed again, or is being retried"


class FailureList(Listing[Failure, str]):
    """The failures that are kept, the last one first; spans of time are counted back from now."""

    noun = "failures"

    def __init__(self, access: Access, conditions: Conditions, scan: SearchReport | None = None) -> None:
        super().__init__(conditions, scan)
        self._failures = access.monitor.failures
        self._window = {"since": point(access, conditions.due_after), "until": point(access, conditions.due_before)}

    @property
    def searches(self) -> bool:
        """Whether failures in the time window may not match."""
        return self.conditions.has("task", "exception", "text", "worker")

    def read(self, cursor: str | None, size: int, budget: int | None) -> Chunk[Failure, str]:  # noqa: ARG002
        """Read failures, without their tracebacks and messages."""
        rows, following = self._failures.list(after=cursor, limit=size, **self._window)
        return Chunk([(row, self._failures.cursor(row)) for row in rows], following)

    def match(self, item: Failure) -> bool:
        """Tell whether the failure matches, and count it."""
        self.scan.add(item.task)
        return self.conditions.match(item)


def point(access: Access, when: When | None) -> datetime | None:
    """Return *when* as a time of the server; a span is counted back from now, whatever its sign."""
    return access.inspector.now() - abs(when) if isinstance(when, timedelta) else when


def subjects_of(failures: Iterable[Failure]) -> list[Subject]:
    """Return the first of *failures*, for a preview and for the audit log."""
    return [
        Subject(failure.id, failure.queue, failure.task, failure.failed_at)
        for failure, _ in zip(failures, range(MOST_SUBJECTS), strict=False)
    ]


@dataclass(frozen=True, slots=True)
class Changes:
    """Other arguments for tasks that are retried; None leaves them as they are."""

    args: Sequence[Any] | None = None
    kwargs: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, args: str | None, kwargs: str | None) -> Changes:
        """Read JSON; raises InvalidValueError."""
        found = _document("args", args), _document("kwargs", kwargs)
        if found[0] is not None and not isinstance(found[0], list):
            raise InvalidValueError(f"args={_short(args)}: must be a JSON array")
        if found[1] is not None and not isinstance(found[1], dict):
            raise InvalidValueError(f"kwargs={_short(kwargs)}: must be a JSON object")
        return cls(*found)


@dataclass(frozen=True, slots=True)
class Retried:
    """Result of one batch: what was stored to be sent again, and why the others were not."""

    stored: Sequence[Failure]
    skipped: Sequence[tuple[Failure, str]] = ()

    @property
    def tried(self) -> int:
        """Number of failures of this batch."""
        return len(self.stored) + len(self.skipped)


def retry(
    access: Access, failures: Iterable[Failure], changes: Changes = Changes(), *, rate: float | None = None
) -> Iterator[Retried]:
    """Store the messages of *failures* in the DelayQueue of Celery tasks, and remove the failures, batch by batch.

    The messages are due at once, or one after the other at *rate* per second: dispatchers keep the rate without the
    caller. They have the same task ids, and their retries are counted from zero. A message is stored before its
    failure is removed, and a second call for it at the same time, or while it waits, has no effect. If this process
    dies in between, the failure stays, and can be retried again after a minute. Raises InvalidValueError for an invalid
    rate, and if the DelayQueue is unknown, which cannot be for a Celery app; and StoreError.
    """
    return _retry(access, delay_queue_of(access), failures, changes, gap_ms(rate))


def delete(access: Access, failures: Iterable[Failure]) -> Iterator[Sequence[Failure]]:
    """Delete *failures*, unless they failed again since they were read; yield those of each batch that are deleted."""
    store = access.monitor.failures
    for chunk in chunks(failures):
        yield store.delete(chunk)


def is_dispatched(access: Access) -> bool:
    """Tell whether a process dispatches the DelayQueue of Celery tasks: without one, retried tasks wait."""
    with contextlib.suppress(InvalidValueError):
        return bool(delay_queue_of(access).dispatch_log.dispatchers())
    return False


def delay_queue_of(access: Access) -> DelayQueue:
    """Return the DelayQueue of Celery tasks; raises InvalidValueError if it is unknown, which cannot be for an app."""
    try:
        return access.delay_queue()
    except InvalidNameError as error:
        raise InvalidValueError(
            f"{error}: name the Celery app (redis-queue -A APP …), so that its first delayed task can be stored"
        ) from None


def _retry(
    access: Access, queue: DelayQueue, failures: Iterable[Failure], changes: Changes, gap: float
) -> Iterator[Retried]:
    store = access.monitor.failures
    started, stored = time.monotonic(), 0
    for chunk in chunks(failures, BATCH):
        token, now = new_call(), access.inspector.now()
        claimed = store.claim(chunk, token)
        mine = {failure.id: failure.failed_at for failure in claimed}
        skipped = [(failure, NOT_MINE) for failure in chunk if failure.id not in mine]
        ready: list[tuple[Failure, Envelope]] = []
        for failure in store.full(mine):
            try:
                ready.append((failure, _message(failure, changes, now)))
            except InvalidValueError as error:
                skipped.append((failure, str(error)))
        store.give_back([failure for failure, _ in skipped if failure.id in mine], token)
        after = max(0.0, stored * gap - (time.monotonic() - started) * 1000) if stored else 0.0
        pushes = [_push(failure, message, after + gap * n) for n, (failure, message) in enumerate(ready)]
        _store(queue, ready, pushes)
        stored += len(ready)
        store.delete([failure for failure, _ in ready], token)
        yield Retried([failure for failure, _ in ready], skipped)


def _message(failure: Failure, changes: Changes, now: datetime) -> Envelope:
    if failure.body is None:
        raise InvalidValueError(NO_MESSAGE)
    message = with_arguments(fresh(Envelope.unpack(failure.body, ""), now), changes.args, changes.kwargs)
    # The same failure gets the same name: a second retry recognizes the entry of the first one.
    return message.with_call(_call(failure))


def _call(failure: Failure) -> str:
    return call_name("failure", failure.id, to_ms(failure.failed_at))


def _push(failure: Failure, message: Envelope, delay_ms: float) -> Push:
    return Push(message.pack(failure.id), delay=delay_ms / 1000, id=failure.id, mark=_call(failure))


def _store(queue: DelayQueue, ready: Sequence[tuple[Failure, Envelope]], pushes: Sequence[Push]) -> None:
    for (failure, message), push, kept in zip(ready, pushes, queue.calls.keep_many(pushes), strict=True):
        if kept or Attempt(push.mark, first=False).waits_in(queue.look(failure.id)):
            continue
        # Another call of this task waits under its id.
        other = sibling_id(failure.id, push.mark)
        queue.calls.keep_many([replace(push, id=other, payload=message.pack(other))])


def _document(name: str, text: str | None) -> Any:
    if text is None:
        return None
    try:
        return read_document(text)
    except ValueError as error:
        raise InvalidValueError(f"{name}={_short(text)}: must be JSON: {error}") from None


def _short(text: str | None) -> str:
    return ascii(text)[:60]
