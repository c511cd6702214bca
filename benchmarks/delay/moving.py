"""The speed at which due entries get into queues: of the same Redis, of another Redis, of RabbitMQ."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone

from celery import Celery
from kombu.entity import Queue

from benchmarks.delay.apps import Place, make_app
from benchmarks.delay.filling import fill
from benchmarks.delay.site import Site
from redis_queue.celery import Dispatcher
from redis_queue.celery.stored_tasks import StoredTasks

BUDGET = 120.0


def seconds_to_move(site: Site, broker: str) -> float:
    """Return the seconds in which one dispatcher moves all entries, all due, to *broker*.

    Its connections are open, as in a running dispatcher. Raises RuntimeError if not all entries arrive.
    """
    site.client().flushall()
    app = make_app(Place(broker, f"redis_queue_bench_{os.urandom(4).hex()}", site.url))
    queue = StoredTasks.of(app).queue
    dispatcher = Dispatcher(app, queue)
    try:
        fill(app, 1, due_at=datetime.now(timezone.utc))
        dispatcher.run()
        due_at = datetime.now(timezone.utc) + timedelta(seconds=2 + site.scale.moved / 10_000)
        fill(app, site.scale.moved, due_at=due_at)
        wait = due_at.timestamp() - time.time()
        assert wait > 0, "the machine is too slow to store the entries before they are due"
        time.sleep(wait + 0.05)
        started = time.perf_counter()
        done = dispatcher.run(BUDGET)
        elapsed = time.perf_counter() - started
        arrived = _take_away(app)
        if (done.sent, arrived) != (site.scale.moved, site.scale.moved + 1):
            raise RuntimeError(f"{done.sent} of {site.scale.moved} sent, {arrived} arrived")
        return elapsed
    finally:
        dispatcher.close()
        app.close()


def _take_away(app: Celery) -> int:
    """Return the number of messages in the queue of *app*, and delete the queue."""
    name = app.conf.task_default_queue
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        found = Queue(name)(channel).queue_declare(passive=True).message_count
        channel.queue_delete(name)
        if connection.transport.driver_type == "amqp":
            channel.exchange_delete(name)
        return int(found)
