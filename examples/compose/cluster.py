"""Delayed tasks in a Redis Cluster, quorum queues of RabbitMQ as the broker, and results in another Redis."""

import os

from celery import Celery

from redis_queue.celery import DurableTasks

app = Celery("shop", broker=os.environ["RABBITMQ"], backend=os.environ["RESULTS"], include=["examples.compose.tasks"])
app.conf.broker_transport_options = {"confirm_publish": True}
app.conf.task_default_queue_type = "quorum"
app.conf.task_default_exchange_type = "direct"
app.conf.redis_queue_url = os.environ["CLUSTER"]
app.conf.redis_queue_shards = 16
app.conf.redis_queue_schedules = True
durable = DurableTasks(app)
