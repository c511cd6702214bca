"""Delayed tasks against Celery's native countdown, on the same Redis, in alternating rounds."""
