"""Django's tasks with RedisQueueBackend: real workers, durable run_after, results, and flags that tell the truth."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
import redis
from celery import Celery

from redis_queue.celery import DurableTasks, TaskCall
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.celery.worker import check_flows
from redis_queue.errors import ConfigurationError, StoreUnavailableError
from tests.support.celery.brokers import Broker, declared
from tests.support.celery.processes import CeleryProcess
from tests.support.django.project import rows, write
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

BACKEND = "redis_queue.contrib.django.task_backend.RedisQueueBackend"

pytestmark = [
    pytest.mark.usefixtures("shop"),
    pytest.mark.filterwarnings("ignore:Call to deprecated setex"),  # Celery's own
]


def tasks_setting(**options: Any) -> dict[str, Any]:
    from redis_queue.contrib.django.task_backend import FRAMEWORK

    elsewhere = f"{FRAMEWORK}.backends.dummy.DummyBackend"
    return {
        "default": {"BACKEND": BACKEND, "QUEUES": [], "OPTIONS": options},
        "elsewhere": {"BACKEND": elsewhere, "QUEUES": []},
    }


@contextmanager
def sends(app: Celery, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Iterator[Any]:
    """Let Django of this process send with *app*; yield the module of the tasks."""
    from django.test import override_settings

    from redis_queue.contrib.django import task_backend

    monkeypatch.setattr(task_backend, "celery_app", lambda: app)
    for module in ("transfer", "calls"):
        monkeypatch.setattr(f"redis_queue.contrib.django.outbox.{module}.celery_app", lambda: app)
    with override_settings(TASKS=tasks_setting(**options)):
        yield import_module("tests.support.django.tasked.tasks")


@pytest.fixture
def sender(app: Celery) -> Celery:
    """An app on one Redis with durable delays."""
    DurableTasks(app)
    return app


@pytest.fixture
def tasks(sender: Celery, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The tasks, sent by *sender*."""
    with sends(sender, monkeypatch) as tasks:
        yield tasks


def worker(app: Celery, *arguments: str, **settings: Any) -> CeleryProcess:
    """A worker of the project with the servers of *app*."""
    conf = {
        "TASKS": tasks_setting(),
        "CELERY_BROKER_URL": app.conf.broker_url,
        "CELERY_RESULT_BACKEND": app.conf.result_backend,
        "CELERY_REDIS_QUEUE_URL": app.conf.get("redis_queue_url"),
        "CELERY_TASK_DEFAULT_QUEUE": app.conf.task_default_queue,
        "CELERY_BROKER_TRANSPORT_OPTIONS": app.conf.broker_transport_options or {},
        **settings,
    }
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.support.django.tasked.settings",
        "DJANGO_TASKED": json.dumps({name: value for name, value in conf.items() if value is not None}),
    }
    return CeleryProcess(
        "-A", "tests.support.django.tasked", "worker", "-l", "INFO", *arguments, environment=environment, beat=False
    )


def finished(result: Any) -> Any:
    """Wait until the task of *result* has finished; return its refreshed result."""

    def is_finished() -> bool:
        result.refresh()
        return bool(result.is_finished)

    wait_until(is_finished, description=f"the end of {result.task.name}")
    return result


def request_of(task_id: str, retries: int = 0) -> Any:
    """What Celery tells a task that it runs."""
    return SimpleNamespace(
        id=task_id, task="add", hostname="one", retries=retries, ignore_result=False, get=lambda _: None
    )


def test_a_worker_runs_tasks_and_keeps_their_results(sender: Celery, tasks: Any) -> None:
    added = tasks.add.enqueue(1, second=2)
    assert (added.status, added.attempts, tasks.add.get_result(added.id)) == ("READY", 0, added)
    later = asyncio.run(tasks.add_later.aenqueue(3, 4))
    described = tasks.describe.using(queue_name="mail", priority=50).enqueue("a", "b")
    failed, left, unserializable = tasks.fail.enqueue("x"), tasks.leave.enqueue(), tasks.return_object.enqueue()
    queues = f"{sender.conf.task_default_queue},mail"
    with worker(sender, "-c1", "-Q", queues, CELERY_TASK_IGNORE_RESULT=True).ready() as running:
        assert finished(added).return_value == 3
        assert finished(later).return_value == 7
        assert finished(described).return_value == {
            "attempt": 1,
            "id": described.id,
            "status": "RUNNING",
            "queue_name": "mail",
            "priority": 50,
            "backend": "default",
            "enqueued": True,
            "names": ["a", "b"],
        }
        for result, error, text in (
            (failed, "builtins.KeyError", "KeyError: 'x'\n"),
            (left, "builtins.RuntimeError", "the task called sys.exit(3)\n"),
            (unserializable, "builtins.TypeError", "Unsupported type: <class 'object'>\n"),
        ):
            assert finished(result).status == "FAILED"
            assert [error.exception_class_path for error in result.errors] == [error]
            assert result.errors[0].traceback.endswith(text)
        running.wait_for_output(f"id={added.id} path={tasks.add.module_path} state=SUCCESSFUL")
        running.wait_for_output(f"id={failed.id} path={tasks.fail.module_path} state=FAILED")
    assert added.enqueued_at <= added.started_at == added.last_attempted_at <= added.finished_at
    assert (added.args, added.kwargs, added.attempts, added.errors) == ([1], {"second": 2}, 1, [])
    assert [name.partition("@")[0] for name in added.worker_ids] == ["celery"]
    assert described.task == tasks.describe.using(queue_name="mail", priority=50)
    assert asyncio.run(tasks.add_later.aget_result(later.id)) == later


def test_a_worker_knows_tasks_that_are_declared_for_another_backend(sender: Celery, tasks: Any) -> None:
    setting = tasks_setting()
    result = tasks.add.enqueue(1)
    with worker(sender, "-c1", TASKS={"default": setting["elsewhere"], "queue": setting["default"]}).ready():
        assert finished(result).return_value == 1


def test_a_result_that_is_read_while_its_task_runs_has_its_start(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    with sends(app, monkeypatch) as tasks:
        added, get, begun = tasks.add.enqueue(1), app.backend.get_task_meta, list[str]()

        def slow(id_: str, **options: Any) -> Any:
            found = get(id_, **options)
            if not begun:
                begun.append(id_)
                with worker(app, "-c1").ready():
                    wait_until(lambda: get(added.id, cache=False)["status"] == "SUCCESS", description="its end")
            return found

        monkeypatch.setattr(app.backend, "get_task_meta", slow)
        added.refresh()
        assert begun
        assert (added.status == "SUCCESSFUL") <= (added.started_at is not None)


def test_results_in_a_database(app: Celery, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = f"db+sqlite:///{tmp_path}/results.sqlite"
    sender = Celery("tests", broker=app.conf.broker_url, backend=url, set_as_current=False)
    sender.conf.timezone = "America/Chicago"
    DurableTasks(sender)
    with sends(sender, monkeypatch) as tasks:
        added, failed = tasks.add.enqueue(1), tasks.fail.enqueue("x")
        later = tasks.add.using(run_after=datetime.now(timezone.utc) + timedelta(days=3)).enqueue(4)
        with worker(sender, "-c1", TIME_ZONE="America/Chicago").ready():
            assert finished(added).return_value == 1
            assert (finished(failed).status, failed.errors[0].exception_class) == ("FAILED", KeyError)
        assert added.started_at <= added.finished_at <= datetime.now(timezone.utc)
        assert tasks.add.get_result(later.id) == later


@pytest.mark.parametrize("outbox", [False, True], ids=["at once", "outbox"])
def test_run_after_survives_the_death_of_a_worker(
    sender: Celery, tables: Any, monkeypatch: pytest.MonkeyPatch, outbox: bool
) -> None:
    stored = StoredTasks.of(sender)
    with sends(sender, monkeypatch, on_commit="outbox" if outbox else False) as tasks:
        run_after = datetime.now(timezone.utc) + timedelta(hours=1)
        result = tasks.now.using(run_after=run_after).enqueue()
        relay_rest()
        with worker(sender, "-c1").ready() as first:
            assert stored.get(result.id) is not None
            first.kill()
        assert tasks.now.get_result(result.id).task.run_after == run_after
        due = datetime.now(timezone.utc) + timedelta(seconds=1)
        assert stored.reschedule(result.id, eta=due)
        with worker(sender, "-c1").ready():
            assert finished(result).return_value >= due.timestamp()
        assert (result.status, result.attempts, stored.count()) == ("SUCCESSFUL", 1, 0)


def test_a_task_that_kills_its_worker_runs_again_as_attempt_2(sender: Celery, tasks: Any) -> None:
    result = tasks.die_once.enqueue()
    with worker(sender, "-c1", CELERY_REDIS_QUEUE_TASK_LEASE=2, CELERY_TASK_ACKS_LATE=True).ready():
        wait_until(lambda: len(tasks.die_once.get_result(result.id).worker_ids) == 2, description="attempt 2")
        wait_until(
            lambda: tasks.die_once.get_result(result.id).status == "SUCCESSFUL", description="the end of attempt 2"
        )
    result.refresh()
    assert (result.return_value, result.attempts, result.errors) == (2, 2, [])
    assert result.enqueued_at <= result.started_at < result.last_attempted_at <= result.finished_at


@pytest.fixture(params=["redis", "rabbitmq"])
def prioritized(request: pytest.FixtureRequest, sender: Celery, redis_url: str) -> Iterator[Celery]:
    """An app on a broker with priorities, and with a result backend."""
    url = sender.conf.result_backend
    with Broker(request.getfixturevalue("rabbitmq_url") if request.param == "rabbitmq" else url) as broker:
        app = broker.app(result_backend=url, redis_queue_url=redis_url, task_queue_max_priority=10)
        DurableTasks(app)
        yield app


def test_urgent_tasks_go_first(prioritized: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    with sends(prioritized, monkeypatch) as tasks:
        sent = {number: tasks.add.using(priority=number).enqueue(number) for number in (-100, -40, 0, 100)}
        delayed = tasks.add.using(priority=100, run_after=datetime.now(timezone.utc)).enqueue(5)
        settings = {"CELERY_WORKER_PREFETCH_MULTIPLIER": 1, "CELERY_TASK_QUEUE_MAX_PRIORITY": 10}
        with worker(prioritized, "-c1", **settings).ready():
            started = {number: finished(result).started_at for number, result in sent.items()}
            assert finished(delayed).return_value == 5
    assert sorted(started, key=started.__getitem__) == [100, 0, -40, -100]


def brokered(url: str = "redis://localhost:1", **settings: Any) -> Celery:
    """An app that connects to nobody."""
    app = Celery("tests", broker=url, set_as_current=False)
    app.conf.update(redis_queue_url="redis://localhost:1", **settings)
    return app


@pytest.mark.parametrize(
    ("url", "settings", "parts", "flags"),
    [
        ("redis://localhost:1", {}, {}, ""),
        ("redis://localhost:1", {"result_backend": "redis://localhost:1"}, {"delays": True}, "defer get_result"),
        ("redis://localhost:1", {}, {"delays": False}, ""),
        ("redis://localhost:1", {"broker_transport_options": {"priority_steps": [0]}}, {}, "-priority"),
        ("sentinel://localhost:1", {"result_backend": "rpc"}, {}, ""),
        ("amqp://localhost:1", {}, {"delays": True}, "defer -priority"),
        ("amqp://localhost:1", {"task_queue_max_priority": 5}, {}, ""),
        ("amqp://localhost:1", {"task_queues": [declared("celery", queue_arguments={"x-max-priority": 5})]}, {}, ""),
        ("amqp://localhost:1", {"task_queues": [declared("celery")]}, {}, "-priority"),
        ("memory://", {"result_backend": "cache+memory://"}, {}, "get_result -priority"),
        ("redis://localhost:1", {"result_backend": "redis://localhost:1", "task_always_eager": True}, {}, ""),
    ],
)
def test_the_flags_are_those_of_the_app(
    monkeypatch: pytest.MonkeyPatch, url: str, settings: dict[str, Any], parts: dict[str, bool], flags: str
) -> None:
    from redis_queue.contrib.django import task_backend

    app = brokered(url, **settings)
    if parts:
        DurableTasks(app, **parts)
    monkeypatch.setattr(task_backend, "celery_app", lambda: app)
    backend = task_backend.RedisQueueBackend("default", {})
    expected = {*flags.split()}
    assert backend.supports_async_task
    assert backend.supports_defer is ("defer" in expected)
    assert backend.supports_get_result is ("get_result" in expected)
    assert backend.supports_priority is ("-priority" not in expected)


def test_what_a_flag_denies_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions = import_module(f"{framework()}.exceptions")
    invalid = getattr(exceptions, "InvalidTask", None) or exceptions.InvalidTaskError
    with sends(brokered("memory://"), monkeypatch) as tasks:
        with pytest.raises(invalid, match="priority"):
            tasks.add.using(priority=1)
        with pytest.raises(invalid, match="run_after"):
            tasks.add.using(run_after=datetime.now(timezone.utc))
        with pytest.raises(NotImplementedError):
            tasks.add.get_result("x")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ("x", "TASKS['default']['OPTIONS']='x': must be a dict"),
        ({"on_comit": True}, "TASKS['default']['OPTIONS']['on_comit']: unknown option: did you mean 'on_commit'?"),
        ({"using": "default"}, "TASKS['default']['OPTIONS']['using']: needs 'on_commit', True or 'outbox'"),
        (
            {"on_commit": True, "using": "orders"},
            "TASKS['default']['OPTIONS']['using']='orders': must be a database of DATABASES: default",
        ),
        ({"on_commit": "later"}, "TASKS['default']['OPTIONS']['on_commit']='later': must be True, False or 'outbox'"),
    ],
)
def test_wrong_options_are_refused(options: Any, error: str) -> None:
    from redis_queue.contrib.django.task_backend import RedisQueueBackend

    with pytest.raises(ConfigurationError) as raised:
        RedisQueueBackend("default", {"OPTIONS": options})
    assert str(raised.value) == error


def test_check_misses_the_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.apps import apps

    with sends(brokered(), monkeypatch, on_commit="outbox") as tasks:
        backend = tasks.add.get_backend()
        assert [*backend.check()] == []
        monkeypatch.setattr(apps, "is_installed", lambda name: name != "redis_queue.contrib.django.outbox")
        (found,) = backend.check()
    assert found.msg == "TASKS['default'] uses the outbox, which is not installed."


OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_the_asynchronous_orm_recovers_from_a_lost_connection(
    sender: Celery, monkeypatch: pytest.MonkeyPatch, postgresql: str, pool: str
) -> None:
    from examples.shop.settings import database

    installed = ["redis_queue.contrib.django.outbox", "redis_queue.contrib.django", "tests.support.django.tasked"]
    options = {"DATABASES": {"default": {**database(postgresql), "CONN_MAX_AGE": None}}, "INSTALLED_APPS": installed}
    with (
        sends(sender, monkeypatch) as tasks,
        psycopg.connect(postgresql, autocommit=True) as server,
        worker(sender, "-c1", "--pool", pool, **options).ready(),
    ):
        for _ in range(2):
            assert finished(tasks.count_by_django.enqueue()).return_value == 0
            assert sender.send_task("count_by_celery").get(timeout=30) == 0
            server.execute("SELECT pg_terminate_backend(pid) " + OTHERS)
        # Celery closes the connections of a task when it has ended.
        wait_until(lambda: not server.execute("SELECT pid " + OTHERS).fetchall(), description="no connection")


def test_a_soft_limit_ends_an_async_task(sender: Celery, tasks: Any) -> None:
    with worker(sender, "-c1", CELERY_TASK_SOFT_TIME_LIMIT=1).ready() as running:
        result = finished(tasks.rest.enqueue(50))
        assert result.errors[0].exception_class_path == "billiard.exceptions.SoftTimeLimitExceeded"
        running.wait_for_output("the rest has ended")


@pytest.fixture
def orders(tables: Any, tmp_path: Path) -> Iterator[Any]:
    """A second database of the project."""
    from django.core.management import call_command
    from django.db import connections

    del tables
    connections.settings["orders"] = {**connections.settings["default"], "NAME": str(tmp_path / "orders.sqlite3")}
    try:
        call_command("migrate", database="orders", verbosity=0)
        yield connections["orders"]
    finally:
        connections["orders"].close()
        del connections["orders"], connections.settings["orders"]


class OrdersRouter:
    """Sends the outbox to the database of the orders, and permits its table nowhere else."""

    def db_for_write(self, model: Any, **_: Any) -> str | None:
        return "orders" if model._meta.app_label == "redis_queue_outbox" else None

    def allow_migrate(self, db: str, app_label: str, **_: Any) -> bool | None:
        return db == "orders" if app_label == "redis_queue_outbox" else None


@pytest.mark.parametrize(
    ("options", "routers"),
    [
        ({"on_commit": True, "using": "orders"}, []),
        ({"on_commit": "outbox", "using": "orders"}, []),
        ({"on_commit": "outbox"}, [f"{__name__}.OrdersRouter"]),
    ],
    ids=["commit", "outbox", "outbox by a router"],
)
def test_a_task_belongs_to_the_transaction_of_its_database(
    sender: Celery, orders: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], routers: list[str]
) -> None:
    from django.db import transaction

    stored = StoredTasks.of(sender)
    run_after = datetime.now(timezone.utc) + timedelta(hours=1)
    with override(DATABASE_ROUTERS=routers), sends(sender, monkeypatch, **options) as tasks:
        backend = tasks.add.get_backend()
        assert [*backend.check()] == []
        with transaction.atomic(using="orders"):
            tasks.add.using(run_after=run_after).enqueue(1)
            assert stored.count() == 0
            orders.set_rollback(True)
        assert stored.count() == 0
        with transaction.atomic(using="orders"):
            result = tasks.add.using(run_after=run_after).enqueue(1)
        relay_rest("orders")
        assert [entry.id for entry in stored.list()] == [result.id]


def test_check_finds_an_outbox_that_a_router_forbids(orders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    del orders
    routers = [f"{__name__}.OrdersRouter"]
    with (
        override(DATABASE_ROUTERS=routers),
        sends(brokered(), monkeypatch, on_commit="outbox", using="default") as tasks,
    ):
        (found,) = tasks.add.get_backend().check()
    assert (found.id, "'default', where a router forbids its table" in found.msg) == ("redis_queue.E005", True)


@pytest.mark.parametrize("on_commit", [True, "outbox"])
def test_a_task_belongs_to_its_transaction(
    sender: Celery, tables: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, on_commit: Any
) -> None:
    missing = import_module(f"{framework()}.exceptions").TaskResultDoesNotExist
    enqueued: list[str] = []
    signals = import_module(f"{framework()}.signals")

    def remember(task_result: Any, **_: Any) -> None:
        enqueued.append(task_result.id)

    signals.task_enqueued.connect(remember)
    try:
        with sends(sender, monkeypatch, on_commit=on_commit) as tasks:
            with tables.atomic():
                undone = tasks.add.enqueue(1)
                tables.set_rollback(True)
            with tables.atomic():
                result = tasks.add.enqueue(1)
                with pytest.raises(missing):
                    result.refresh()
                assert (client.dbsize(), enqueued) == (0, [])
            assert enqueued == [result.id]
            assert (tasks.add.get_result(result.id).status, result.enqueued_at is None) == ("READY", False)
            with pytest.raises(missing):
                undone.refresh()
            alone = tasks.add.enqueue(2)
            assert enqueued == [result.id, alone.id]
            relay_rest()
            with worker(sender, "-c1").ready():
                assert (finished(result).return_value, finished(alone).return_value) == (1, 2)
    finally:
        signals.task_enqueued.disconnect(remember)


def test_a_result_is_kept_from_the_due_time(sender: Celery, tasks: Any, client: redis.Redis) -> None:
    sender.conf.result_expires = 100
    sender.backend.expires = 100
    soon = tasks.add.enqueue(1)
    late = tasks.add.using(run_after=datetime.now(timezone.utc) + timedelta(days=3)).enqueue(1)
    assert 90 < client.ttl(f"celery-task-meta-django-task-{soon.id}") <= 100
    assert 90 < client.ttl(f"celery-task-meta-django-task-{late.id}") - 3 * 86400 <= 100
    with override(USE_TZ=False):
        naive = tasks.add.using(run_after=datetime(2100, 1, 1)).enqueue(1)
        assert tasks.add.get_result(naive.id) == naive
        assert naive.task.run_after == datetime(2100, 1, 1)
        assert naive.enqueued_at.tzinfo is None


def test_a_cancelled_task_has_failed_and_a_repeated_one_runs(sender: Celery, tasks: Any) -> None:
    result = tasks.add.using(run_after=datetime.now(timezone.utc) + timedelta(days=3)).enqueue(1)
    assert StoredTasks.of(sender).cancel(result.id)
    result.refresh()
    assert (result.status, result.errors[0].exception_class_path) == ("FAILED", "celery.exceptions.TaskRevokedError")
    backend = tasks.add.get_backend()
    assert backend.run(tasks.add.module_path, request_of(result.id), [1], {}) == 1
    result.refresh()
    assert (result.status, result.worker_ids, result.finished_at, len(result.errors)) == ("RUNNING", ["one"], None, 1)
    sender.backend.store_result(result.id, KeyError("x"), "RETRY")
    result.refresh()
    assert (result.status, result.errors[0].exception_class_path) == ("READY", "builtins.KeyError")


HOSTILE: tuple[Any, ...] = (
    None,
    7,
    "x",
    [],
    {"worker_ids": 7},
    {"enqueued_at": "\x00"},
    {"task": "os.system", "args": ["touch x"], "kwargs": {}, "worker_ids": []},
    {"task": ["tests"], "args": 1},
    {"task": "antigravity.fly"},
)


def test_hostile_records_are_no_results(sender: Celery, tasks: Any) -> None:
    missing = import_module(f"{framework()}.exceptions").TaskResultDoesNotExist
    times = dict.fromkeys(("run_after", "enqueued_at", "started_at", "last_attempted_at"))
    for found in HOSTILE:
        for record in (found, {**times, "args": [], "kwargs": {}, **found} if isinstance(found, dict) else found):
            sender.backend.store_result("django-task-bad", record, "READY")
            with pytest.raises(missing):
                tasks.add.get_result("bad")
    for unknown in ("", "x" * 10_000, "unknown", "\x00", 7):
        with pytest.raises(missing):
            tasks.add.get_result(unknown)
    assert "antigravity" not in sys.modules


def test_a_task_runs_whatever_its_header_and_its_record_hold(sender: Celery, tasks: Any) -> None:
    hostile = [*HOSTILE, {"backend": ["x"], "priority": "high", "queue_name": {}, "run_after": "1e999"}]
    sent = []
    for number, found in enumerate(hostile):
        sender.backend.store_result(f"django-task-id-{number}", found, "READY")
        headers = {"redis_queue_django": found}
        sent.append(sender.tasks[tasks.add.module_path].apply_async([number], headers=headers, task_id=f"id-{number}"))
    with worker(sender, "-c1").ready():
        assert [one.get(timeout=30) for one in sent] == [*range(len(hostile))]
    assert tasks.add.get_result("id-0").status == "SUCCESSFUL"


def test_a_task_runs_without_its_result_backend(
    tasks: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backend = tasks.describe.get_backend()

    def refuse(*_: Any) -> None:
        raise OSError("gone")

    monkeypatch.setattr(backend, "_load", refuse)
    monkeypatch.setattr(backend, "_save", refuse)
    assert backend.run(tasks.describe.module_path, request_of("a", retries=1), [], {})["attempt"] == 2
    assert [record.getMessage() for record in caplog.records if "record" in record.getMessage()] == [
        "add[a] runs without a record of its start: gone"
    ] * 2


def test_flows_and_unique_tasks_know_the_arguments_of_a_django_task(
    sender: Celery, tasks: Any, client: redis.Redis
) -> None:
    sender.conf.redis_queue_flow = {tasks.add.module_path: {"fair": "{first}"}}
    sender.conf.redis_queue_unique = {tasks.describe.module_path: {"key": "{names}"}}
    check_flows(sender)
    one, again, two = tasks.describe.enqueue("a"), tasks.describe.enqueue("a"), tasks.describe.enqueue("b")
    assert one.id == again.id != two.id


def test_a_relay_does_not_replace_the_record_of_a_worker(sender: Celery, tasks: Any) -> None:
    from redis_queue.contrib.django.task_backend import TASK_HEADER, record_waiting

    result = tasks.add.enqueue(1)
    backend = tasks.add.get_backend()
    assert backend.run(tasks.add.module_path, request_of(result.id), [1], {}) == 1
    call = TaskCall(tasks.add.module_path, [1], {}, {"headers": {TASK_HEADER: backend._header(result)}})
    record_waiting(sender, {result.id: call})
    result.refresh()
    assert (result.status, result.worker_ids) == ("RUNNING", ["one"])


def test_a_relay_writes_the_record_of_a_task_whose_process_was_killed_after_its_commit(
    sender: Celery, tables: Any, outbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db import connection

    with sends(sender, monkeypatch, on_commit="outbox") as tasks:
        with tables.atomic():
            run_after = datetime.now(timezone.utc) + timedelta(hours=1)
            result = tasks.add.using(run_after=run_after).enqueue(1, second=2)
            connection.run_on_commit.clear()
        write(task_id="odd", payload={"options": {"headers": {"redis_queue_django": {"run_after": []}}}})
        assert outbox.relay() == outbox.Relayed(moved=2)
        found = tasks.add.get_result(result.id)
        assert (found, found.args, found.kwargs, found.status) == (result, [1], {"second": 2}, "READY")
        assert found.enqueued_at == result.enqueued_at


@pytest.mark.parametrize("outage", ["refuse all", "blackhole all", "refuse results", "blackhole results"])
def test_a_commit_neither_raises_nor_waits_while_redis_is_away(
    redis_tcp_server: RedisServer, tables: Any, outbox: Any, monkeypatch: pytest.MonkeyPatch, outage: str
) -> None:
    mode, _, away = outage.partition(" ")
    with redis_tcp_server.client() as client:
        client.flushall()
    committed: list[str] = []
    with FaultProxy(redis_tcp_server.address) as proxy, monkeypatch.context() as patch:
        patch.setattr("redis_queue.contrib.django.outbox.transfer.FIRST_PAUSE", 0.0)
        app = Celery("tests", broker="memory://", backend=proxy.url, set_as_current=False)
        app.conf.redis_queue_url = redis_tcp_server.url if away == "results" else proxy.url
        DurableTasks(app)
        with sends(app, monkeypatch, on_commit="outbox") as tasks:
            proxy.mode = mode
            before = time.monotonic()
            with tables.atomic():
                result = tasks.add.enqueue(1)
                outbox.schedule("shop.remind", countdown=60, task_id="plain")
                tables.on_commit(lambda: committed.append("after"))
            assert time.monotonic() - before < 10
            assert committed == ["after"]
            assert {row.task_id for row in rows()} == {result.id, *(["plain"] if away != "results" else [])}
            proxy.mode = "pass"
            wait_until(lambda: relayed(outbox), description="the rest to be relayed")
            assert tasks.add.get_result(result.id).status == "READY"
        app.close()


def relayed(outbox: Any) -> bool:
    """Relay; return whether no call is left."""
    with suppress(StoreUnavailableError):
        outbox.relay()
    return not rows()


def relay_rest(using: str = "default") -> None:
    """Move the rows for which a commit had too little time."""
    from redis_queue.contrib.django import outbox

    outbox.relay(using=using)


def framework() -> str:
    from redis_queue.contrib.django.task_backend import FRAMEWORK

    return FRAMEWORK


def override(**settings: Any) -> Any:
    from django.test import override_settings

    return override_settings(**settings)
