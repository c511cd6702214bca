"""A Celery worker with leases and with atomic fetch against a stock worker: CPU, rate, commands, wake-ups, latency."""
