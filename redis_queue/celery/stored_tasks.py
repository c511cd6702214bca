"""StoredTasks: find, change and cancel the tasks that wait in the store of a Celery app."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypedDict

from redis_queue.celery.kombu_keys import ListNames
from redis_queue.celery.message.attempt import Attempt, call_in, new_call, retry_id
from redis_queue.celery.message.declarations import build, lifetime_ms
from redis_queue.celery.message.envelope import DEFERRED_FOR, Due, Envelope
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.revoked_state import clear_revoked, mark_revoked
from redis_queue.celery.settings import CelerySettings
from redis_queue.celery.store import Store
from redis_queue.celery.tracing import scheduling
from redis_queue.delay.model import Push
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidDelayError, InvalidValueError, StoreError
from redis_queue.lazy_property import LazyProperty
from redis_queue.model import CancelOutcome, Entry
from redis_queue.store.chunks import CHUNK, MANY, check_limit
from redis_queue.store.ids import is_id
from redis_queue.times import Seconds, duration_ms

if TYPE_CHECKING:
    from celery import Celery
    from typing_extensions import Unpack

ATTRIBUTE: Final = "delayed_tasks"
"""Attribute of an app that holds its DelayedTasks."""

CACHED: Final = "redis_queue_stored_tasks"

Match = Callable[[TaskEntry], bool]


def delayed_of(app: Celery) -> StoredTasks | None:
    """Return the DelayedTasks of *app*; None if none is installed."""
    found: StoredTasks | None = vars(app).get(ATTRIBUTE)
    return found


class TaskConditions(TypedDict, total=False):
    """Conditions for waiting tasks as keyword arguments, for type checkers."""

    task: str | None
    queue: str | None
    stamp: Mapping[str, Any] | None
    id_prefix: str | None
    due_before: datetime | None
    due_after: datetime | None


class StoredTasks:
    """The delayed tasks of *app* that wait in its store. Using it installs nothing in the app.

    Raises ConfigurationError at the first use for invalid settings.
    """

    def __init__(self, app: Celery) -> None:
        self.app = app

    @classmethod
    def of(cls, app: Celery) -> StoredTasks:
        """Return those of *app*, made at the first call; its DelayedTasks where one is installed."""
        found = delayed_of(app) or vars(app).get(CACHED)
        if found is None:
            found = vars(app)[CACHED] = StoredTasks(app)
        return found

    @LazyProperty
    def settings(self) -> CelerySettings:
        """The settings of the app."""
        return self.store.settings

    @property
    def store(self) -> Store:
        """Where the app keeps its queues."""
        return Store.of(self.app)

    @LazyProperty
    def queue(self) -> DelayQueue:
        """The DelayQueue that holds the tasks; its dead letters are what could not be sent."""
        return self.store.delay_queue()

    @LazyProperty
    def _lists(self) -> ListNames | None:
        """How the broker names its lists, or None where it has none."""
        return ListNames.of_app(self.app)

    def get(self, id: str) -> TaskEntry | None:
        """Return a task that waits, or None."""
        entry = self.queue.get(id)
        return None if entry is None else TaskEntry.of(entry)

    def cancel(self, id: str) -> CancelOutcome:
        """Take a task out and set its state to REVOKED.

        CANCELLED, the only true outcome: the task will never run. MAYBE_SENT: it was taken out, but a dispatcher held
        it before and may have sent it to another broker; call ``app.control.revoke(id)`` so that workers discard
        it. NOT_FOUND: unknown, or already being sent; the state is unchanged.
        """
        return self.cancel_many([id])[0]

    def cancel_many(self, ids: Iterable[str]) -> builtins.list[CancelOutcome]:
        """Take tasks out, as :meth:`cancel` does."""
        names = list(ids)
        outcomes, _ = self._cancel(names)
        # They are taken out already. The note only lets a newer call clear their state.
        with suppress(StoreError):
            self.queue.calls.note_revoked(
                name for name, outcome in zip(names, outcomes, strict=True) if outcome.taken_out
            )
        return outcomes

    def revoke_many(self, ids: Iterable[str]) -> builtins.set[str]:
        """Delete the stored entries of the tasks *ids*, and note that they are revoked.

        Returns the ids whose messages never left the store: for these no broadcast to workers is needed.
        """
        names = list(ids)
        self.queue.calls.note_revoked(names)
        return self._cancel(names)[1]

    def _cancel(self, names: Sequence[str]) -> tuple[builtins.list[CancelOutcome], builtins.set[str]]:
        # Read first: what is cancelled is gone, and with it the name of the chord that waits for it.
        entries = [self.queue.get(name) for name in names]
        found = self.queue.cancel_many([*names, *map(retry_id, names)])
        rows = list(zip(names, entries, found, found[len(names) :], strict=False))
        # A retry may wait beside a newer call of its task. MAYBE_SENT of either of them is the outcome of both. It is
        # also the outcome if only the retry is found: then the newer call is being sent, or was sent.
        outcomes = [
            CancelOutcome.MAYBE_SENT if retry.taken_out and not call.taken_out else max(call, retry)
            for _, _, call, retry in rows
        ]
        for name, entry, outcome in zip(names, entries, outcomes, strict=True):
            if outcome.taken_out:
                mark_revoked(self.app, name, entry)
        unseen = {name for name, entry, call, retry in rows if call and not retry.taken_out and _is_unseen(entry)}
        return outcomes, unseen

    def reschedule(self, id: str, *, countdown: Seconds | None = None, eta: datetime | None = None) -> bool:
        """Change when a task is due: *countdown* from now, or at *eta* (aware). False: unknown, or on its way."""
        if countdown is None and eta is None:
            raise InvalidDelayError("give countdown= or eta=")
        return self.queue.reschedule(id, delay=countdown, due_at=eta)

    def run_now(self, id: str) -> bool:
        """Make a task due at once. False: unknown, or on its way already."""
        return self.queue.run_now(id)

    def list(
        self, *, after: str | None = None, limit: int = 100, **conditions: Unpack[TaskConditions]
    ) -> builtins.list[TaskEntry]:
        """Return a page of up to *limit* (1 to 500) waiting tasks by due time; :meth:`scan` yields all.

        All *conditions* must hold: ``task``, ``queue``, ``id_prefix``, ``due_before``, ``due_after``, and ``stamp``,
        which maps each name of a stamp to a value, or to several values of which one must match. *after* is
        :meth:`cursor` of the last task seen.
        """
        check_limit(limit, CHUNK)
        return [*islice(self._scan(after, limit, **conditions), limit)]

    def scan(self, *, after: str | None = None, **conditions: Unpack[TaskConditions]) -> Iterator[TaskEntry]:
        """Yield all waiting tasks that :meth:`list` would return, read a page of 500 at a time."""
        return self._scan(after, CHUNK, **conditions)

    @staticmethod
    def cursor(task: TaskEntry) -> str:
        """Return the cursor that continues after *task*: *after* of :meth:`list` and :meth:`scan`."""
        return DelayQueue.cursor(task)

    def _scan(
        self,
        after: str | None,
        size: int,
        *,
        task: str | None = None,
        queue: str | None = None,
        stamp: Mapping[str, Any] | None = None,
        id_prefix: str | None = None,
        due_before: datetime | None = None,
        due_after: datetime | None = None,
    ) -> Iterator[TaskEntry]:
        """Yield matching tasks after the cursor *after*; the first page has *size* entries, later ones 500."""
        matches = _matcher(task, queue, stamp, id_prefix)
        while page := self.queue.list(after=after, limit=size, due_before=due_before, due_after=due_after):
            yield from filter(matches, map(TaskEntry.of, page))
            after, size = self.queue.cursor(page[-1]), CHUNK

    def count(self, *, due_before: datetime | None = None, due_after: datetime | None = None) -> int:
        """Count waiting tasks, all or those due in a time window."""
        return self.queue.count(due_before=due_before, due_after=due_after)

    def forecast(self, hours: float = 24, *, buckets: int = 24) -> builtins.list[tuple[datetime, int]]:
        """Count how many tasks fall due in each of *buckets* equal windows of the next *hours*.

        Each item is (start of the window, count); what is overdue counts in the first.
        """
        check_limit(buckets, MANY, name="buckets")
        duration_ms(hours, name="hours")
        return self.queue.forecast(buckets, width=hours * 3600 / buckets)

    def cancel_matching(self, *, dry_run: bool = False, **conditions: Unpack[TaskConditions]) -> int:
        """Cancel all tasks that :meth:`scan` yields for *conditions*, at least one; return how many were taken out.

        With *dry_run* they are only counted.
        """
        if not any(value is not None for value in conditions.values()):
            raise InvalidValueError("cancel_matching() without a condition would cancel everything: give one")
        # One that was written by hand may have an id that no call takes.
        ids = [entry.id for entry in self.scan(**conditions) if is_id(entry.id)]
        return len(ids) if dry_run else sum(outcome.taken_out for outcome in self.cancel_many(ids))

    def store_message(self, envelope: Envelope, due: Due) -> None:
        """Store one captured message; the same task id again replaces what waits under it."""
        self.store_messages([(envelope, due)])

    def store_messages(self, messages: Sequence[tuple[Envelope, Due]]) -> None:
        """Store captured messages in one round trip per 500; the same task id again replaces what waits under it."""
        named = [(envelope.with_call(new_call()), due) for envelope, due in messages]
        with scheduling(named) as traced:
            pushes = [replace(self.as_push(*message), mark=call_in(message[0].headers) or "") for message in traced]
            renewed = self.queue.calls.renew_many(pushes)
        for (envelope, _), was_revoked in zip(messages, renewed, strict=True):
            if was_revoked:
                clear_revoked(self.app, envelope.id)

    def store_attempt(self, envelope: Envelope, due: Due, attempt: Attempt) -> None:
        """Store a retry; it replaces an earlier attempt of the same call.

        An entry of another call with the same id is kept: then the retry gets an entry of its own.
        """
        with scheduling([(envelope.with_call(attempt.call), due)]) as traced:
            ((message, _),) = traced
            self.keep_attempt(self.as_push(message, due), message, attempt)

    def keep_attempt(self, push: Push, envelope: Envelope, attempt: Attempt) -> None:
        """Store *push*, made of *envelope*, under the first id at which it replaces no other call."""
        for id_ in attempt.ids(envelope.id):
            if self.queue.calls.replace_own(replace(push, payload=envelope.pack(id_), id=id_, mark=attempt.mark)):
                return
        # Only possible if another tool wrote an entry with this id and without a call name.
        raise InvalidValueError(
            f"{envelope.id!r}: other calls wait under this id and under all ids for its retries: cancel one of them"
        )

    def as_push(self, envelope: Envelope, due: Due) -> Push:
        """Return what is stored for a captured message."""
        delay, due_at = due
        return Push(
            envelope.pack(),
            delay=delay,
            due_at=due_at,
            id=envelope.id or None,
            headers=envelope.storage_headers() or None,
            destination=self._destination(envelope),
        )

    def _destination(self, envelope: Envelope) -> str | None:
        """Return the list that the message goes to, if that is known without asking the broker."""
        if self._lists is None or envelope.exchange or not envelope.routing_key:
            return None
        if any(isinstance(item, Mapping) and lifetime_ms(build(item)) for item in envelope.declare):
            return None
        return self._lists.of_queue(envelope.routing_key, envelope.priority)


def _is_unseen(entry: Entry | None) -> bool:
    """Tell whether the message of *entry*, and every earlier attempt of its call, never left the store."""
    return (
        entry is not None
        and not entry.deliveries
        and DEFERRED_FOR not in entry.headers
        and not TaskEntry.of(entry).retries
    )


def _matcher(task: str | None, queue: str | None, stamp: Mapping[str, Any] | None, id_prefix: str | None) -> Match:
    def matches(entry: TaskEntry) -> bool:
        return (
            (task is None or entry.task == task)
            and (queue is None or entry.queue == queue)
            and (id_prefix is None or entry.id.startswith(id_prefix))
            and (stamp is None or has_stamps(entry.stamps, stamp))
        )

    return matches


def has_stamps(stamps: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Tell whether *stamps* has for each name in *wanted* one of the values there."""
    return all(set(_several(stamps.get(name))) & set(_several(value)) for name, value in wanted.items())


def _several(value: Any) -> builtins.list[str]:
    several = value if isinstance(value, list | tuple | set | frozenset) else [] if value is None else [value]
    return [str(item) for item in several]
