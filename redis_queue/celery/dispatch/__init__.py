"""Send due entries to their Celery queues."""
