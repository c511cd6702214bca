"""Every second: due entries go into their Celery queues."""

from redis_queue.celery import register_delay_dispatch
from tasks import app

delay_dispatch = register_delay_dispatch(app)
