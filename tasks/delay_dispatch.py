"""Dispatch due entries into their Celery queues, every second."""

from redis_queue.celery import register_delay_dispatch
from tasks import app

delay_dispatch = register_delay_dispatch(app)
