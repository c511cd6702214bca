"""Put back the messages of expired leases in all known queues, every 300 seconds."""

from redis_queue.celery import register_putback
from tasks import app

putback = register_putback(app)
