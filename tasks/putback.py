"""Every 300 seconds: what expired leases hold goes back, in all known queues."""

from redis_queue.celery import register_putback
from tasks import app

putback = register_putback(app)
