"""redis_queue inside a Celery app: the only package here that imports Celery."""

from redis_queue.celery.batch import Dispatched
from redis_queue.celery.calls import TaskCall, push_task
from redis_queue.celery.capture import DelayedAMQP
from redis_queue.celery.delayed import DelayedTasks
from redis_queue.celery.dispatcher import Dispatcher
from redis_queue.celery.entry import TaskEntry
from redis_queue.celery.leases import MaxDeliveriesExceededError, TaskLeases, lease_lost, task_poisoned
from redis_queue.celery.loop import DispatchLoop
from redis_queue.celery.serialized import serialized
from redis_queue.celery.settings import CelerySettings
from redis_queue.celery.store import Store
from redis_queue.celery.tasks import beat_schedule, install, register_delay_dispatch, register_putback

__all__ = [
    "CelerySettings",
    "DelayedAMQP",
    "DelayedTasks",
    "DispatchLoop",
    "Dispatched",
    "Dispatcher",
    "MaxDeliveriesExceededError",
    "Store",
    "TaskCall",
    "TaskEntry",
    "TaskLeases",
    "beat_schedule",
    "install",
    "lease_lost",
    "push_task",
    "register_delay_dispatch",
    "register_putback",
    "serialized",
    "task_poisoned",
]
