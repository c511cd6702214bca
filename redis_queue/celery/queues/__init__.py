"""Celery's queues, read from their broker."""
