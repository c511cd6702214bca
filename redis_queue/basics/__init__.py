"""What every other room builds on: times, waits, names, logs; nothing here knows Redis or Celery."""
