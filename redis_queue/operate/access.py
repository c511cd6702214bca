"""Access: the queues of a Redis, or of a Celery app, for command line and dashboard. It installs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from redis_queue.basics.times import When
from redis_queue.catalog import AnyQueue
from redis_queue.celery.entries import EntryRemoval
from redis_queue.celery.leases.leases import LeaseCounters, read_counters
from redis_queue.celery.results import ResultRecords
from redis_queue.celery.settings import CelerySettings
from redis_queue.celery.store import Store
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.delay.queue import DelayQueue
from redis_queue.model import CancelOutcome
from redis_queue.operate.celery_queues import CeleryQueues
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.queue_row import CeleryQueueRow, Faults, Overview
from redis_queue.store.connection import Client
from redis_queue.store.keys import FlowKeys


class Access:
    """The queues under one prefix of one Redis."""

    app: Any = None
    #: Celery's queues; None without an app.
    celery_queues: CeleryQueues | None = None
    default_delay_queue = CelerySettings().delay_queue

    def __init__(self, inspector: Inspector) -> None:
        self.inspector = inspector
        self.catalog = inspector.catalog
        self._flow_keys = FlowKeys(self.catalog.prefix)
        self.monitor = inspector.monitor
        self.flows = inspector.flows
        self.unique = inspector.unique

    def delay_queue(self, name: str | None = None) -> DelayQueue:
        """Return a DelayQueue, by default the one in which Celery tasks wait; raises InvalidNameError."""
        return self.catalog.delay_queue(name or self.default_delay_queue)

    def queue(self, kind: str, name: str) -> AnyQueue:
        """Return the queue *name* of *kind* ("queue" or "delay"); raises InvalidNameError."""
        return self.delay_queue(name) if kind == "delay" else self.catalog.queue(name)

    def queues(self, name: str | None = None, faults: Faults | None = None) -> list[AnyQueue]:
        """Return the queues of both kinds with *name*, or all; raises InvalidNameError.

        Queues with invalid registry entries are left out and recorded in *faults*.
        """
        faults = faults if faults is not None else Faults()
        found: list[AnyQueue] = []
        for known in self.catalog.known(name):
            with faults.of(known.kind, known.name):
                found.append(self.catalog.open(known))
        return found

    def overview(self) -> tuple[Overview, Sequence[CeleryQueueRow]]:
        """Return the counts of all queues, with an app those of Celery's first; and the rows of these."""
        found = self.inspector.overview()
        rows = self.celery_queues.overview().rows if self.celery_queues is not None else ()
        return replace(found, queues=[*(row.counted(found.at) for row in rows), *found.queues]), rows

    def cancel(self, queue: DelayQueue, ids: Sequence[str]) -> Sequence[CancelOutcome]:
        """Cancel entries, and free the keys of unique tasks in them; return the outcome of each."""
        return self._removal(queue).cancel_many(ids)

    def reschedule(self, queue: DelayQueue, id: str, when: When | None) -> bool:
        """Make an entry due at *when*, or now; False if it does not wait."""
        if when is None:
            return queue.run_now(id)
        return queue.reschedule(id, **_time(when, "delay", "due_at"))

    def delete_dead(self, queue: AnyQueue, ids: Sequence[str], until: datetime) -> int:
        """Delete dead letters that died until *until*, and free the keys of unique tasks in them; return how many."""
        return (self._removal(queue) if isinstance(queue, DelayQueue) else queue).delete_dead(ids, until=until)

    def purge(self, queue: AnyQueue, places: Sequence[Any], limit: int) -> int:
        """Delete up to *limit* (1 to 500) items in *places*, and free the keys of unique tasks; return how many."""
        if isinstance(queue, DelayQueue):
            return self._removal(queue).purge(places, limit)
        return queue.purge(*places, limit=limit)

    def _removal(self, queue: DelayQueue) -> EntryRemoval:
        return EntryRemoval(queue, self._flow_keys)

    def lease_counters(self) -> LeaseCounters | None:
        """Return the lease counters of the app's broker; None without an app, or if the broker is not Redis."""
        return None

    def result_records(self) -> ResultRecords | None:
        """Return the records of the app's result backend; None without an app, or if it is not Redis."""
        return None


def access_to(client: Client, prefix: str) -> Access:
    """Return the Access to the queues under *prefix*; raises ConfigurationError."""
    return Access(Inspector(client, prefix=prefix))


class AppAccess(Access):
    """The queues of a Celery app."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self._store = Store.of(app)
        super().__init__(Inspector(self._store.client, prefix=self._store.prefix))
        #: URL of the Redis, with user and password.
        self.url = self._store.url
        self.default_delay_queue = self._store.delay_queue_name
        # Their names have the prefix of the broker's keys, if it has one.
        self._flow_keys = self._store.flow_keys
        self.flows = StoredTasks.of(app).flow
        self.unique = StoredTasks.of(app).unique
        self.celery_queues = CeleryQueues(app, self.inspector)
        self._records: ResultRecords | None = None

    def delay_queue(self, name: str | None = None) -> DelayQueue:
        """Return a DelayQueue; that of the app exists before its first entry."""
        if name in (None, self.default_delay_queue):
            return self._store.delay_queue()
        return super().delay_queue(name)

    def cancel(self, queue: DelayQueue, ids: Sequence[str]) -> Sequence[CancelOutcome]:
        """Cancel entries; tasks of the app also become REVOKED in its result backend."""
        if queue.name != self.default_delay_queue:
            return super().cancel(queue, ids)
        return StoredTasks.of(self.app).cancel_many(ids)

    def reschedule(self, queue: DelayQueue, id: str, when: When | None) -> bool:
        """Make an entry due at *when*, or now; the key of a unique task ends with it."""
        if queue.name != self.default_delay_queue:
            return super().reschedule(queue, id, when)
        tasks = StoredTasks.of(self.app)
        return tasks.run_now(id) if when is None else tasks.reschedule(id, **_time(when, "countdown", "eta"))

    def lease_counters(self) -> LeaseCounters | None:
        """Return the lease counters of the app's broker; None if the broker is not Redis."""
        return read_counters(self.app)

    def result_records(self) -> ResultRecords | None:
        """Return the records of the app's result backend; None if it is not Redis. Raises ConfigurationError."""
        if self._records is None:
            self._records = ResultRecords.of(self.app)
        return self._records


def _time(when: When, delay: str, point: str) -> dict[str, Any]:
    """Return *when* as the argument *delay* for a time span, or *point* for a time."""
    return {delay if isinstance(when, timedelta) else point: when}
