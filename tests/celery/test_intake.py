"""What a worker does with a message from its arrival until its task starts: one order, lost leases, the request."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from celery.app.trace import build_tracer
from celery.exceptions import TaskRevokedError
from celery.worker import WorkController
from celery.worker.request import Request
from celery.worker.strategy import proto1_to_proto2
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from redis_queue import CancelOutcome
from redis_queue.celery import Dispatcher, DurableTasks, intake, push_task
from redis_queue.celery.leases.step import LeaseStep
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import CALL, ETA
from redis_queue.celery.stored_tasks import StoredTasks
from tests.support.celery.brokers import Broker
from tests.support.marks import thorough

WORKER = """
from celery import Celery
from redis_queue.celery import DurableTasks

app = Celery("tests", broker="redis://localhost:1", set_as_current=False)
app.conf.redis_queue_url = "redis://localhost:1"
DurableTasks(app)
handler = app.Worker(pool="solo").consumer.create_task_handler()
while "handle" in handler.__code__.co_freevars:
    print(handler.__module__.split("redis_queue.")[1])
    handler = handler.__closure__[handler.__code__.co_freevars.index("handle")].cell_contents
print(handler.__module__)
"""
"""Prints the module of each handler of a message, the first one first. Connects to no server."""

ORDER = (
    "celery.leases.poison",
    "celery.control.revokes",
    "celery.store_consumer.step",
    "celery.monitor.step",
    "celery.worker.consumer.consumer",
)


def handlers(seed: int) -> tuple[str, ...]:
    """Return the handlers of a new worker process."""
    # Classes are hashed by their addresses, which a random layout of the memory changes as well.
    environment = {"PYTHONHASHSEED": str(seed)}
    return tuple(subprocess.check_output([sys.executable, "-c", WORKER], env=environment, text=True).split())


# Celery keeps the steps of a worker in a set: there were five orders in twelve starts.
@pytest.mark.parametrize("processes", [12, *thorough(30)])
def test_each_worker_process_handles_a_message_in_the_same_order(processes: int) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert Counter(pool.map(handlers, range(processes))) == {ORDER: processes}


class Waiting:
    """A task that waits for a slot in the pool."""

    def __init__(self, number: int, tag: str) -> None:
        self.number, self.id, self.message = number, str(number), SimpleNamespace(delivery_tag=tag, channel=None)
        self.task = SimpleNamespace(acks_late=True)

    def execute_using_pool(self, pool: list[int]) -> None:
        """Start, unless it was revoked."""
        if self.message.delivery_tag == "revoked":
            raise TaskRevokedError(self.id)
        pool.append(self.number)

    def acknowledge(self) -> None:
        """Do nothing."""


def consumer_of(worker: Any, is_ours: Callable[[str], bool], count: Callable[[str], Any]) -> Any:
    """Return the consumer of a worker whose pool has a semaphore."""
    consumer = SimpleNamespace(
        controller=worker, on_task_request=None, connection_errors=(OSError,), channel_errors=(redis.ResponseError,)
    )
    consumer.redis_queue_lease_step = leases = SimpleNamespace(_consumer=consumer, is_ours=is_ours, count=count)
    leases.may_be_ours = partial(LeaseStep.may_be_ours, leases)
    return consumer


@pytest.mark.parametrize("error", [OSError("away"), redis.OutOfMemoryError("full")])
def test_tasks_start_if_their_lease_cannot_be_checked(error: Exception) -> None:
    def ask(_tag: str) -> bool:
        raise error

    started: list[int] = []
    worker = SimpleNamespace(_process_task=lambda request: started.append(request.number), pool=None)
    intake.StartGuard(consumer_of(worker, ask, pytest.fail))
    worker._process_task(Waiting(7, "uncertain"))
    assert started == [7]


@pytest.mark.parametrize("kind", ["lost", "revoked"])
def test_any_number_of_tasks_that_do_not_start_can_wait_for_one_slot(kind: str) -> None:
    ready: deque[Any] = deque()
    places = LaxBoundedSemaphore(1)
    started: list[int] = []
    dropped: list[str] = []
    worker = SimpleNamespace(pool=started, _quick_release=places.release, semaphore=places)
    worker.hub = SimpleNamespace(call_soon=ready.append)
    worker._process_task = partial(WorkController._process_task, worker)
    intake.StartGuard(consumer_of(worker, lambda tag: tag != "lost", dropped.append))
    tags = [kind] * 2000 + ["ours"]
    places.acquire(lambda: None)
    for number, tag in enumerate(tags):
        places.acquire(worker._process_task, Waiting(number, tag))
    places.release()
    while ready:
        ready.popleft()()
    assert (started, len(dropped)) == ([2000], 2000 if kind == "lost" else 0)


HOUR = 3600
ETA_OF_TEST = datetime(2027, 1, 15, 12, tzinfo=timezone(timedelta(hours=1)))


@pytest.fixture
def broker(redis_url: str, client: redis.Redis) -> Iterator[Broker]:
    with Broker(f"redis+socket://{redis_url.removeprefix('unix://').partition('?')[0]}") as broker:
        yield broker


@pytest.fixture
def make(broker: Broker, redis_url: str) -> Iterator[Callable[..., Celery]]:
    """Makes apps with one task, `shop.note`, that records its request and retries if asked to."""
    apps: list[Celery] = []

    def make(**settings: Any) -> Celery:
        app = broker.app(redis_queue_url=redis_url, result_backend="disabled://", **settings)
        app.seen = []
        apps.append(app)

        @app.task(bind=True, name="shop.note", shared=False)  # type: ignore[untyped-decorator]
        def note(self: Any, retry_in: float | None = None, **options: Any) -> None:
            request = self.request
            app.seen.append({"eta": request.eta, "expires": request.expires, "headers": request.headers})
            if retry_in is not None and request.retries == 0:
                raise self.retry(countdown=retry_in)

        return app

    yield make
    for app in apps:
        closing(app).__exit__(None, None, None)


@pytest.fixture
def app(make: Callable[..., Celery]) -> Celery:
    app = make()
    DurableTasks(app, leases=False)
    return app


def run(app: Celery, message: Any) -> dict[str, Any]:
    """Run a message like a worker; return the request that the task saw."""
    headers: dict[str, Any] = message.headers
    body: Any = None
    if "task" not in headers:
        body, headers, _, _ = proto1_to_proto2(message, message.payload)
    task = app.tasks[headers["task"]]
    request = Request(message, app=app, task=task, headers=headers, body=body, decoded=body is not None)
    args, kwargs, embed = request._payload
    known = {**request.request_dict, **embed, "is_eager": False}
    build_tracer(task.name, task, app=app)(request.id, args, kwargs, known)
    return dict(app.seen[-1])


def due(app: Celery, broker: Broker) -> list[Any]:
    """Make all entries due, dispatch them and return the messages."""
    delayed = DurableTasks(app, leases=False)
    for entry in delayed.list():
        assert delayed.run_now(entry.id)
    dispatcher = Dispatcher(app, delayed.queue)
    dispatcher.run()
    dispatcher.close()
    return list(broker.take(app.conf.task_default_queue))


def stored(app: Celery) -> dict[str, Envelope]:
    return {entry.id: Envelope.unpack(entry.payload, entry.id, entry.headers) for entry in StoredTasks.of(app).queue}


class TestEta:
    @pytest.mark.parametrize("protocol", [1, 2])
    @pytest.mark.parametrize("headers", [None, {"tenant": "acme"}])
    def test_is_that_of_stock_celery(
        self, make: Callable[..., Celery], broker: Broker, protocol: int, headers: Any
    ) -> None:
        options = {"eta": ETA_OF_TEST, "expires": ETA_OF_TEST + timedelta(days=1), "headers": headers}
        stock, app = make(task_protocol=protocol), make(task_protocol=protocol)
        DurableTasks(app, leases=False)
        stock.send_task("shop.note", **options)
        app.send_task("shop.note", **options)

        (expected,) = broker.take(stock.conf.task_default_queue)
        (message,) = due(app, broker)

        assert run(app, message) == run(stock, expected)
        assert app.seen[0]["eta"] == ETA_OF_TEST.isoformat()
        # A worker without the extension finds no eta, so it does not wait a second time.
        assert not message.headers.get("eta")

    def test_of_a_countdown_is_the_time_that_the_client_intended(self, app: Celery, broker: Broker) -> None:
        app.send_task("shop.note", countdown=HOUR)
        (message,) = due(app, broker)
        eta = datetime.fromisoformat(run(app, message)["eta"])
        assert abs(eta - datetime.now(timezone.utc) - timedelta(hours=1)) < timedelta(minutes=5)

    @pytest.mark.parametrize("again", [HOUR, 0])
    def test_of_a_retry_is_that_of_the_retry(self, app: Celery, broker: Broker, again: int) -> None:
        app.send_task("shop.note", kwargs={"retry_in": again}, eta=ETA_OF_TEST)
        (first,) = due(app, broker)
        run(app, first)
        (second,) = due(app, broker)
        eta = run(app, second)["eta"]
        assert (eta is None) is (again == 0)
        assert eta != app.seen[0]["eta"]
        assert bool({ETA, CALL} & set(second.headers)) is (again > 0)

    def test_of_a_stored_call_is_its_due_time(self, app: Celery, broker: Broker) -> None:
        push_task(StoredTasks.of(app).queue, "shop.note", due_at=datetime(2020, 1, 1, tzinfo=timezone.utc))
        (message,) = due(app, broker)
        assert run(app, message)["eta"][:4] in ("2020", str(datetime.now(timezone.utc).year))

    @pytest.mark.parametrize("eta", [5, "x" * 100, None, ["2027"]])
    def test_without_a_value_is_omitted(self, app: Celery, broker: Broker, eta: Any) -> None:
        app.send_task("shop.note", headers={ETA: eta})
        (message,) = broker.take(app.conf.task_default_queue)
        assert run(app, message)["eta"] is None


class TestRetry:
    def test_keeps_a_newer_call_with_its_id_and_both_run(self, app: Celery, broker: Broker) -> None:
        app.send_task("shop.note", (HOUR,), task_id="order-42", countdown=60)
        (message,) = due(app, broker)
        app.send_task("shop.note", kwargs={"newer": True}, task_id="order-42", countdown=HOUR)

        run(app, message)

        found = stored(app)
        assert {id_: envelope.headers["retries"] for id_, envelope in found.items()} == {
            "order-42": 0,
            "order-42~retry": 1,
        }
        assert {envelope.id for envelope in found.values()} == {"order-42"}
        assert sorted(message.headers["kwargsrepr"] for message in due(app, broker)) == ["{'newer': True}", "{}"]

    def test_of_an_undelayed_task_keeps_the_waiting_entry(self, app: Celery, broker: Broker) -> None:
        app.send_task("shop.note", (HOUR,), task_id="order-42")
        (message,) = broker.take(app.conf.task_default_queue)
        app.send_task("shop.note", task_id="order-42", countdown=HOUR)
        run(app, message)
        assert set(stored(app)) == {"order-42", "order-42~retry"}

    @pytest.mark.parametrize("delay", [None, 60])
    def test_stored_before_a_crash_is_replaced(self, app: Celery, broker: Broker, delay: int | None) -> None:
        app.send_task("shop.note", (HOUR,), task_id="order-42", countdown=delay)
        (message,) = due(app, broker) if delay else broker.take(app.conf.task_default_queue)
        run(app, message)
        # The worker died before the acknowledgement.
        message.delivery_info["redelivered"] = True
        run(app, message)
        assert set(stored(app)) == {"order-42"}

    def test_of_several_older_calls_all_run(self, app: Celery, broker: Broker) -> None:
        messages = []
        for _ in range(4):
            app.send_task("shop.note", (HOUR,), task_id="order-42", countdown=60)
            messages += due(app, broker)
        for message in messages:
            run(app, message)
        assert [envelope.id for envelope in stored(app).values()] == ["order-42"] * 4
        assert len({envelope.headers[CALL] for envelope in stored(app).values()}) == 4

    def test_is_cancelled_with_another_call_of_the_same_id(self, app: Celery, broker: Broker) -> None:
        app.send_task("shop.note", (HOUR,), task_id="order-42", countdown=60)
        (message,) = due(app, broker)
        app.send_task("shop.note", task_id="order-42", countdown=HOUR)
        run(app, message)
        assert StoredTasks.of(app).cancel("order-42")
        assert stored(app) == {}

    def test_is_removed_by_a_cancel_and_a_dispatched_call_may_run(self, app: Celery, broker: Broker) -> None:
        app.send_task("shop.note", (HOUR,), task_id="order-42", countdown=60)
        (message,) = due(app, broker)
        app.send_task("shop.note", task_id="order-42", countdown=60)
        run(app, message)
        delayed = DurableTasks(app, leases=False)
        assert delayed.run_now("order-42")
        assert Dispatcher(app, delayed.queue).run().sent == 1
        assert delayed.cancel("order-42") is CancelOutcome.MAYBE_SENT
        assert stored(app) == {}

    def test_keeps_a_dead_letter_of_another_call(self, app: Celery, broker: Broker) -> None:
        app.send_task("shop.note", (HOUR,), task_id="order-42", countdown=60)
        (message,) = due(app, broker)
        app.send_task("shop.note", task_id="order-42", countdown=HOUR)
        queue = StoredTasks.of(app).queue
        (entry,) = queue.moves.claim_batch(early=True).entries
        queue.nack(entry, dead=True, reason="no queue")
        run(app, message)
        assert [letter.id for letter in queue.dead_letters()] == ["order-42"]
        assert set(stored(app)) == {"order-42~retry"}


@pytest.mark.parametrize("length", [8, 255])
def test_second_entry_of_an_id_has_a_valid_id(app: Celery, broker: Broker, length: int) -> None:
    task_id = "x" * length
    app.send_task("shop.note", (HOUR,), task_id=task_id, countdown=60)
    (message,) = due(app, broker)
    app.send_task("shop.note", task_id=task_id, countdown=HOUR)
    run(app, message)
    assert [envelope.id for envelope in stored(app).values()] == [task_id] * 2
    assert [message.headers["id"] for message in due(app, broker)] == [task_id] * 2
