"""Due entries become messages in normal Celery queues."""
