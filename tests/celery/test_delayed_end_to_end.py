"""DurableTasks with a real worker: a delayed task runs once, not early, and returns its result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, chord, group
from celery.exceptions import TaskRevokedError

from redis_queue.celery.stored_tasks import StoredTasks
from tests.support.celery.brokers import Broker, close_results
from tests.support.celery.canvas_app import VARIABLE, make
from tests.support.celery.processes import CeleryProcess
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

pytestmark = [
    # Celery's own call when it marks a task as revoked.
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")
]

WITHIN = 15.0
SOON = 0.2

Sign = Callable[..., Any]


def serve(server: RedisServer, broker: Broker, backend: str) -> Iterator[Celery]:
    """Yield the app of a client while a worker of the same app runs."""
    settings = broker.settings(
        redis_queue_url=server.url,
        # Each app has its own delay queue: a worker sends due entries to its own broker.
        redis_queue_delay_queue=broker.name("delayed"),
        result_backend=backend,
        accept_content=["json", "yaml", "msgpack"],
        control_exchange=broker.name("control"),
        event_exchange=broker.name("events"),
        broker_connection_retry_on_startup=True,
    )
    app = make(settings)
    arguments = ("worker", "--pool", "threads", "--concurrency", "4", "--loglevel", "INFO", "--without-gossip")
    with CeleryProcess(
        *("-A", "tests.support.celery.canvas_app"),
        *arguments,
        "--without-mingle",
        environment={VARIABLE: json.dumps(settings)},
    ) as worker:
        worker.wait_for_output("ready.")
        yield app
    close_results(app)
    app.close()


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server that no fixture flushes while a worker runs."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def redis_app(server: RedisServer) -> Iterator[Celery]:
    """Broker, store and results in one Redis."""
    url = f"redis+socket://{server.socket}"
    with Broker(url) as broker:
        yield from serve(server, broker, url)


@pytest.fixture(scope="module")
def rabbitmq_app(server: RedisServer, rabbitmq_url: str) -> Iterator[Celery]:
    """RabbitMQ as the broker, results as messages."""
    with Broker(rabbitmq_url) as broker:
        yield from serve(server, broker, "rpc://")


@pytest.fixture(scope="module")
def database_app(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Celery]:
    """Redis as the broker, results in a database."""
    path = tmp_path_factory.mktemp("results") / "results.sqlite"
    with Broker(f"redis+socket://{server.socket}") as broker:
        yield from serve(server, broker, f"db+sqlite:///{path}")


@pytest.fixture
def sign(redis_app: Celery) -> Sign:
    """Makes signatures of the app's tasks."""
    return signing(redis_app)


def signing(app: Celery) -> Sign:
    return lambda name, *args, **kwargs: app.tasks[f"canvas.{name}"].s(*args, **kwargs)


@pytest.fixture(params=["redis", "rabbitmq", "database"])
def anywhere(request: pytest.FixtureRequest) -> Celery:
    """An app with each kind of broker and result backend."""
    app: Celery = request.getfixturevalue(f"{request.param}_app")
    return app


class TestAnywhere:
    def test_result_can_be_awaited_and_is_not_early(self, anywhere: Celery) -> None:
        due = time.time() + 0.5

        told = signing(anywhere)("tell").apply_async(countdown=0.5).get(timeout=WITHIN)

        assert told["stored"]
        assert due <= datetime.fromisoformat(told["eta"]).timestamp() < due + WITHIN
        assert due <= told["ran"] < due + WITHIN

    def test_a_retry_keeps_its_id(self, anywhere: Celery) -> None:
        result = signing(anywhere)("retry", 2, SOON).apply_async(countdown=SOON)

        assert result.get(timeout=WITHIN) == [2, result.id, True]

    def test_a_retry_backs_off(self, anywhere: Celery) -> None:
        begun = time.monotonic()

        assert signing(anywhere)("autoretry", 1).apply_async(countdown=SOON).get(timeout=WITHIN) == 1
        assert time.monotonic() - begun >= 1.2

    def test_a_later_step_of_a_chain_waits_in_the_store(self, anywhere: Celery) -> None:
        sign = signing(anywhere)
        steps = chain(sign("add", 1, 2).set(countdown=SOON), sign("tell").set(countdown=SOON))

        told = steps.apply_async().get(timeout=WITHIN)

        assert told["stored"]
        assert told["parent"] == told["root"]

    def test_task_that_expires_before_its_due_time_is_revoked(self, anywhere: Celery, tmp_path: Path) -> None:
        file = tmp_path / "ran"
        result = signing(anywhere)("append", 1, str(file)).apply_async(countdown=0.6, expires=0.1)

        with pytest.raises(TaskRevokedError):
            result.get(timeout=WITHIN)
        assert result.state == "REVOKED"
        assert not file.exists()

    def test_a_cancelled_task_is_revoked_and_does_not_run(self, anywhere: Celery, tmp_path: Path) -> None:
        file = tmp_path / "ran"
        result = signing(anywhere)("append", "cancelled", str(file)).apply_async(countdown=0.5)
        after = signing(anywhere)("append", "after", str(file)).apply_async(countdown=0.7)

        assert StoredTasks.of(anywhere).cancel(result.id)
        assert not StoredTasks.of(anywhere).cancel(result.id)

        after.get(timeout=WITHIN)
        assert file.read_text() == "after\n"


class TestCanvas:
    def test_group(self, sign: Sign) -> None:
        members = group(sign("add", n, n) for n in range(5))

        assert members.apply_async(countdown=SOON).get(timeout=WITHIN) == [0, 2, 4, 6, 8]

    def test_chord_whose_header_and_body_are_delayed(self, sign: Sign) -> None:
        header = [sign("add", n, n).set(countdown=SOON) for n in range(3)]

        result = chord(header, sign("total").set(countdown=SOON)).apply_async()

        assert result.get(timeout=WITHIN) == 6

    def test_chord_of_chains_within_a_chain(self, sign: Sign, redis_app: Celery) -> None:
        chains = [chain(sign("add", n, 1).set(countdown=SOON), sign("add", 10).set(countdown=SOON)) for n in range(2)]

        inner = chord(chains, sign("total").set(countdown=SOON), app=redis_app)
        canvas = chain(inner, sign("add", 100).set(countdown=SOON), app=redis_app)

        assert canvas.apply_async().get(timeout=WITHIN) == 123

    def test_task_that_a_task_delays(self, sign: Sign, redis_app: Celery) -> None:
        result = sign("send", SOON).apply_async(countdown=SOON)

        told = redis_app.AsyncResult(result.get(timeout=WITHIN)).get(timeout=WITHIN)

        assert (told["stored"], told["parent"], told["root"]) == (True, result.id, result.id)


class TestOptions:
    @pytest.mark.parametrize(
        "options",
        [
            *({"serializer": name} for name in ("json", "yaml", "msgpack")),
            *({"compression": name} for name in ("gzip", "bzip2", "zlib")),
        ],
        ids=lambda found: "-".join(found.values()),
    )
    def test_every_encoding_of_the_body_is_read(self, anywhere: Celery, options: dict[str, Any]) -> None:
        result = signing(anywhere)("add", "№ \x81", " ✓").apply_async(countdown=0.05, **options)

        assert result.get(timeout=WITHIN) == "№ \x81 ✓"

    def test_reach_the_task(self, sign: Sign) -> None:
        result = sign("tell").apply_async(
            countdown=SOON,
            shadow="a name",
            headers={"tenant": "acme"},
            stamped_headers=["order"],
            order="42",
            priority=3,
        )

        told = result.get(timeout=WITHIN)

        assert (told["shadow"], told["tenant"], told["stamps"]) == ("a name", "acme", {"order": "42"})

    @pytest.mark.parametrize("name", ["add", "fail"])
    def test_callbacks_are_called(self, sign: Sign, redis_app: Celery, tmp_path: Path, name: str) -> None:
        file = tmp_path / "called"
        callback = redis_app.tasks["canvas.append"].s(str(file))
        errback = redis_app.tasks["canvas.append"].si("failed", str(file))
        arguments = (1, 2) if name == "add" else ()

        sign(name, *arguments).apply_async(
            countdown=SOON, link=callback.set(countdown=SOON), link_error=errback.set(countdown=SOON)
        )

        wait_until(file.exists, timeout=WITHIN, description="a callback")
        wait_until(lambda: file.read_text().endswith("\n"), description="the line of the callback")
        assert file.read_text() == ("3\n" if name == "add" else "failed\n")

    def test_ignored_results_are_not_stored(self, sign: Sign, tmp_path: Path) -> None:
        file = tmp_path / "ran"
        result = sign("append", 1, str(file)).apply_async(countdown=SOON, ignore_result=True)

        wait_until(file.exists, timeout=WITHIN, description="the task to run")
        assert sign("add", 1, 2).apply_async(countdown=SOON).get(timeout=WITHIN) == 3
        assert result.state == "PENDING"


def test_same_id_again_runs_only_the_last_call(sign: Sign, redis_app: Celery, tmp_path: Path) -> None:
    file = tmp_path / "saved"
    for number in range(5):
        sign("append", number, str(file)).apply_async(task_id="form-7", countdown=0.3)

    redis_app.AsyncResult("form-7").get(timeout=WITHIN)

    assert file.read_text() == "4\n"
    assert StoredTasks.of(redis_app).get("form-7") is None
