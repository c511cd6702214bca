"""DeliveryLimit: a task that repeatedly kills its worker becomes a dead letter."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, Task, signals
from celery.worker.request import Request
from kombu.connection import Connection

from redis_queue.celery import DurableTasks, MaxDeliveriesExceededError
from redis_queue.celery.leases.leases import read_counters
from redis_queue.celery.leases.poison import DeliveryLimit, DeliveryLimitStep
from redis_queue.celery.message.headers import CALL, Attempt, counted_id
from redis_queue.delay.model import Push
from redis_queue.store.ids import sibling_id
from redis_queue.store.keys import Keys, PrefixKeys
from tests.support.celery.brokers import Broker
from tests.support.celery.leasing import Leasing
from tests.support.celery.leasing_names import DIE, DIE_TWICE, HEALED, WAIT
from tests.support.marks import thorough
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(params=["redis", pytest.param("rabbitmq", marks=pytest.mark.matrix)])
def leasing(request: pytest.FixtureRequest) -> Iterator[Leasing]:
    """The store is a Redis; the broker is the same Redis or a RabbitMQ."""
    with RedisServer() as store, store.client() as client:
        if request.param == "redis":
            yield Leasing(store, client)
        else:
            with Broker(request.getfixturevalue("rabbitmq_url")) as broker:
                queue = broker.name("leasing")
                broker.forget_later(f"{queue}-control.pidbox", f"{queue}-events")
                yield Leasing(store, client, broker.url, queue)


@pytest.fixture
def one_redis() -> Iterator[Leasing]:
    with RedisServer() as store, store.client() as client:
        yield Leasing(store, client)


def own_keys(leasing: Leasing) -> set[bytes]:
    """Return the keys with the counts of starts."""
    return {key for key in leasing.client.scan_iter() if b":starts:" in key}


def nothing() -> None:
    """The body of the task."""


class TestTaskThatKillsItsWorker:
    def test_becomes_a_dead_letter_after_five_deliveries_and_runs_after_a_redrive(self, leasing: Leasing) -> None:
        with leasing.worker("one", pool="prefork").ready() as one:
            result = leasing.send(DIE)
            with pytest.raises(Exception, match="its worker died, or could not store its result, 5 times") as raised:
                result.get(timeout=60)
            assert type(raised.value).__name__ == "MaxDeliveriesExceededError"
            assert result.state == "FAILURE"
            assert leasing.started == [result.id] * 5
            leases = leasing.leases()
            (letter,) = leases.dead_letters()
            assert (letter.id, letter.deliveries) == (result.id, 5)
            assert "its worker died, or could not store its result, 5 times" in letter.reason
            assert own_keys(leasing) == set()
            assert f"task {DIE}[{result.id}] is a dead letter" in one.output
            counted = read_counters(leasing.app())
            assert (None if counted is None else counted.dead) == (None if leasing.broker_url.startswith("amqp") else 1)

            leasing.client.set(HEALED, 1)
            assert leases.redrive([result.id]) == 1
            assert leasing.wait_for_ends(1) == [result.id]
            assert leases.dead_letters() == []
            assert own_keys(leasing) == set()

    @pytest.mark.parametrize(
        ("how", "start"),
        [
            ("SIGTERM", "fork"),
            ("SIGKILL", "spawn"),
            *thorough(("KeyboardInterrupt", "fork"), ("os._exit", "fork"), ("time limit", "fork")),
        ],
    )
    def test_becomes_one_however_its_process_ends(self, one_redis: Leasing, how: str, start: str) -> None:
        # Celery kills a process that is not up within 4 s, and a spawned one imports all that it needs.
        one_redis.settings |= {"worker_pool_start_method": start, "worker_proc_alive_timeout": 60}
        one_redis.settings["task_acks_on_failure_or_timeout"] = False
        one_redis.settings["redis_queue_max_deliveries"] = 3
        with one_redis.worker("one", pool="prefork").ready():
            limit = {"time_limit": 1} if how == "time limit" else {}
            id_ = one_redis.send(DIE, how, **limit).id
            wait_until(one_redis.leases().dead_letters, timeout=60, description="a dead letter")
            assert one_redis.started == [id_] * 3

    @pytest.mark.parametrize("pool", ["prefork", "threads", *thorough("solo", "gevent", "eventlet")])
    def test_fails_once_by_an_exit_of_its_own_code(self, one_redis: Leasing, pool: str) -> None:
        with one_redis.worker("one", pool=pool).ready() as one:
            result = one_redis.send(DIE, "sys.exit")
            with pytest.raises(RuntimeError, match=r"the task called sys\.exit\(1\)"):
                result.get(timeout=60)
            assert "sys.exit(1)" in result.traceback
            one_redis.wait_until_settled()
            one_redis.client.set(HEALED, 1)
            second = one_redis.send(DIE, "sys.exit").id
            assert one_redis.wait_for_ends(1) == [second]
            assert one_redis.started == [result.id, second]
            assert one.finish() == 0

    def test_dies_by_an_exit_of_its_own_code_if_it_has_a_limit(self, one_redis: Leasing) -> None:
        with one_redis.worker("one", pool="prefork").ready():
            id_ = one_redis.send(DIE_TWICE, "sys.exit").id
            wait_until(one_redis.leases().dead_letters, timeout=60, description="a dead letter")
            assert one_redis.started == [id_] * 2

    def test_is_retried_if_celery_retries_tasks_of_lost_processes(self, one_redis: Leasing) -> None:
        retries = {"retry_on_worker_lost": True, "max_retries": 1, "default_retry_delay": 0}
        one_redis.settings |= {"task_annotations": {DIE: retries}, "redis_queue_max_deliveries": 4}
        with one_redis.worker("one", pool="prefork").ready():
            result = one_redis.send(DIE)
            with pytest.raises(Exception, match=r"exited prematurely|died 4 times"):
                result.get(timeout=60)
            # Celery before 5.7 does not know it.
            knows = hasattr(Task, "retry_on_worker_lost")
            assert one_redis.started == [result.id] * (2 if knows else 4)
            assert len(one_redis.leases().dead_letters()) == (0 if knows else 1)
            one_redis.wait_until_settled()
        assert own_keys(one_redis) == set()

    def test_starts_with_zero_deliveries_after_a_redrive(self, one_redis: Leasing) -> None:
        with one_redis.worker("one", pool="prefork").ready():
            id_ = one_redis.send(DIE_TWICE).id
            leases = one_redis.leases()
            wait_until(leases.dead_letters, description="a dead letter")
            assert one_redis.started == [id_] * 2
            assert leases.redrive() == 1
            wait_until(leases.dead_letters, description="a dead letter again")
            assert one_redis.started == [id_] * 4

    def test_counts_killed_workers_on_all_hosts(self, one_redis: Leasing) -> None:
        id_ = one_redis.send(DIE_TWICE).id
        for name in ("one", "two"):
            with one_redis.worker(name) as worker:
                worker.wait()
        with one_redis.worker("three") as three:
            three.wait_for_output("is a dead letter", timeout=30)
            assert one_redis.started == [id_] * 2
            one_redis.wait_until_settled()
            assert one_redis.client.hlen("unacked") == 0

    def test_counts_only_tasks_that_a_killed_worker_had_started(self, one_redis: Leasing) -> None:
        one_redis.settings["worker_prefetch_multiplier"] = 2
        ids = [one_redis.send(WAIT).id for _ in range(2)]
        for name, starts in (("one", 1), ("two", 2)):
            with one_redis.worker(name, pool="prefork") as worker:
                one_redis.wait_for_starts(starts)
                one_redis.wait_for_leases(2)
                worker.kill()
        limit = DeliveryLimit.of(one_redis.leases().app)
        again = one_redis.started[-1]
        (waited,) = set(ids) - {again}
        assert len(limit.starts(again)) == 1
        assert limit.starts(waited) == []


class TestTaskWhoseWorkerIsStopped:
    """A worker that was told to stop is no evidence against its task."""

    @pytest.mark.parametrize(
        ("pool", "how"),
        [
            ("prefork", "SIGTERM, then SIGKILL"),
            *thorough(
                ("prefork", "cold"),
                ("prefork", "soft"),
                ("prefork", "remote control, then SIGKILL"),
                ("spawn", "SIGTERM, then SIGKILL"),
                ("solo", "SIGTERM, then SIGKILL"),
                ("threads", "SIGTERM, then SIGKILL"),
                ("gevent", "SIGTERM, then SIGKILL"),
            ),
        ],
    )
    def test_is_not_counted(self, one_redis: Leasing, pool: str, how: str) -> None:
        if pool == "spawn":
            pool = "prefork"
            one_redis.settings |= {"worker_pool_start_method": "spawn", "worker_proc_alive_timeout": 60}
        if how == "soft":
            one_redis.settings["worker_soft_shutdown_timeout"] = 0.5
        id_ = one_redis.send(WAIT).id
        limit = DeliveryLimit.of(one_redis.leases().app)
        for number in range(1, 4):
            with one_redis.worker(f"worker{number}", pool=pool) as worker:
                one_redis.wait_for_starts(number, timeout=60)
                if number > 1:
                    wait_until(lambda: limit.starts(id_), description="the start to be counted")
                if how.startswith("remote"):
                    app = one_redis.app()
                    app.conf.control_exchange = f"{one_redis.queue}-control"
                    app.control.shutdown()
                else:
                    os.kill(worker.pid, signal.SIGTERM if how.startswith("SIGTERM") else signal.SIGQUIT)
                wait_until(lambda: not limit.starts(id_), description="the start not to be counted")
                if how.endswith("SIGKILL"):
                    worker.kill()
                else:
                    worker.wait()
        with one_redis.worker("last", pool=pool):
            one_redis.end_task("last")
            assert one_redis.wait_for_ends(1) == [id_]
            one_redis.wait_until_settled()
        assert one_redis.started == [id_] * 4
        assert own_keys(one_redis) == set()

    def test_of_a_lost_connection_is_not_counted_if_it_cancels_the_tasks(self, one_redis: Leasing) -> None:
        one_redis.settings["worker_cancel_long_running_tasks_on_connection_loss"] = True
        one_redis.settings["redis_queue_max_deliveries"] = 2
        with FaultProxy(str(one_redis.store.socket)) as proxy:
            one_redis.broker_url = proxy.url
            with one_redis.worker("one", pool="prefork", environment={"NOTES_URL": one_redis.store.url}) as worker:
                id_ = one_redis.send(WAIT).id
                for number in range(1, 4):
                    one_redis.wait_for_starts(number)
                    proxy.cut()
                one_redis.wait_for_starts(4)
                one_redis.end_task("one")
                assert one_redis.wait_for_ends(1) == [id_]
                one_redis.wait_until_settled()
                assert "file descriptor is None" not in worker.output


class TestBury:
    def test_keeps_a_waiting_entry_with_the_same_id(self, one_redis: Leasing) -> None:
        delayed = DurableTasks(one_redis.app(), leases=False)
        later = delayed.app.send_task(WAIT, countdown=600, task_id="again")
        assert not delayed.queue.foreign.bury(Push(b"old", id=later.id), reason="died", deliveries=5)
        assert delayed.queue.dead_letters() == []
        assert delayed.count() == 1

    def test_replaces_a_dead_letter_with_the_same_id(self, one_redis: Leasing) -> None:
        queue = DurableTasks(one_redis.app(), leases=False).queue
        for number in (1, 2):
            assert queue.foreign.bury(Push(f"{number}", id="same"), reason=f"reason {number}", deliveries=number)
        (letter,) = queue.dead_letters()
        assert (letter.id, letter.body, letter.reason, letter.deliveries) == ("same", "2", "reason 2", 2)
        assert queue.stats().dead == 1


def test_task_that_may_not_have_started_is_not_a_dead_letter(one_redis: Leasing) -> None:
    app = one_redis.app()
    limit = DeliveryLimit(app)
    task = app.task(nothing, name="tests.nothing", shared=False, max_deliveries=1)
    message = SimpleNamespace(headers={"id": "some"})
    assert limit.exceeded(message, task) is None
    limit.add_start("some")
    assert len(limit.exceeded(message, task) or []) == 1


def test_tasks_run_without_the_store(one_redis: Leasing) -> None:
    app = one_redis.app()
    limit = DeliveryLimit(app)
    task = app.task(nothing, name="tests.nothing", shared=False)
    with Connection(one_redis.broker_url) as connection:
        producer = connection.Producer(connection.default_channel)
        producer.publish({}, routing_key="q", headers={"id": "some"})
        connection.default_channel.queue_declare("q")
        message = connection.SimpleQueue("q").get(timeout=5)
    message.delivery_info["redelivered"] = True
    assert limit.exceeded(message, task) is None
    for _ in range(4):
        limit.add_start("some")
    assert len(limit.exceeded(message, task) or []) == 4
    one_redis.store.kill()
    assert limit.exceeded(message, task) is None


def test_an_outage_of_the_store_is_one_line(one_redis: Leasing, caplog: pytest.LogCaptureFixture) -> None:
    delayed = DurableTasks(one_redis.app())
    task = delayed.app.task(nothing, name="tests.nothing", shared=False)

    def run(count: int) -> None:
        """Run redelivered tasks, as far as the receivers of Celery's signals see it."""
        for number in range(count):
            delivery = {"redelivered": True}
            request = SimpleNamespace(delivery_info=delivery, id=f"id{number}", headers={}, hostname="one")
            started = SimpleNamespace(app=delayed.app, acks_late=True, request=request)
            signals.task_prerun.send(sender=task, task_id=request.id, task=started)
            signals.task_postrun.send(sender=task, task_id=request.id, task=started, state="SUCCESS")
            signals.task_revoked.send(sender=task, request=request)

    caplog.set_level(logging.INFO)
    run(1)
    assert caplog.messages == []
    one_redis.store.kill()
    run(3)
    one_redis.store.restart()
    run(2)
    assert own_keys(one_redis) == set()
    began, ended = caplog.messages
    assert began.startswith("cannot count starts of tasks: ")
    assert ended == "starts of tasks are counted again"


def redelivered(app: Celery, connection: Connection, task_id: str, **options: Any) -> Any:
    """Send `tests.nothing` and return its message as redelivered to *connection*."""
    app.task(nothing, name="tests.nothing", shared=False, max_deliveries=2)
    app.send_task("tests.nothing", task_id=task_id, **options)
    message = app.amqp.queues[app.conf.task_default_queue].bind(connection.default_channel).get()
    message.delivery_info["redelivered"] = True
    return message


def expire(app: Celery, task_id: str) -> None:
    """Let a worker of *app* find an expired, redelivered task."""
    with app.connection_for_write() as connection:
        message = redelivered(app, connection, task_id, expires=datetime(2020, 1, 1, tzinfo=timezone.utc))
        assert Request(message, app=app, task=app.tasks["tests.nothing"]).revoked()


def intake(app: Celery, handled: list[Any], leases: Any = None) -> Callable[[Any], Any]:
    """Return what a worker of *app* with *leases* does with a message before it is *handled*."""
    consumer = SimpleNamespace(
        app=app,
        hostname="tests",
        event_dispatcher=None,
        steps=[],
        controller=SimpleNamespace(),
        on_connection_error_after_connected=None,
        connection_errors=(),
        channel_errors=(),
        redis_queue_lease_step=leases,
    )
    step = DeliveryLimitStep(consumer)
    return step.intake(handled.append)


class TestTaskAtItsLimit:
    @pytest.fixture
    def connection(self, one_redis: Leasing) -> Iterator[Connection]:
        with Connection(one_redis.broker_url) as connection:
            yield connection

    @pytest.fixture
    def meet(self, one_redis: Leasing) -> Callable[..., tuple[list[Any], list[str]]]:
        """Let a worker receive a message; return the started tasks and the counters."""

        def meet(delayed: DurableTasks, message: Any, lost: str = "") -> tuple[list[Any], list[str]]:
            started: list[Any] = []
            counted: list[str] = []
            leases = SimpleNamespace(count=counted.append, may_be_ours=lambda tag: tag != lost)
            intake(delayed.app, started, leases)(message)
            return started, counted

        return meet

    def test_becomes_a_dead_letter_beside_a_newer_call_with_its_id(
        self, one_redis: Leasing, connection: Connection, meet: Any
    ) -> None:
        delayed = DurableTasks(one_redis.app())
        message = redelivered(delayed.app, connection, "order-42")
        DeliveryLimit.of(delayed.app).add_start("order-42")
        delayed.app.send_task("tests.nothing", ("newer",), task_id="order-42", countdown=600)

        assert meet(delayed, message) == ([], ["dead"])

        assert message.acknowledged
        assert [entry.args for entry in delayed.list()] == ["('newer',)"]
        (letter,) = delayed.queue.dead_letters()
        assert letter.id.startswith("order-42~")
        assert delayed.app.AsyncResult("order-42").state == "FAILURE"
        assert delayed.redrive([letter.id]) == 1
        again = delayed.app.amqp.queues["leasing"].bind(connection.default_channel).get()
        assert again.headers["id"] == "order-42"

    def test_is_no_dead_letter_if_another_worker_has_it_by_now(
        self, one_redis: Leasing, connection: Connection, meet: Any
    ) -> None:
        delayed = DurableTasks(one_redis.app())
        message = redelivered(delayed.app, connection, "order-42")
        DeliveryLimit.of(delayed.app).add_start("order-42")
        # The start guard drops it.
        assert meet(delayed, message, lost=message.delivery_tag) == ([message], [])
        assert delayed.queue.dead_letters() == []
        assert not message.acknowledged

    @pytest.mark.parametrize("trouble", ["taken", "away"])
    def test_is_started_again_if_no_dead_letter_can_be_stored(
        self, one_redis: Leasing, connection: Connection, meet: Any, trouble: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        delayed = DurableTasks(one_redis.app())
        message = redelivered(delayed.app, connection, "order-42")
        DeliveryLimit.of(delayed.app).add_start("order-42")
        ids = ["order-42", sibling_id("order-42", Attempt.of(message.headers, None).call)]
        if trouble == "taken":
            delayed.queue.push_many([Push(b"other", id=id_, delay=600) for id_ in ids])
        else:
            one_redis.client.hset(Keys("redis_queue", "delay", "scheduled", 0).meta, "schema", 99)

        assert meet(delayed, message) == ([message], [])

        assert not message.acknowledged
        assert "cannot make a dead letter" in caplog.text

    def test_does_not_count_for_a_newer_call_with_its_id(
        self, one_redis: Leasing, connection: Connection, meet: Any
    ) -> None:
        delayed = DurableTasks(one_redis.app())
        DeliveryLimit.of(delayed.app).add_start(counted_id("order-42", {CALL: "the-call-one"}))
        message = redelivered(delayed.app, connection, "order-42", headers={CALL: "the-call-two"})
        assert meet(delayed, message) == ([message], [])


class TestRevokedTask:
    def test_is_not_an_error_in_an_app_without_the_extension(
        self, one_redis: Leasing, caplog: pytest.LogCaptureFixture
    ) -> None:
        app = one_redis.app()
        DurableTasks(one_redis.app(), delays=False)

        expire(app, "some")

        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []

    def test_is_no_longer_counted(self, one_redis: Leasing, caplog: pytest.LogCaptureFixture) -> None:
        leases = one_redis.leases()
        DeliveryLimit.of(leases.app).add_start("some")

        expire(leases.app, "some")

        assert DeliveryLimit.of(leases.app).starts("some") == []
        assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_limit_of_the_task_overrides_that_of_the_app() -> None:
    app = Celery("tests", broker="redis://localhost:1", set_as_current=False)
    app.conf.redis_queue_max_deliveries = 7
    DurableTasks(app, delays=False)
    limit = DeliveryLimit.of(app)
    assert limit.most(app.task(nothing, name="tests.plain", shared=False)) == 7
    assert limit.most(app.task(nothing, name="tests.own", shared=False, max_deliveries=2)) == 2
    assert issubclass(MaxDeliveriesExceededError, Exception)


@pytest.mark.parametrize(
    "headers", [None, {}, {"task": "tests.nothing"}, {"id": "x", "task": ["a"]}, {"id": "x", "task": 5}]
)
def test_message_that_is_not_a_task_is_left_to_celery(headers: Any) -> None:
    app = Celery("tests", broker="memory://", set_as_current=False)
    app.task(nothing, name="tests.nothing", shared=False)
    message = SimpleNamespace(headers=headers, delivery_info={"redelivered": True})
    handled: list[Any] = []

    DurableTasks(app, delays=False)
    intake(app, handled)(message)

    assert handled == [message]


@pytest.mark.parametrize(
    "row", [b"", b"[]", b"{}", b"\xff", b'{"host": 5, "at": "soon"}', b'{"host": "a", "at": 1e400}']
)
def test_edited_start_record_counts(one_redis: Leasing, row: bytes) -> None:
    app = one_redis.app()
    limit = DeliveryLimit(app)
    one_redis.client.rpush(PrefixKeys("redis_queue").starts("some"), row)
    task = app.task(nothing, name="tests.nothing", shared=False, max_deliveries=2)
    message = SimpleNamespace(headers={"id": "some"})

    starts = limit.exceeded(message, task)

    assert starts is not None
    assert len(starts) == 1
