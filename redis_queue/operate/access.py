"""Access: the queues of a Redis, or of a Celery app, for command line and dashboard. It installs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from redis_queue.admission.backlog import Backlog
from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.times import When
from redis_queue.catalog import AnyQueue, open_as
from redis_queue.celery.entries import EntryRemoval, TaskRemoval
from redis_queue.celery.leases.leases import LeaseCounters, read_counters
from redis_queue.celery.results import ResultRecords
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.celery.settings import CelerySettings
from redis_queue.celery.store import Store
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.delay.queue import DelayQueue
from redis_queue.operate.celery_queues import CeleryQueues
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.queue_row import CeleryQueueRow, Faults, Overview
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.connection import Client
from redis_queue.store.keys import FlowKeys
from redis_queue.store.registry import RegistryRow
from redis_queue.store.scripts import Scripts
from redis_queue.store.settings import Settings


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

    @property
    def backlog(self) -> Backlog:
        """The messages that wait for a place in the flows."""
        return Backlog(Scripts(self.catalog.client), self.flows.redis_keys, self.catalog.clock)

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

    def removal(self, queue: DelayQueue) -> EntryRemoval:
        """Return what cancels and deletes entries, and frees their keys; cancelled tasks of the app become REVOKED."""
        own = self._is_own(queue)
        return TaskRemoval(queue, self._flow_keys, self.app) if own else EntryRemoval(queue, self._flow_keys)

    def deletion(self, queue: AnyQueue) -> EntryRemoval | RedisQueue:
        """Return what deletes dead letters and purges: as :meth:`removal` for a DelayQueue, else *queue* itself."""
        return self.removal(queue) if isinstance(queue, DelayQueue) else queue

    def reschedule(self, queue: DelayQueue, id: str, when: When | None) -> bool:
        """Make an entry due at *when*, or now; False if it does not wait. The key of a unique task ends with it."""
        given: dict[str, Any] = {"delay" if isinstance(when, timedelta) else "due_at": when}
        is_done = queue.run_now(id) if when is None else queue.reschedule(id, **given)
        if is_done and self._is_own(queue):
            StoredTasks.of(self.app).extend_key(id)
        return is_done

    def _is_own(self, queue: DelayQueue) -> bool:
        """Return whether *queue* is the one in which the tasks of the app wait."""
        return self.app is not None and queue.name == self.default_delay_queue

    def lease_counters(self) -> LeaseCounters | None:
        """Return the lease counters of the app's broker; None without an app, or if the broker is not Redis."""
        return None if self.app is None else read_counters(self.app)

    @LazyProperty
    def task_queue(self) -> DelayQueue:
        """The DelayQueue of Celery tasks, which may have no entry yet."""
        if self.app is not None:
            return StoredTasks.of(self.app).queue
        name, usual = self.default_delay_queue, Settings()
        known = self.catalog.find("delay", name) or RegistryRow("delay", name, usual.max_deliveries, usual.shards)
        return open_as(DelayQueue, known, self.catalog)

    @property
    def schedules(self) -> Schedules:
        """The periodic tasks whose runs the DelayQueue of Celery tasks gets; putting and sending them needs an app."""
        return Schedules(self.app, self.task_queue)

    @LazyProperty
    def result_records(self) -> ResultRecords | None:
        """The records of the app's result backend; None if it is not Redis. Raises ConfigurationError."""
        return None if self.app is None else ResultRecords.of(self.app)


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

    def delay_queue(self, name: str | None = None) -> DelayQueue:
        """Return a DelayQueue; that of the app exists before its first entry."""
        if name in (None, self.default_delay_queue):
            return self._store.delay_queue()
        return super().delay_queue(name)
