"""The extension of Celery. No package that it imports knows Celery or kombu."""

from redis_queue.celery.dispatch.beat import add_beat_entries, beat_schedule, register_delay_dispatch, register_putback
from redis_queue.celery.dispatch.dispatcher import Dispatcher
from redis_queue.celery.dispatch.loop import DispatchLoop
from redis_queue.celery.durable_tasks import DelayedAMQP, DurableTasks
from redis_queue.celery.entries import push_task
from redis_queue.celery.leases.poison import MaxDeliveriesExceededError, task_poisoned
from redis_queue.celery.leases.step import lease_lost
from redis_queue.celery.message.entry import TaskCall
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.celery.publish.batch import PartlySentError
from redis_queue.celery.settings import CelerySettings
from redis_queue.celery.store import Store
from redis_queue.delay.model import Dispatched

__all__ = [
    "CelerySettings",
    "DelayedAMQP",
    "DispatchLoop",
    "Dispatched",
    "Dispatcher",
    "DurableTasks",
    "MaxDeliveriesExceededError",
    "PartlySentError",
    "Store",
    "TaskCall",
    "TaskEntry",
    "add_beat_entries",
    "beat_schedule",
    "lease_lost",
    "push_task",
    "register_delay_dispatch",
    "register_putback",
    "task_poisoned",
]
