"""TaskLeases: keep running tasks from being run twice, and bring the tasks of killed workers back soon."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.celery.dispatch.dispatcher import Dispatcher
from redis_queue.celery.dispatch.outcome import DispatchReport
from redis_queue.celery.intake import IntakeStep
from redis_queue.celery.leases.connections import ATTRIBUTE, prefer_safe_settings, prepare_connections
from redis_queue.celery.leases.poison import DeliveryLimit, DeliveryLimitStep, count_starts
from redis_queue.celery.leases.step import LeaseStep
from redis_queue.celery.monitor.step import MonitorStep
from redis_queue.celery.store import Store
from redis_queue.celery.store_consumer.step import StoreConsumerStep
from redis_queue.celery.worker import StartupStep
from redis_queue.delay.queue import DelayQueue
from redis_queue.model import DeadLetter

if TYPE_CHECKING:
    from celery import Celery


class TaskLeases:
    """Workers of *app* renew the leases of their tasks as long as they live.

    On a Redis broker a task may run for longer than ``visibility_timeout`` and still runs once, and the tasks of a
    killed worker start again within one and a half times ``redis_queue_task_lease`` (60 s). What workers without leases
    hold comes back by kombu's own rule, so both kinds may share queues. ``task_acks_late`` and
    ``task_reject_on_worker_lost`` are True unless the app, or a task, sets them.

    On any broker, a task that takes its worker down ``redis_queue_max_deliveries`` times (5; a task may have its own
    ``max_deliveries``) is not run again: it becomes a dead letter of the app's DelayQueue, and its state is FAILURE.
    A second call for the same app returns the same object.
    """

    def __new__(cls, app: Celery) -> TaskLeases:
        found: TaskLeases | None = vars(app).get(ATTRIBUTE)
        return found if found is not None else super().__new__(cls)

    def __init__(self, app: Celery) -> None:
        if vars(app).get(ATTRIBUTE) is self:
            return
        self.app = app
        self.limit = DeliveryLimit(app)
        setattr(app, ATTRIBUTE, self)
        app.steps["worker"].add(StartupStep)
        app.steps["consumer"].update((LeaseStep, DeliveryLimitStep, StoreConsumerStep, MonitorStep, IntakeStep))
        prefer_safe_settings(app)
        prepare_connections(app)
        count_starts()

    @LazyProperty
    def queue(self) -> DelayQueue:
        """The DelayQueue that keeps the dead letters."""
        return Store.of(self.app).delay_queue()

    def dead_letters(self, offset: int = 0, limit: int = 100) -> list[DeadLetter]:
        """Return a page of dead letters, oldest first: tasks that took their workers down or could not be sent."""
        return self.queue.dead_letters(offset=offset, limit=limit)

    def redrive(self, ids: Iterable[str] | None = None, *, rate: float | None = None) -> int:
        """Send dead letters (default: all) again, their deliveries counted from zero; return how many."""
        alive = self.queue.redrive(ids, rate=rate)
        dispatcher = Dispatcher(self.app, self.queue)
        try:
            report = DispatchReport(self.queue)
            report.add(dispatcher.run())
            report.write(leads=False, at_once=True)
        finally:
            dispatcher.close()
        return alive
