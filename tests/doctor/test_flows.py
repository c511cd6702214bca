"""The checks of flows: limits that contradict each other, and tasks that nothing starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue import Flow
from redis_queue.admission.declarations import Declaration, Declarations
from redis_queue.admission.flows import Flows
from redis_queue.admission.rules import FlowLimits
from redis_queue.basics.times import from_ms
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.doctor.finding import MAX_FINDINGS
from redis_queue.monitor.model import WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import AppAccess, access_to
from redis_queue.operate.diagnosis import examine
from redis_queue.store.keys import FlowKeys
from redis_queue.store.scripts import Scripts
from tests.support.celery.flow_names import SYNC
from tests.support.celery.flows import Fleet, flow_app
from tests.support.doctor.stage import Limit, problems
from tests.support.servers import RedisServer

KEYS = FlowKeys("redis_queue")
LIMITS = {"queue:mail": {"limit": 1}}


@pytest.fixture
def app(sound: RedisServer, client: redis.Redis) -> Iterator[Celery]:
    """An app with a flow of the queue "mail", whose limits are declared."""
    with flow_app(sound, LIMITS) as app:
        StoredTasks.of(app).flow.declare(StoredTasks.of(app).settings.flows)
        yield app


def found(client: redis.Redis, check: str) -> list[tuple[str, str]]:
    """Return text and advice of the findings of a check, without an app."""
    return [(row.found, row.advice) for row in problems(access_to(client, "redis_queue"), check)]


def found_by(app: Celery, check: str, *, ask: bool = False) -> list[tuple[str, str]]:
    """Return text and advice of the findings of a check for an app."""
    return [(row.found, row.advice) for row in problems(AppAccess(app), check, ask=ask)]


def send(app: Celery, count: int = 1, queue: str = "mail") -> None:
    for _ in range(count):
        app.tasks["work"].apply_async(queue=queue)


def report(client: redis.Redis, *queues: str, keeper: bool | None) -> None:
    """Report a worker, with leases unless *keeper* is None."""
    began = from_ms(0)
    Reports(client, "redis_queue").write(WorkerRow("one@test", began, began, queues=queues, keeper=keeper))


def test_without_flows_all_is_well(client: redis.Redis) -> None:
    findings = [one for one in examine(access_to(client, "redis_queue"), ask=False) if one.check.startswith("flow")]
    assert [one.check for one in findings] == ["flow limits", "flow keys", "flow workers", "flow stops"]
    assert {one.severity for one in findings} == {"ok"}


class TestLimits:
    def test_both_values_are_named(self, client: redis.Redis) -> None:
        declarations = Declarations(Scripts(client), FlowKeys("redis_queue"))
        declarations.write("shop", {"queue:mail": Flow(limit=10, rate="100/m"), "same": Flow(limit=1)})
        declarations.write("mail", {"queue:mail": Flow(limit=5, fair="{tenant}"), "same": Flow(limit=1)})
        assert found(client, "flow limits") == [
            (
                'flow queue:mail has "limit 5" and keys take turns in mail, "limit 10, rate 100/m" in shop: the worker '
                "that started last sets them for all",
                "give all apps the same limits, or set them for all: redis-queue flow set queue:mail",
            )
        ]

    def test_a_worker_declares_the_flows_of_its_app(self, sound: RedisServer, client: redis.Redis) -> None:
        fleet = Fleet(sound, client, {"queue:flows": {"limit": 3}})
        with fleet.worker("a", pool="solo") as worker:
            worker.wait_for_output("ready.")
        declared = Declarations(Scripts(client), FlowKeys("redis_queue")).read()
        assert declared["queue:flows"] == [Declaration("flows", FlowLimits(limit=3), "")]
        assert declared[SYNC] == [Declaration("flows", FlowLimits(limit_each=1), "key")]

    def test_the_same_limits_are_no_finding(self, client: redis.Redis) -> None:
        for app in ("shop", "mail"):
            Declarations(Scripts(client), FlowKeys("redis_queue")).write(app, {"queue:mail": Flow(limit=10)})
        assert found(client, "flow limits") == []

    def test_many_are_counted(self, client: redis.Redis) -> None:
        for limit in range(1, 9):
            flows = {f"queue:q{number}": Flow(limit=limit) for number in range(MAX_FINDINGS + 2)}
            Declarations(Scripts(client), FlowKeys("redis_queue")).write(f"app {limit}", flows)
        *texts, (last, _) = found(client, "flow limits")
        assert (len(texts), last) == (MAX_FINDINGS, "2 more flows have different limits in several apps")
        assert " and 3 more apps: " in texts[0][0]


class TestWorkers:
    @pytest.mark.parametrize(
        ("queue", "keeper", "count"), [("mail", True, 0), ("mail", False, 0), ("mail", None, 1), ("other", True, 1)]
    )
    def test_only_workers_with_leases_take_tasks_of_flows(
        self, app: Celery, client: redis.Redis, queue: str, keeper: bool | None, count: int
    ) -> None:
        send(app, 2)
        report(client, queue, keeper=keeper)
        texts = found(client, "flow workers")
        assert len(texts) == count
        if count:
            assert texts[0][0].startswith("Celery queue mail: 2 tasks wait for a place in a flow, and no worker that ")
            assert texts[0][1] == "start a worker of an app with DurableTasks(app) and -Q mail"

    def test_a_task_with_a_flow_waits_in_a_queue_without_one(self, app: Celery, client: redis.Redis) -> None:
        app.tasks["sync"].apply_async(("key",), queue="plain")
        [(text, _)] = found(client, "flow workers")
        assert text.startswith("Celery queue plain: 1 task waits for a place")

    def test_they_are_not_reported_twice(self, app: Celery, client: redis.Redis) -> None:
        send(app, 2)
        assert found_by(app, "unread queues", ask=True) == []
        client.lpush("mail", "of a stock producer")
        [(text, _)] = found_by(app, "unread queues", ask=True)
        assert text == "Celery queue mail: 1 message waits, and no worker consumes it"

    def test_unreadable_reports_are_a_finding(self, app: Celery, client: redis.Redis) -> None:
        send(app)
        client.set("{redis_queue:monitor}:workers", "text")
        assert "the reports of workers cannot be read" in found(client, "unreadable")[0][0]


class TestStops:
    @pytest.mark.parametrize("queue", ["mail", "other"], ids=["with a flow", "without one"])
    def test_a_pause_of_a_queue_with_waiting_tasks(self, app: Celery, client: redis.Redis, queue: str) -> None:
        flows = Flows(client, "redis_queue")
        flows.pause(f"queue:{queue}")
        assert found_by(app, "flow stops") == []
        send(app, 3, queue)
        resume = f"if the reason is gone: redis-queue flow resume queue:{queue}"
        assert found_by(app, "flow stops") == [(f"flow queue:{queue} is paused, and 3 tasks wait", resume)]
        flows.resume(f"queue:{queue}")
        assert found_by(app, "flow stops") == []

    def test_a_limit_of_0_with_waiting_tasks(self, app: Celery, client: redis.Redis) -> None:
        send(app)
        Flows(client, "redis_queue").set("queue:mail", limit=0)
        advice = "if the reason is gone: redis-queue flow set queue:mail --limit N"
        assert found(client, "flow stops") == [("flow queue:mail has a limit of 0, and 1 task waits", advice)]

    @pytest.mark.parametrize(("flow", "option"), [({"fair": "{key}"}, "--limit-each"), ({"key": "{key}"}, "--limit")])
    def test_a_limit_of_0_for_each_key(
        self, sound: RedisServer, client: redis.Redis, flow: dict[str, Any], option: str
    ) -> None:
        limit = {"limit_each": 0} if "fair" in flow else {"limit": 0}
        with flow_app(sound, {"queue:mail": {**flow, **limit}}) as app:
            send(app)
        [(_, advice)] = found(client, "flow stops")
        assert advice.endswith(f"flow set queue:mail {option} N")

    @pytest.mark.parametrize(
        ("given", "stop", "verb"),
        [(None, "is paused", "resume"), ({"limit": 0}, "has a limit of 0", "reset"), ({"limit": 1}, "", "")],
    )
    def test_a_key_that_is_stopped(
        self, sound: RedisServer, client: redis.Redis, given: dict[str, Any] | None, stop: str, verb: str
    ) -> None:
        flows = Flows(client, "redis_queue")
        flow = {"fair": "{key}"}
        with flow_app(sound, {"queue:mail": flow}) as app:
            flows.declare({"queue:mail": Flow.of(flow)})
            for key in ("a b", "nothing waits"):
                _ = flows.pause("queue:mail", key=key) if given is None else flows.set("queue:mail", key=key, **given)
            app.tasks["work"].apply_async(("a b", 1), queue="mail")
            advice = f"if the reason is gone: redis-queue flow {verb} queue:mail --key 'a b'"
            text = f"key a b of flow queue:mail {stop}, and 1 task waits"
            assert found(client, "key stops") == ([(text, advice)] if stop else [])


class TestPlaces:
    def test_places_of_messages_that_are_not_in_flight(self, app: Celery, client: redis.Redis) -> None:
        client.hset(KEYS.held.decode(), mapping={"flow-a-1": "x", "flow-a-2": "x", "flow-a-3": "x"})
        client.zadd("unacked_index", {"flow-a-2": 1})
        [(text, _)] = found_by(app, "flow places")
        assert text == "2 places in flows held by messages that are not in flight: no worker frees them"
        report(client, "mail", keeper=True)
        assert found_by(app, "flow places") == []

    def test_the_keys_of_the_broker_may_have_a_prefix(self, sound: RedisServer, client: redis.Redis) -> None:
        client.hset(KEYS.held.decode(), "flow-a-1", "x")
        client.zadd("shop:unacked_index", {"flow-a-1": 1})
        with flow_app(sound, broker_transport_options={"global_keyprefix": "shop:"}) as app:
            assert found_by(app, "flow places") == []

    def test_an_unreachable_broker_is_a_finding(self, app: Celery, sound: RedisServer, client: redis.Redis) -> None:
        client.hset(KEYS.held.decode(), "flow-a-1", "x")
        app.conf.redis_queue_url = sound.url
        app.conf.broker_url = "redis://user:secret@127.0.0.1:1/0"
        [(text, _)] = found_by(app, "flow places")
        assert text.startswith("could not be checked: ")
        assert "secret" not in text


@pytest.mark.parametrize("key", KEYS.types())
def test_a_key_of_another_program_is_an_error(app: Celery, client: redis.Redis, key: bytes) -> None:
    send(app)
    client.delete(key)
    client.set(key, "text")
    findings = [one for one in examine(AppAccess(app), ask=False) if one.check == "flow keys"]
    assert [(one.severity, one.found) for one in findings] == [
        ("error", f"{key.decode()} is a string, not a {KEYS.types()[key]}: another program wrote to it")
    ]


def test_the_types_are_those_of_the_keys(app: Celery, client: redis.Redis) -> None:
    send(app)
    for key, kind in KEYS.types().items():
        assert client.type(key) in (b"none", kind.encode())


def test_a_missing_permission_is_a_finding(app: Celery, client: redis.Redis, limited: Limit) -> None:
    send(app)
    user = limited("~* &* +@all -hgetall")
    [(text, _)] = found(user, "flow limits")
    assert text.startswith("could not be checked: the Redis user lacks a permission")
