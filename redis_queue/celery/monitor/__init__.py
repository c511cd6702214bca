"""What a worker reports about itself and its tasks; without Celery's events."""
