"""Two beats, a worker for their tasks and twenty dispatchers at once: each task is sent once."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from redis_queue import DelayQueue
from redis_queue.celery import Dispatcher
from tests.support.celery.brokers import Broker
from tests.support.celery.delaying_names import NOTE
from tests.support.celery.fleet import Fleet
from tests.support.celery.processes import CeleryProcess
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

TASKS = 3000
DISPATCHERS = 20
SECONDS = 2.0


@pytest.fixture(params=["one redis", "two redis"])
def broker(request: pytest.FixtureRequest, server: RedisServer) -> Iterator[Broker]:
    """A broker: the store, or another database, which the store treats as another Redis."""
    socket = f"redis+socket://{server.socket}"
    with Broker(socket if request.param == "one redis" else f"{socket}?virtual_host=1") as broker:
        yield broker


@pytest.fixture
def fleet(broker: Broker, server: RedisServer) -> Iterator[Fleet]:
    """An app without a worker for its tasks: they stay in their queue."""
    with server.client() as client:
        queue = broker.name("delaying")
        broker.forget_later(f"{queue}-ticks", f"{queue}-control.pidbox", f"{queue}-events")
        with closing(Fleet(server, client, broker.url, queue, {"broker_transport_options": broker.options})) as fleet:
            yield fleet


@contextlib.contextmanager
def ticking(fleet: Fleet) -> Iterator[None]:
    """Run two beats and a worker of the periodic tasks; return after the first ticks."""
    environment = {**fleet.environment(), "TICKS": "0.1"}
    app = ("-A", "tests.support.celery.delaying_app")
    with contextlib.ExitStack() as running:
        beats = [
            running.enter_context(CeleryProcess(*app, "beat", "--loglevel", "INFO", environment=environment))
            for _ in range(2)
        ]
        options = ("--pool", "threads", "--concurrency", "4", "--queues", f"{fleet.queue}-ticks", "--without-dispatch")
        worker = running.enter_context(
            CeleryProcess(*app, "worker", "--loglevel", "INFO", *options, environment=environment)
        )
        for beat in beats:
            beat.wait_for_output("Sending due task redis-queue-delay-dispatch")
        worker.wait_for_output("succeeded in")
        before = worker.output.count("succeeded in")
        yield
        wait_until(lambda: worker.output.count("succeeded in") >= before + 3, description="more ticks")


def left(queue: DelayQueue) -> int:
    """Count the tasks that wait, and those that the worker of the periodic tasks, which is killed, has claimed."""
    stats = queue.stats()
    return stats.waiting + stats.in_flight


def dispatch(fleet: Fleet, stored: threading.Event) -> int:
    """Dispatch until all tasks are *stored* and none is left, nor on its way; return the number of sent tasks."""
    sent = 0
    with fleet.store.client() as client:
        queue = DelayQueue("scheduled", client)
        work = Dispatcher(fleet.app(), queue, batch=50)
        while not stored.is_set() or left(queue):
            sent += work.run_once().sent
        work.close()
    return sent


def test_each_task_is_sent_once(fleet: Fleet, broker: Broker) -> None:
    delayed = fleet.delayed()
    with ticking(fleet), ThreadPoolExecutor(DISPATCHERS) as pool:
        notes = [delayed.app.signature(NOTE, countdown=0.2 + SECONDS * number / TASKS) for number in range(TASKS)]
        stored = threading.Event()
        # Before the push: on a busy machine the periodic task may send everything after it.
        dispatchers = [pool.submit(dispatch, fleet, stored) for _ in range(DISPATCHERS)]
        try:
            ids = [result.id for result in delayed.send_many(notes)]
        finally:
            stored.set()
        sent = [dispatcher.result(50) for dispatcher in dispatchers]
    assert Counter(broker.take_ids(fleet.queue)) == Counter(ids)
    assert sum(count > 0 for count in sent) > 1, "expected several dispatchers to send tasks"
    stats = delayed.queue.stats()
    assert (stats.waiting, stats.in_flight, stats.dead) == (0, 0, 0)
