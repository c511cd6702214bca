"""The Django app of redis_queue: system checks, ``manage.py redis_queue`` and the dashboard (extra ``django``)."""
