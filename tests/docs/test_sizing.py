"""The figures of the page about sizing hold, within 15 %."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from uuid import uuid4

import pytest
import redis
from celery import Celery, _state

from redis_queue import Flow, RedisQueue, Unique
from redis_queue.celery import DurableTasks
from tests.docs.blocks import DOCS
from tests.support.celery.brokers import close_results
from tests.support.celery.processes import CeleryProcess
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

COUNT = 500
ARGUMENT = "x" * 200
TOLERANCE = 0.15


def figures() -> dict[str, int]:
    """Return the numbers in the second column of the tables."""
    rows = re.findall(r"^\| ([^|]+) \| ([\d,]+) \|", (DOCS / "sizing.md").read_text("utf-8"), re.MULTILINE)
    return {name: int(number.replace(",", "")) for name, number in rows}


@pytest.fixture
def app(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
    app = Celery("sizes", broker=server.url, backend=server.url, set_as_current=False)

    @app.task(name="sizes.plain")
    def plain(text: str) -> None: ...

    @app.task(name="sizes.unique", unique=Unique("{number}"))
    def unique(text: str, number: int) -> None: ...

    @app.task(name="sizes.flow", flow=Flow(limit=0))
    def flow(text: str) -> None: ...

    with closing(app):
        DurableTasks(app)
        yield app
        close_results(app)


def used(client: redis.Redis) -> int:
    return sum(int(client.memory_usage(key, samples=0) or 0) for key in client.scan_iter(count=1000))


def claim(queue: RedisQueue, count: int) -> None:
    queue.put_many(ARGUMENT for _ in range(count))
    assert len(queue.get_many(count, block=False)) == count


def bury(queue: RedisQueue, count: int) -> None:
    queue.put_many(ARGUMENT for _ in range(count))
    for message in queue.get_many(count, block=False):
        queue.nack(message, dead=True, reason="Timeout")


def hold(app: Celery, count: int) -> None:
    """Take messages as kombu does, and acknowledge none."""
    for _ in range(count):
        app.tasks["sizes.plain"].delay(ARGUMENT)
    with app.connection_for_read() as connection:
        simple = connection.SimpleQueue("celery")
        simple.consumer.qos(prefetch_count=0)
        taken = [simple.get(timeout=10) for _ in range(count)]
        assert len(taken) == count
        # Else the end of the connection gives them back.
        connection.default_channel.qos._delivered.clear()


OF_APP: dict[str, Callable[[Celery, int], object]] = {
    "delayed task": lambda app, count: [
        app.tasks["sizes.plain"].apply_async((ARGUMENT,), countdown=86400) for _ in range(count)
    ],
    "delayed task that is unique": lambda app, count: [
        app.tasks["sizes.unique"].apply_async((ARGUMENT, count + number), countdown=86400) for number in range(count)
    ],
    "task in a queue of the broker: Celery's own message": lambda app, count: [
        app.tasks["sizes.plain"].delay(ARGUMENT) for _ in range(count)
    ],
    "task that a worker holds: kombu's own record": hold,
    "task that waits for a place in a flow": lambda app, count: [
        app.tasks["sizes.flow"].delay(ARGUMENT) for _ in range(count)
    ],
    "result in Redis": lambda app, count: [
        app.backend.store_result(str(uuid4()), ARGUMENT, "SUCCESS") for _ in range(count)
    ],
    "schedule": lambda app, count: [
        DurableTasks.of(app).schedules.put(f"schedule-{count}-{number}", "every 60 s", "sizes.plain", args=("x",))
        for number in range(count)
    ],
}
OF_QUEUE: dict[str, Callable[[RedisQueue, int], object]] = {
    "message of a `RedisQueue`, ready": lambda queue, count: queue.put_many(ARGUMENT for _ in range(count)),
    "message of a `RedisQueue`, in flight": claim,
    "dead letter of a `RedisQueue`": bury,
}


def bytes_each(client: redis.Redis, store: Callable[[int], object]) -> float:
    # Once for what is there once, such as the declaration of a queue.
    store(1)
    before = used(client)
    store(COUNT)
    return (used(client) - before) / COUNT


@pytest.mark.filterwarnings("ignore:Call to deprecated:DeprecationWarning")  # by Celery's result backend
@pytest.mark.parametrize("name", OF_APP)
def test_the_bytes_of_tasks(name: str, app: Celery, server: RedisServer) -> None:
    with server.client() as client:
        found = bytes_each(client, lambda count: OF_APP[name](app, count))
    assert found == pytest.approx(figures()[name], rel=TOLERANCE)


@pytest.mark.parametrize("name", OF_QUEUE)
def test_the_bytes_of_messages(name: str, server: RedisServer) -> None:
    with server.client() as client:
        queue = RedisQueue("sizes", client, lease=3600)
        found = bytes_each(client, lambda count: OF_QUEUE[name](queue, count))
    assert found == pytest.approx(figures()[name], rel=TOLERANCE)


def test_the_connections_of_an_idle_worker(server: RedisServer) -> None:
    urls = {"BROKER_URL": server.url, "STORE_URL": server.url, "NOTES_URL": server.url}
    environment = {**urls, "ATOMIC_FETCH": "1"}
    wanted = figures()["worker, with its keeper"]
    with (
        server.client() as client,
        CeleryProcess(
            *("-A", "tests.support.celery.full_app", "worker", "--pool", "prefork", "--concurrency", "2"),
            *("--loglevel", "INFO"),
            environment=environment,
            beat=False,
        ).ready(),
    ):
        wait_until(
            lambda: abs(len(client.client_list()) - 1 - wanted) <= TOLERANCE * wanted,
            description=f"about {wanted} connections, found {len(client.client_list()) - 1}",
        )


def test_every_figure_of_the_table_is_measured() -> None:
    text = (DOCS / "sizing.md").read_text("utf-8")
    section = text[text.index("## Memory of Redis") : text.index("The argument is in them once")]
    rows = re.findall(r"^\| ([^|]+) \| [\d,]+ \|", section, re.MULTILINE)
    assert rows == [*OF_APP, *OF_QUEUE]
