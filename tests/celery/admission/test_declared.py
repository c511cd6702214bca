"""Flows that no worker has declared: a producer sends messages of them, and users read and change them."""

from dataclasses import replace

import pytest
import redis
from celery import Celery

from redis_queue import Flow
from redis_queue.admission.flows import Flows
from redis_queue.admission.rules import FlowLimits
from redis_queue.celery import DurableTasks
from redis_queue.celery.admission.sender import FlowSender
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.errors import InvalidValueError
from redis_queue.store.script_files import load
from tests.support.celery.flows import KEYS, QUEUE, counts, flow_app
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

FAIR = Flow(fair="{key}", limit=6, limit_each=2, weights={"big": 3})
OF_FAIR = FlowLimits(limit=6, limit_each=2)
OF_QUEUE = f"queue:{QUEUE}"


def test_flows_of_the_code_are_known(server: RedisServer, client: redis.Redis) -> None:
    with flow_app(server, {OF_QUEUE: FAIR}) as app:
        flows = StoredTasks.of(app).flow
        assert {state.name: state.limits for state in flows.list()} == {
            OF_QUEUE: OF_FAIR,
            "sync": FlowLimits(limit_each=1),
        }
        assert flows.find(OF_QUEUE).declared == OF_FAIR
        assert not client.exists(KEYS.config)
        with pytest.raises(InvalidValueError, match="unknown flow 'synk': did you mean 'sync'"):
            flows.find("synk")


@pytest.mark.parametrize("sends", [False, True])
def test_a_change_leaves_their_other_limits(server: RedisServer, sends: bool) -> None:
    with flow_app(server, {OF_QUEUE: FAIR}) as app:
        if sends:
            app.tasks["work"].delay("a")
        flows = StoredTasks.of(app).flow
        changed = flows.set(OF_QUEUE, limit=10)
        assert (changed.limits, changed.declared) == (replace(OF_FAIR, limit=10), OF_FAIR)
        assert changed.kind == "fair"
        assert flows.reset(OF_QUEUE).limits == OF_FAIR
        assert flows.set("sync", rate="50/s").limits == FlowLimits(limit_each=1, rate_each_ms=20.0, burst_each=5)


def test_a_change_by_an_app_without_them_leaves_their_other_limits(
    server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flow_app(server) as app:
        # The producer was killed before it could declare them.
        with monkeypatch.context() as patch:
            patch.setattr(Flows, "declare", lambda *_: None)
            app.tasks["sync"].delay("a")
        assert not client.exists(KEYS.declared)
        flows = Flows(client, "redis_queue")
        assert flows.set("sync", rate="1/s").limits == FlowLimits(limit_each=1, rate_each_ms=1000.0, burst_each=1)
        assert flows.reset("sync").limits == FlowLimits(limit_each=1)


def test_a_first_message_brings_their_weights(server: RedisServer, client: redis.Redis) -> None:
    with flow_app(server, {OF_QUEUE: FAIR}) as app:
        app.tasks["work"].delay("a")
        (weights,) = client.keys("*weights*")
        assert client.hgetall(weights) == {b"big": b"3"}


def test_what_a_worker_declares_replaces_them(server: RedisServer) -> None:
    with flow_app(server, {OF_QUEUE: FAIR}) as app:
        app.tasks["work"].delay("a")
        flows = StoredTasks.of(app).flow
        flows.declare({OF_QUEUE: Flow(limit=1)})
        app.tasks["work"].delay("a")
        assert flows.find(OF_QUEUE).limits == FlowLimits(limit=1)


def test_a_burst_cannot_be_removed(server: RedisServer) -> None:
    with flow_app(server) as app, pytest.raises(InvalidValueError, match="burst=None: must be a whole number"):
        StoredTasks.of(app).flow.set("sync", burst=None)  # type: ignore[arg-type]


def test_a_call_whose_replies_are_lost_sends_one_message(server: RedisServer, client: redis.Redis) -> None:
    with FaultProxy(str(server.socket)) as proxy:
        app = Celery("flows", broker=proxy.url, set_as_current=False)
        app.conf.update(task_default_queue=QUEUE, task_ignore_result=True, redis_queue_flow={"work": {"limit": 1}})
        DurableTasks(app)
        app.send_task("work", ("first",))
        proxy.drop_next_reply(3, matching=load("admission/send").sha.encode())
        app.send_task("work", ("second",))
        assert not proxy.pending_drops
        assert counts(client) == {"waiting": {OF_QUEUE: 2, "work": 2}}
        app.close()


def test_a_prepared_message_is_sent_once(
    server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    with flow_app(server) as app:
        calls = []
        prepare = FlowSender.prepare
        monkeypatch.setattr(
            FlowSender, "prepare", lambda *args, **options: calls.append(found := prepare(*args, **options)) or found
        )
        app.tasks["sync"].delay("a")
        (call,) = calls
        assert call()
        assert counts(client)["waiting"]["sync"] == 1
