"""What every other package builds on: times, waits, names, logs; nothing here knows Redis or Celery."""
