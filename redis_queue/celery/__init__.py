"""redis_queue inside a Celery app: the only package here that imports Celery."""

from redis_queue.celery.calls import TaskCall, push_task
from redis_queue.celery.capture import DelayedAMQP
from redis_queue.celery.delayed import DelayedTasks
from redis_queue.celery.dispatcher import Dispatched, Dispatcher
from redis_queue.celery.entry import TaskEntry
from redis_queue.celery.loop import DispatchLoop
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
    "Store",
    "TaskCall",
    "TaskEntry",
    "beat_schedule",
    "install",
    "push_task",
    "register_delay_dispatch",
    "register_putback",
]
