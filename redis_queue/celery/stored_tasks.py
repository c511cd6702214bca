"""StoredTasks: find, change and cancel the delayed tasks of a Celery app."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

from celery import Celery

from redis_queue.admission.flows import Flows
from redis_queue.admission.owners import Owners
from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.options import Conditions, TaskConditions
from redis_queue.basics.times import Seconds, duration_ms, to_ms
from redis_queue.celery.admission.policy import UniquePolicy
from redis_queue.celery.admission.sender import FlowSender, flows_of
from redis_queue.celery.entries import MessageWriter, TaskRemoval
from redis_queue.celery.message.entry import unique_header_of
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.results import mark_revoked
from redis_queue.celery.settings import CelerySettings, extension_of, part_of
from redis_queue.celery.store import Store
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidDelayError, InvalidValueError, StoreError
from redis_queue.model import CancelOutcome
from redis_queue.store.chunks import CHUNK, MANY, check_limit
from redis_queue.store.ids import is_id

if TYPE_CHECKING:
    from typing_extensions import Unpack


def has_leases(app: Celery) -> bool:
    """Return whether *app* has DurableTasks with leases."""
    found = extension_of(app)
    return found is not None and found.leases


def delayed_of(app: Celery) -> StoredTasks | None:
    """Return the DurableTasks of *app*; None if it has none, or one without delays."""
    found = extension_of(app)
    return found if found is not None and found.delays else None


class StoredTasks:
    """The delayed tasks of *app* that wait in its store. Using it does not change the app.

    Raises ConfigurationError for invalid settings, at the first use.
    """

    def __init__(self, app: Celery) -> None:
        self.app = app

    @classmethod
    def of(cls, app: Celery) -> StoredTasks:
        """Return the StoredTasks of *app*, always the same; its DurableTasks if it has them."""
        return extension_of(app) or part_of(app, StoredTasks, "stored_tasks")

    @LazyProperty
    def settings(self) -> CelerySettings:
        """The settings of the app."""
        return self.store.settings

    @property
    def store(self) -> Store:
        """The Redis in which the app keeps its queues."""
        return Store.of(self.app)

    @LazyProperty
    def queue(self) -> DelayQueue:
        """The DelayQueue that holds the tasks; its dead letters could not be sent, or killed their workers."""
        return self.store.delay_queue()

    @LazyProperty
    def writer(self) -> MessageWriter:
        """Writer of messages into the DelayQueue."""
        return MessageWriter(self.app, lambda: self.queue)

    @LazyProperty
    def flow(self) -> Flows:
        """The flows of the app: limits, rates and pauses that can be changed at run time."""
        return flows_of(self.app)

    @LazyProperty
    def unique(self) -> Owners:
        """The keys of unique tasks, and the tasks that own them."""
        store = self.store
        return Owners(store.client, store.prefix, broker_prefix=store.broker_prefix, clock=store.clock)

    @LazyProperty
    def flow_sender(self) -> FlowSender:
        """Sends messages of flows into the store, where they wait for admission."""
        return FlowSender(self.app)

    @property
    def _removal(self) -> TaskRemoval:
        return TaskRemoval(self.queue, self.store.flow_keys, self.app)

    def get(self, id: str) -> TaskEntry | None:
        """Return a waiting task, or None."""
        entry = self.queue.get(id)
        return None if entry is None else TaskEntry.of(entry)

    def cancel(self, id: str) -> CancelOutcome:
        """Remove a task and set its state to REVOKED.

        CANCELLED, the only truthy outcome: the task will never run. MAYBE_SENT: it was removed, but a dispatcher had
        claimed it and may have sent it to another broker; call ``app.control.revoke(id)`` so that workers discard it.
        NOT_FOUND: the id is unknown, or the task is being sent; the state is unchanged.
        """
        return self.cancel_many([id])[0]

    def cancel_many(self, ids: Iterable[str]) -> builtins.list[CancelOutcome]:
        """Remove tasks, as :meth:`cancel` does; one round trip per 500 and shard, and more for unique tasks."""
        return [removal.outcome for removal in self._removal.cancel_many(ids)]

    def revoke_many(self, ids: Iterable[str]) -> builtins.set[str]:
        """Delete the stored entries of the tasks *ids*, and note that they are revoked, as :meth:`cancel_many` does.

        Unique tasks among them that wait in their queue do not run, and their keys are free. Returns the ids of tasks
        whose messages never left the store: they need no broadcast to workers. Workers with redis_queue discard the
        messages of the others, also workers that start later.
        """
        names = list(ids)
        unseen = self._removal.revoke(names)
        if UniquePolicy.of(self.app).exist:
            for name in self.unique.revoke(names):
                mark_revoked(self.app, name, None)
        return unseen

    def reschedule(self, id: str, *, countdown: Seconds | None = None, eta: datetime | None = None) -> bool:
        """Make a task due *countdown* from now, or at *eta* (aware). False: unknown id, or being sent."""
        if countdown is None and eta is None:
            raise InvalidDelayError("expected countdown= or eta=")
        return self.queue.reschedule(id, delay=countdown, due_at=eta) and self.extend_key(id)

    def run_now(self, id: str) -> bool:
        """Make a task due now. False: unknown id, or being sent."""
        return self.queue.run_now(id) and self.extend_key(id)

    def extend_key(self, id: str) -> bool:
        """Let the time of its key count from the new due time of a task, if it is unique; True."""
        with suppress(StoreError):
            entry = self.queue.get(id) if UniquePolicy.of(self.app).exist else None
            key = unique_header_of(entry)
            if entry is not None and key is not None:
                self.unique.extend(key.field, key.token, due_ms=to_ms(entry.due_at), ttl_ms=key.ttl_ms)
        return True

    def delete_dead(self, ids: Iterable[str], *, until: datetime | None = None) -> int:
        """Delete dead letters, all or those that died until *until* (aware), and free the keys of unique tasks.

        Return how many were deleted; other ids are ignored.
        """
        return self._removal.delete_dead(ids, until=until)

    def list(
        self, *, after: str | None = None, limit: int = 100, **conditions: Unpack[TaskConditions]
    ) -> builtins.list[TaskEntry]:
        """Return a page of up to *limit* (1 to 500) waiting tasks by due time; :meth:`scan` yields all.

        All *conditions* must hold: ``task``, ``task_part`` (a part of its name), ``queue``, ``id_prefix``,
        ``due_before`` (exclusive), ``due_after`` (inclusive), and ``stamp``, a mapping of stamp names to a value, or to
        several values of which one must match. *after* is :meth:`cursor` of the last task seen.
        """
        check_limit(limit, CHUNK)
        return [*islice(self._scan(after, limit, conditions), limit)]

    def scan(self, *, after: str | None = None, **conditions: Unpack[TaskConditions]) -> Iterator[TaskEntry]:
        """Yield all waiting tasks that :meth:`list` would return; read a page of 500 at a time."""
        return self._scan(after, CHUNK, conditions)

    @staticmethod
    def cursor(task: TaskEntry) -> str:
        """Return the cursor that continues after *task*: *after* of :meth:`list` and :meth:`scan`."""
        return DelayQueue.cursor(task)

    def _scan(self, after: str | None, size: int, conditions: TaskConditions) -> Iterator[TaskEntry]:
        tasks = self._tasks(after, size, conditions.get("due_before"), conditions.get("due_after"))
        return filter(Conditions(**conditions).match, tasks)

    def _tasks(
        self, after: str | None, size: int, due_before: datetime | None, due_after: datetime | None
    ) -> Iterator[TaskEntry]:
        """Yield tasks after the cursor *after*; the first page has *size* entries, later ones 500."""
        while page := self.queue.list(after=after, limit=size, due_before=due_before, due_after=due_after):
            yield from map(TaskEntry.of, page)
            after, size = self.queue.cursor(page[-1]), CHUNK

    def count(self, *, due_before: datetime | None = None, due_after: datetime | None = None) -> int:
        """Count waiting tasks, all or those due in a time window."""
        return self.queue.count(due_before=due_before, due_after=due_after)

    def forecast(self, hours: float = 24, *, buckets: int = 24) -> builtins.list[tuple[datetime, int]]:
        """Count the tasks that fall due in each of *buckets* equal windows of the next *hours*.

        Each item is (start of the window, count). Overdue tasks are counted in the first window.
        """
        check_limit(buckets, MANY, name="buckets")
        duration_ms(hours, name="hours")
        return self.queue.forecast(buckets, width=hours * 3600 / buckets)

    def cancel_matching(self, *, dry_run: bool = False, **conditions: Unpack[TaskConditions]) -> int:
        """Cancel all tasks that :meth:`scan` yields for *conditions*; return how many were removed.

        Raises InvalidValueError without a condition. With *dry_run* the tasks are only counted.
        """
        if not Conditions(**conditions):
            raise InvalidValueError(
                "cancel_matching(): expected a condition; without one, all tasks would be cancelled"
            )
        # Entries written by other tools may have invalid ids.
        ids = [entry.id for entry in self.scan(**conditions) if is_id(entry.id)]
        return len(ids) if dry_run else sum(outcome.taken_out for outcome in self.cancel_many(ids))
