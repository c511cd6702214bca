"""Broker, store and results in one Redis with replicas, found by Sentinels."""

import os

from celery import Celery

from redis_queue.celery import DurableTasks

app = Celery(
    "shop", broker=os.environ["SENTINELS"], backend=os.environ["SENTINELS"], include=["examples.compose.tasks"]
)
app.conf.broker_transport_options = {"master_name": "main"}
app.conf.result_backend_transport_options = {"master_name": "main"}
app.conf.redis_queue_task_lease = float(os.environ.get("TASK_LEASE", "60"))
app.conf.redis_queue_schedules = True
app.conf.redis_queue_flow = {"shop.print_label": {"limit": 1}}
app.conf.redis_queue_unique = {"shop.ship": {"key": "{order}"}}
durable = DurableTasks(app)
