"""Schedules: rules and due times, compared with brute force and with Celery."""
