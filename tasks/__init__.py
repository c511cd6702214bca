"""The reference application: ``celery -A tasks worker --beat``."""

from celery import Celery

from redis_queue.celery import DurableTasks

app = Celery("tasks")
app.config_from_object("celeryconfig")
durable = DurableTasks(app)
