"""Configuration of the reference application; every value that differs between machines comes from the environment.

=========================== =============================================== ==========================
variable                    meaning                                         default
=========================== =============================================== ==========================
REDIS_URL                   the Redis that holds the queues                 redis://localhost:6379/0
CELERY_BROKER_URL           broker, a Redis or a RabbitMQ                   REDIS_URL
CELERY_RESULT_BACKEND       where results go                                none
CELERY_TIMEZONE             time zone of the beat schedule                  UTC
REDIS_QUEUE_PREFIX          first part of all keys                          redis_queue
CELERY_KEY_PREFIX           what a Redis broker's keys begin with           nothing
=========================== =============================================== ==========================
"""

import os
import re

redis_queue_url = os.environ.get("REDIS_URL") or "redis://localhost:6379/0"
redis_queue_prefix = os.environ.get("REDIS_QUEUE_PREFIX") or "redis_queue"

broker_url = os.environ.get("CELERY_BROKER_URL") or redis_queue_url
if broker_url.startswith("unix://"):
    # kombu has its own scheme for a unix socket, and its own option for the database.
    broker_url = re.sub(r"([?&])db=", r"\1virtual_host=", broker_url.replace("unix://", "redis+socket://", 1))
result_backend = os.environ.get("CELERY_RESULT_BACKEND") or None
timezone = os.environ.get("CELERY_TIMEZONE") or "UTC"

# Without confirms a publish to RabbitMQ may be lost while its entry is acked as sent.
broker_transport_options = (
    {"confirm_publish": True}
    if broker_url.startswith(("amqp", "pyamqp"))
    else {"global_keyprefix": os.environ.get("CELERY_KEY_PREFIX", ""), "queue_order_strategy": "tasks.order.TicksFirst"}
)
broker_connection_retry_on_startup = True

include = ["tasks.putback", "tasks.delay_dispatch", "tasks.orders"]

# A worker that prefetches many slow tasks would delay the ticks.
worker_prefetch_multiplier = 1

# The ticks have a queue of their own, so that a backlog of other tasks does not hold them up.
task_default_queue = "celery"
# Celery would bind a queue without an exchange to the default queue's exchange, whose messages it would get, too.
# On Redis it is read first: in turns, ticks would be fetched more slowly than they are sent.
task_queues = {"redis_queue": {"exchange": "redis_queue", "routing_key": "redis_queue"}, "celery": {}}

# Plain values, as `redis_queue.celery.beat_schedule` gives them: gevent reads this file before it has patched sockets.
# A tick that has waited so long expires: a newer one does its work.
beat_schedule = {
    "redis-queue-putback": {
        "task": "tasks.putback.putback",
        "schedule": 300.0,
        "options": {"expires": 300.0, "queue": "redis_queue"},
    },
    "redis-queue-delay-dispatch": {
        "task": "tasks.delay_dispatch.delay_dispatch",
        "schedule": 1.0,
        "options": {"expires": 5.0, "queue": "redis_queue"},
    },
}
