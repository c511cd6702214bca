"""Flows with real workers whose broker is not the Redis of the store."""

import os
import re
import signal
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from redis_queue.celery.dispatch.dispatcher import Dispatcher
from redis_queue.celery.queues.open import broker_queues
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.operate.access import AppAccess
from redis_queue.operate.incidents.queues import unread_flows
from redis_queue.operate.incidents.situation import look
from redis_queue.store.scripts import load_scripts
from tests.support.acl import rules_of
from tests.support.celery.brokers import Broker
from tests.support.celery.flow_names import AGAIN, FAIL, WORK
from tests.support.celery.flows import KEYS, Fleet, counts, kill, peak
from tests.support.marks import thorough
from tests.support.paths import ROOT
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

BROKER = "rabbitmq"
BOTH = [BROKER, "another database"]
Make = Callable[..., Fleet]


@pytest.mark.parametrize("pool", ["prefork", *thorough("solo")])
def test_tasks_without_a_flow_and_those_with_one_take_turns(make: Make, pool: str) -> None:
    fleet = make({"limit": 10})
    with fleet.producer() as app:
        for _ in range(60):
            app.send_task(WORK, ("plain", 0.02), queue=f"{fleet.queue}-plain")
        for _ in range(20):
            app.send_task(WORK, ("flow", 0.02))
        fleet.start("a", arguments=("-Q", f"{fleet.queue},{fleet.queue}-plain"), pool=pool)
        fleet.wait_for("leave", 80)
    keys = [key for kind, key, _, _ in fleet.events() if kind == "enter"]
    last = max(number for number, key in enumerate(keys) if key == "flow")
    assert last < 70, "without turns, the last ones of both kinds run at the end"
    fleet.wait_until_free()


def test_tasks_of_quorum_queues_and_those_of_flows_take_turns(make: Make) -> None:
    # Their prefetch count is static: a task of a flow waits behind the eight that the worker has.
    kind = {"task_default_queue_type": "quorum", "task_create_missing_queue_type": "quorum"}
    fleet = make({"limit": 10}, settings=kind)
    with fleet.producer() as app:
        for _ in range(60):
            app.send_task(WORK, ("plain", 0.02), queue=f"{fleet.queue}-plain")
        for _ in range(20):
            app.send_task(WORK, ("flow", 0.02))
        (worker,) = fleet.start("a", arguments=("-Q", f"{fleet.queue},{fleet.queue}-plain"))
        fleet.wait_for("leave", 80)
    assert "Prefetch count is now static" in worker.output
    keys = [key for kind, key, _, _ in fleet.events() if kind == "enter"]
    assert keys[:50].count("flow") >= 3
    fleet.wait_until_free()


def test_a_task_that_has_not_started_returns_when_its_worker_stops(make: Make) -> None:
    fleet = make({"limit": 1}, timeout=60.0)
    plain = f"{fleet.queue}-plain"
    (first,) = fleet.start("a", arguments=("-Q", f"{fleet.queue},{plain}"), concurrency=1)
    with fleet.producer() as app:
        app.send_task(WORK, ("plain",), {"hold": True}, queue=plain)
        fleet.wait_for("enter", 1)
        sent = app.send_task(WORK, ("x",)).id
        wait_until(lambda: counts(fleet.client).get("held") == 1, description="the worker to take the task")
        first.request_shutdown()
        # Not before it has told its pool: a task that ends earlier makes room for the next one.
        first.wait_for_output("Warm shutdown")
        fleet.release()
        assert first.wait() == 0
        assert counts(fleet.client) == {"waiting": {fleet.flow: 1}}
        fleet.start("b")
        wait_until(lambda: sent in fleet.entered(), timeout=20, description="the task to run")
    fleet.wait_until_free()


@pytest.mark.parametrize(
    ("url", "pool"),
    [*((url, "prefork") for url in BOTH), *thorough(("rabbitmq", "threads"), ("rabbitmq", "gevent"))],
    indirect=["url"],
)
def test_a_lost_connection_to_the_broker_runs_nothing_twice(make: Make, stack: ExitStack, url: str, pool: str) -> None:
    proxy = stack.enter_context(FaultProxy(Broker(url).address))
    fleet = make({"limit": 3}, timeout=60.0, broker_of_workers=Broker(url).url_at(proxy.address[1]))
    (worker,) = fleet.start("a", pool=pool, concurrency=3)
    with fleet.producer() as app:
        sent = [app.send_task(WORK, ("x",), {"hold": True}).id for _ in range(6)]
        # Celery gives back tasks of which their processes have not told that they have begun.
        inspect = app.control.inspect(timeout=1, limit=1)
        wait_until(lambda: [len(rows) for rows in (inspect.active() or {}).values()] == [3], description="three to run")
        proxy.cut()
        worker.wait_for_output("Connection to broker lost")
        fleet.release(3)
        fleet.wait_for("leave", 3)
        fleet.wait_for("enter", 6)
        fleet.release(3)
        fleet.wait_for("leave", 6)
    assert sorted(fleet.entered()) == sorted(sent)
    assert peak(fleet.events()) == 3
    fleet.wait_until_free()


@pytest.mark.parametrize("pool", ["prefork", *thorough("threads", "gevent")])
def test_a_lost_store_stops_no_other_task(make: Make, proxy: FaultProxy, pool: str) -> None:
    fleet = make({"limit": 2}, timeout=60.0, store_of_workers=proxy.url)
    plain = f"{fleet.queue}-plain"
    (worker,) = fleet.start("a", arguments=("-Q", f"{fleet.queue},{plain}"), pool=pool, concurrency=3)
    with fleet.producer() as app:
        sent = [app.send_task(WORK, ("x",), {"hold": True}).id for _ in range(4)]
        fleet.wait_for("enter", 2)
        proxy.mode = "refuse"
        proxy.cut()
        worker.wait_for_output("cannot take tasks of flows")
        others = [app.send_task(WORK, ("plain",), queue=plain).id for _ in range(5)]
        wait_until(lambda: set(others) <= set(fleet.entered()), description="the other tasks to run")
        # They end while the store is away.
        fleet.release(2)
        fleet.wait_for("leave", 7)
        assert len(fleet.entered()) == 7
        proxy.mode = "pass"
        fleet.wait_for("enter", 9)
        fleet.release(2)
        fleet.wait_for("leave", 9)
    assert sorted(fleet.entered()) == sorted(sent + others)
    assert "Connection to broker lost" not in worker.output
    fleet.wait_until_free()


def test_a_worker_starts_without_the_store(make: Make, proxy: FaultProxy) -> None:
    proxy.mode = "refuse"
    fleet = make({"limit": 2}, store_of_workers=proxy.url)
    plain = f"{fleet.queue}-plain"
    fleet.start("a", arguments=("-Q", f"{fleet.queue},{plain}"))
    with fleet.producer() as app:
        app.send_task(WORK, ("x",))
        app.send_task(WORK, ("plain",), queue=plain)
        fleet.wait_for("leave", 1)
        assert [key for _, key, _, _ in fleet.events()] == ["plain", "plain"]
        proxy.mode = "pass"
        fleet.wait_for("leave", 2)
    fleet.wait_until_free()


def test_a_cold_shutdown_returns_the_tasks_that_run(make: Make) -> None:
    fleet = make({"limit": 2}, timeout=60.0)
    (first,) = fleet.start("a")
    with fleet.producer() as app:
        sent = [app.send_task(WORK, ("x",), {"hold": True}).id for _ in range(3)]
        fleet.wait_for("enter", 2)
        os.kill(first.pid, signal.SIGQUIT)
        first.wait()
        wait_until(
            lambda: counts(fleet.client) == {"waiting": {fleet.flow: 3}}, description="the tasks to be in their gate"
        )
        fleet.start("b")
        fleet.wait_for("enter", 4)
        assert set(fleet.entered()[2:4]) == set(sent[:2])
        fleet.release(3)
        fleet.wait_for("leave", 3)
    fleet.wait_until_free()


def test_a_silent_store_stops_no_other_task(make: Make, proxy: FaultProxy) -> None:
    fleet = make({"limit": 1}, store_of_workers=proxy.url)
    plain = f"{fleet.queue}-plain"
    (worker,) = fleet.start("a", arguments=("-Q", f"{fleet.queue},{plain}"), concurrency=2)
    with fleet.producer() as app:
        app.send_task(WORK, ("x",))
        fleet.wait_for("leave", 1)
        proxy.mode = "blackhole"
        app.send_task(WORK, ("x",))
        worker.wait_for_output("cannot take tasks of flows")
        # Nothing waits for the store any more.
        for _ in range(20):
            app.send_task(WORK, ("plain",), queue=plain)
        fleet.wait_for("leave", 21, timeout=10)
        proxy.mode = "pass"
        fleet.wait_for("leave", 22)
    assert "Connection to broker lost" not in worker.output
    fleet.wait_until_free()


def test_delayed_tasks_wait_for_a_lost_store(make: Make, proxy: FaultProxy) -> None:
    fleet = make({"limit": 1}, store_of_workers=proxy.url)
    plain = f"{fleet.queue}-plain"
    arguments = ("-Q", f"{fleet.queue},{plain}", "--without-dispatch")
    (worker,) = fleet.start("a", arguments=arguments, concurrency=1)
    with fleet.producer() as app:
        app.send_task(WORK, ("x",))
        fleet.wait_for("leave", 1)
        proxy.mode = "refuse"
        proxy.cut()
        worker.wait_for_output("cannot take tasks of flows")
        # More than its prefetch count.
        queue = StoredTasks.of(app).queue
        for _ in range(10):
            app.send_task(WORK, ("x",), countdown=0.001)
        dispatcher = Dispatcher(app, queue)
        wait_until(lambda: (dispatcher.run(), queue.count())[1] == 0, description="the dispatch")
        dispatcher.close()
        worker.wait_for_output("tasks of flows wait in the worker")
        app.send_task(WORK, ("plain",), queue=plain)
        wait_until(lambda: fleet.events()[-1][1] == "plain", description="the other task to run")
        assert len(fleet.entered()) == 2
        proxy.mode = "pass"
        fleet.wait_for("leave", 12)
    assert peak(fleet.events()) == 1
    fleet.wait_until_free()


@pytest.mark.parametrize("countdowns", [[0.01, None], [None]], ids=["delayed", "immediate"])
def test_a_worker_without_flows_takes_those_of_another_app(make: Make, countdowns: list[float | None]) -> None:
    fleet = make(flowless=True)
    queues = [fleet.queue, f"{fleet.queue}-plain"]
    (worker,) = fleet.start("a")
    with fleet.producer() as app:
        app.conf.redis_queue_flow = {WORK: {"limit": 1}}
        app.control.add_consumer(queues[1], reply=True, timeout=10, limit=1)
        # A delayed one arrives from the broker, if there were no flows when it was due.
        sent = [
            app.send_task(WORK, ("x",), queue=queue, countdown=countdown).id
            for countdown in countdowns
            for queue in queues
        ]
        wait_until(lambda: set(sent) == set(fleet.entered()), timeout=20, description="all tasks to run")
        app.control.cancel_consumer(queues[1], reply=True, timeout=10, limit=1)
        kept = app.send_task(WORK, ("x",), queue=queues[1]).id
        last = app.send_task(WORK, ("x",), queue=queues[0]).id
        wait_until(lambda: last in fleet.entered(), timeout=20, description="the last task to run")
        assert kept not in fleet.entered()
    assert worker.finish() == 0


def test_a_pause_holds_tasks_of_flows(make: Make) -> None:
    fleet = make({"limit": 5})
    (worker,) = fleet.start("a")
    with fleet.producer() as app:
        flows = StoredTasks.of(app).flow
        flows.pause(fleet.flow)
        sent = [app.send_task(WORK, ("x",)).id for _ in range(3)]
        # It restarts, and runs what belongs to no flow.
        assert worker.finish() == 0
        fleet.start("b", arguments=("-Q", f"{fleet.queue},{fleet.queue}-plain"))
        app.send_task(WORK, ("plain",), queue=f"{fleet.queue}-plain")
        fleet.wait_for("leave", 1)
        assert counts(fleet.client) == {"waiting": {fleet.flow: 3}}
        flows.resume(fleet.flow)
        wait_until(lambda: set(sent) <= set(fleet.entered()), timeout=20, description="the paused tasks to run")
    fleet.wait_until_free()


def test_higher_priorities_of_rabbitmq_come_first(make: Make) -> None:
    fleet = make({"limit": 1})
    with fleet.producer() as app:
        sent = [app.send_task(WORK, ("x",), priority=priority).id for priority in (0, 9, 3, 9)]
        fleet.start("a", concurrency=1)
        fleet.wait_for("leave", 4)
    assert fleet.entered() == [sent[1], sent[3], sent[2], sent[0]]
    fleet.wait_until_free()


@pytest.mark.parametrize("url", BOTH, indirect=True)
def test_any_serializer_is_read_that_workers_accept(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    # Celery refuses pickle as root.
    monkeypatch.setenv("C_FORCE_ROOT", "1")
    fleet = make({"limit": 2}, settings={"accept_content": ["json", "pickle"]})
    fleet.start("a", pool="threads")
    with fleet.producer() as app:
        sent = {app.send_task(WORK, ("x",), serializer=name).id for name in ("json", "pickle")}
        fleet.wait_for("leave", 2)
    assert set(fleet.entered()) == sent
    fleet.wait_until_free()


def test_keys_of_unique_tasks_are_free_after_every_end(make: Make) -> None:
    fleet = make(settings={"redis_queue_unique": {WORK: {"key": "{key}"}, AGAIN: {}, FAIL: {}}})
    fleet.start("a")
    with fleet.producer() as app:
        first = app.send_task(WORK, kwargs={"key": "x", "hold": True}).id
        fleet.wait_for("enter", 1)
        assert app.send_task(WORK, kwargs={"key": "x"}).id == first
        delayed = app.send_task(WORK, kwargs={"key": "y"}, countdown=0.2).id
        assert app.send_task(WORK, kwargs={"key": "y"}).id == delayed
        app.send_task(AGAIN, (2, 0.05))
        app.send_task(FAIL)
        fleet.release()
        fleet.wait_for("leave", 5)
        wait_until(lambda: not StoredTasks.of(app).unique.list(), timeout=20, description="all keys to be free")
    assert [fleet.entered().count(id_) for id_ in (first, delayed)] == [1, 1]
    fleet.wait_until_free()


def test_messages_that_wait_are_counted_and_their_workers_known(make: Make) -> None:
    fleet = make({"limit": 1})
    fleet.start("a")
    with fleet.producer() as app:
        for _ in range(3):
            app.send_task(WORK, ("x",), {"hold": True})
        fleet.wait_for("enter", 1)
        with broker_queues(app) as queues:
            (depth,) = queues.depths([fleet.queue])
        assert (depth.ready, depth.waiting_for_place) == (2, 2)
        access = AppAccess(app)
        wait_until(lambda: [row.keeper for row in access.monitor.workers.rows()] == [True], description="a report")
        wait_until(
            lambda: [row.lease for row in access.monitor.workers.running()] == ["held"], description="a running task"
        )
        assert not list(unread_flows(look(access)))
        # A place without a message in flight.
        fleet.client.hset(KEYS.held.decode(), "flow-gone-001", "0\0gone\0\0\0")
        fleet.release(3)
        wait_until(lambda: not fleet.client.hlen(KEYS.held.decode()), description="the sweep")
        fleet.wait_for("leave", 3)
    fleet.wait_until_free()


def test_a_worker_needs_only_the_documented_permissions(make: Make, server: RedisServer) -> None:
    text = (ROOT / "docs" / "security.md").read_text("utf-8")
    (own,) = re.findall(r"### Workers of flows with a store elsewhere\n.*?```\n(.*?)\n```", text, re.DOTALL)
    (counts_starts,) = re.findall(r"A worker with leases .*?needs\s+`([^`]+)`", text, re.DOTALL)
    fleet = make({"limit": 1})
    load_scripts(fleet.client)
    rules = [*rules_of("dispatcher").split(), *rules_of("flows").split(), *counts_starts.split()]
    fleet.client.execute_command(
        "ACL", "SETUSER", "worker", "reset", "resetchannels", "on", ">pw", *rules, *own.split()
    )
    fleet.store_of_workers = f"redis+socket://worker:pw@{server.socket}"
    (worker,) = fleet.start("a")
    with fleet.producer() as app:
        app.send_task(WORK, ("x",), {"hold": True})
        fleet.wait_for("enter", 1)
        app.send_task(AGAIN, (1, 0.01))
        app.send_task(WORK, ("x",), countdown=0.01)
        fleet.release()
        fleet.wait_for("leave", 4)
        fleet.wait_until_free()
        # It waits for messages, and is woken.
        app.send_task(WORK, ("x",))
        fleet.wait_for("leave", 5)
        app.send_task(WORK, ("x",), {"hold": True})
        fleet.wait_for("enter", 6)
    kill(worker)
    wait_until(lambda: not fleet.client.info("clients")["blocked_clients"], description="Redis to see the kill")
    (second,) = fleet.start("b")
    fleet.wait_for("enter", 7)
    fleet.release()
    fleet.wait_until_free()
    for process in (worker, second):
        refused = [line for line in process.output.splitlines() if "NOPERM" in line or "permission" in line]
        # The version and settings of the server, which no rule of a worker allows.
        assert [line for line in refused if "'info' command" not in line] == []
