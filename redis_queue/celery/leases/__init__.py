"""TaskLeases: the tasks that a worker holds stay its own while it lives, and come back soon when it dies."""

from redis_queue.celery.leases.limit import MaxDeliveriesExceededError, task_poisoned
from redis_queue.celery.leases.step import lease_lost
from redis_queue.celery.leases.task_leases import TaskLeases

__all__ = ["MaxDeliveriesExceededError", "TaskLeases", "lease_lost", "task_poisoned"]
