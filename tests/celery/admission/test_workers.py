"""Flows with real workers: a referee, to which each task tells when it enters and leaves."""

import gc
from collections.abc import Callable
from contextlib import ExitStack

import pytest
from celery import Celery, chord

from redis_queue.celery.stored_tasks import StoredTasks
from tests.support.celery.flow_names import AGAIN, FAIL, NOTHING, SYNC, WORK
from tests.support.celery.flows import QUEUE, Fleet, counts, kill, peak, url_of
from tests.support.marks import thorough
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

LIMIT = f"queue:{QUEUE}"
Make = Callable[..., Fleet]
ANYWHERE = pytest.mark.parametrize("url", ["store", "rabbitmq"], indirect=True)
"""The broker is the store, or is not."""


@pytest.mark.parametrize(
    ("url", "pool"),
    [
        *(("store", pool) for pool in ("prefork", "threads", "gevent", "solo")),
        *(("rabbitmq", pool) for pool in ("prefork", "threads", "gevent")),
        *thorough(("rabbitmq", "solo"), ("another database", "prefork")),
    ],
    indirect=["url"],
)
def test_no_more_than_the_limit_run_at_once(make: Make, pool: str) -> None:
    fleet = make({"limit": 3})
    fleet.start("a", "b", "c", pool=pool, concurrency=4)
    with fleet.producer() as app:
        for _ in range(60):
            app.send_task(WORK, ("x", 0.01))
        fleet.wait_for("leave", 60)
    assert 1 < peak(fleet.events()) <= 3
    fleet.wait_until_free()


@ANYWHERE
def test_one_at_a_time_for_each_key_in_the_order_of_sending(make: Make) -> None:
    fleet = make()
    fleet.start("a", "b")
    with fleet.producer() as app:
        # The producer does not have the task: the setting tells it.
        app.conf.redis_queue_flow = {SYNC: {"limit": 1, "key": "shop:{key}"}}
        sent = [app.send_task(SYNC, kwargs={"key": f"k{number % 3}", "seconds": 0.005}) for number in range(45)]
        fleet.wait_for("leave", 45)
    events = fleet.events()
    assert peak(events, of_key=True) == 1
    assert peak(events) > 1
    for key in ("k0", "k1", "k2"):
        order = [id_ for kind, of, id_, _ in events if (kind, of) == ("enter", key)]
        assert order == [result.id for number, result in enumerate(sent) if f"k{number % 3}" == key]
    fleet.wait_until_free()


@ANYWHERE
def test_the_place_of_a_killed_worker_is_free_again(make: Make) -> None:
    fleet = make({"limit": 2})
    first, _ = fleet.start("a", "b", concurrency=1)
    with fleet.producer() as app:
        sent = [app.send_task(WORK, ("x",), {"hold": True}).id for _ in range(4)]
    fleet.wait_for("enter", 2)
    kill(first)
    wait_until(lambda: fleet.client.info("clients")["blocked_clients"] <= 1, description="Redis to see the kill")
    fleet.release()
    fleet.wait_for("leave", 1)
    fleet.wait_for("enter", 3)
    fleet.release(5)
    wait_until(
        lambda: {id_ for kind, _, id_, _ in fleet.events() if kind == "leave"} == set(sent),
        timeout=40,
        description="all tasks to end",
    )
    # The task of the killed worker came again before those that waited.
    assert len(fleet.entered()) == 5
    fleet.wait_until_free()


def test_a_change_of_the_limit_holds_for_running_workers(make: Make) -> None:
    fleet = make({"limit": 1})
    fleet.start("a", concurrency=4)
    with fleet.producer() as app:
        for _ in range(6):
            app.send_task(WORK, ("x",), {"hold": True})
        fleet.wait_for("enter", 1)
        flows = StoredTasks.of(app).flow
        flows.set(LIMIT, limit=3)
        fleet.wait_for("enter", 3)
        flows.set(LIMIT, limit=0)
        fleet.release(3)
        fleet.wait_for("leave", 3)
        wait_until(lambda: counts(fleet.client) == {"waiting": {LIMIT: 3}}, description="the places to be free")
        assert len(fleet.entered()) == 3
        flows.reset(LIMIT)
        fleet.release(3)
        fleet.wait_for("leave", 6)
    fleet.wait_until_free()


def test_a_pause_outlives_the_workers(make: Make) -> None:
    fleet = make()
    with fleet.producer() as app:
        flows = StoredTasks.of(app).flow
        flows.pause(LIMIT)
        sent = [app.send_task(WORK, ("x",)).id]
        app.conf.redis_queue_flow = {SYNC: {"limit": 1, "key": "{key}"}}
        sent.append(app.send_task(SYNC, kwargs={"key": "y"}).id)
        for name in ("a", "b"):
            with fleet.worker(name, "-Q", f"{QUEUE},other-{name}").ready():
                # What goes to another queue runs.
                app.send_task(WORK, ("other",), queue=f"other-{name}")
                wait_until(
                    lambda: len(fleet.entered()) >= 1 + (name == "b"),  # noqa: B023
                    timeout=20,
                    description="the other task to run",
                )
        assert not set(sent) & set(fleet.entered())
        fleet.start("c")
        flows.resume(LIMIT)
        wait_until(lambda: set(sent) <= set(fleet.entered()), timeout=20, description="the paused tasks to run")
    fleet.wait_until_free()


@ANYWHERE
def test_retries_delays_and_discarded_tasks_keep_no_place(make: Make) -> None:
    fleet = make({"limit": 1})
    fleet.start("a", concurrency=4)
    with fleet.producer() as app:
        app.send_task(WORK, ("x",), {"hold": True})
        fleet.wait_for("enter", 1)
        revoked = app.send_task(WORK, ("x",))
        app.control.revoke(revoked.id, reply=True, timeout=10, limit=1)
        app.send_task(WORK, ("x",), expires=0.001)
        app.send_task("unheard of", ("x",))
        app.send_task(WORK, (1, 2, 3, 4, 5))
        app.send_task(AGAIN, (2,))
        app.send_task(AGAIN, (2, 0.05))
        app.send_task(FAIL)
        last = app.send_task(WORK, ("x",), countdown=0.1).id
        # The dispatcher has sent it, and if the broker is elsewhere, the worker has moved it into the backlog.
        wait_until(lambda: counts(fleet.client)["waiting"] == {fleet.flow: 8}, description="the tasks to wait")
        assert len(fleet.entered()) == 1
        fleet.release()
        wait_until(lambda: last in fleet.entered(), timeout=30, description="the delayed task to run")
    fleet.wait_until_free()
    assert peak(fleet.events()) == 1
    assert revoked.id not in fleet.entered()


def test_retries_and_time_limits_of_a_key_give_its_place_back(make: Make) -> None:
    one = {"limit": 1, "key": "{key}"}
    fleet = make(flows={WORK: one, AGAIN: {"limit": 1, "key": "{times}"}})
    fleet.start("a", "b")
    with fleet.producer() as app:
        slow = {"key": "x", "seconds": 600}
        app.send_task(WORK, kwargs=slow, soft_time_limit=1)
        app.send_task(WORK, kwargs=slow, time_limit=1)
        last = app.send_task(WORK, kwargs={"key": "x"}).id
        for countdown in (0, 0.05, 0):
            app.send_task(AGAIN, kwargs={"times": 2, "countdown": countdown})
        wait_until(lambda: last in fleet.entered(), timeout=30, description="the last task to run")
    fleet.wait_until_free()
    events = [event for event in fleet.events() if event[1] == "again"]
    assert len(events) == 2 * 3 * 3
    assert peak(events) == 1


def test_members_of_a_chord_run_one_at_a_time(make: Make, server: RedisServer, stack: ExitStack) -> None:
    results = {"result_backend": url_of(server), "task_ignore_result": False}
    fleet = make(flows={WORK: {"limit": 1, "key": "{key}"}}, settings=results)
    fleet.start("a", "b")
    # A result that is collected after its backend would raise a warning.
    stack.callback(gc.collect)
    with fleet.producer() as app:
        members = [app.signature(WORK, kwargs={"key": f"k{number % 2}", "seconds": 0.005}) for number in range(12)]
        chord(members)(app.signature(WORK, kwargs={"key": "last"}, immutable=True))
        fleet.wait_for("leave", 13)
    events = fleet.events()
    assert peak(events, of_key=True) == 1
    assert peak(events) == 2
    assert [key for _, key, _, _ in events[-2:]] == ["last", "last"]
    fleet.wait_until_free()


def test_the_next_task_of_a_key_starts_soon(make: Make) -> None:
    fleet = make(flows={WORK: {"limit": 1, "key": "{key}"}})
    fleet.start("a", "b", concurrency=1)
    with fleet.producer() as app:
        for number in range(60):
            app.send_task(WORK, kwargs={"key": f"k{number % 2}", "seconds": 0.01})
        fleet.wait_for("leave", 60)
    left: dict[str, int] = {}
    gaps = []
    for kind, key, _, at in fleet.events():
        if kind == "leave":
            left[key] = at
        elif key in left:
            gaps.append(at - left[key])
    # An idle worker looks by itself after 0.7 s or more; the figure itself is that of the benchmark.
    assert sorted(gaps)[len(gaps) // 2] < 300


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_no_place_is_held_behind_a_long_task(make: Make, pool: str) -> None:
    fleet = make({"limit": 50})
    fleet.start("a", "b", "c", pool=pool, concurrency=1)
    with fleet.producer() as app:
        StoredTasks.of(app).flow.pause(LIMIT)
        # So many short tasks that workers take them ahead, then some that last.
        for _ in range(300):
            app.send_task(NOTHING)
        for _ in range(6):
            app.send_task(WORK, ("x",), {"hold": True})
        StoredTasks.of(app).flow.resume(LIMIT)
        wait_until(
            lambda: (
                counts(fleet.client) == {"running": {LIMIT: 3}, "waiting": {LIMIT: 3}, "held": 3}
                and len(fleet.entered()) == 3
            ),
            timeout=30,
            description="three tasks to run, and three to wait for other processes",
        )
        # What waits does not start in a pause, and goes to the process that is free first.
        StoredTasks.of(app).flow.pause(LIMIT)
        fleet.release(3)
        wait_until(lambda: counts(fleet.client) == {"waiting": {LIMIT: 3}}, description="the running ones to end")
        StoredTasks.of(app).flow.resume(LIMIT)
        fleet.release(3)
    fleet.wait_until_free()


def test_a_pool_that_scales_grows(make: Make) -> None:
    fleet = make({"limit": 50})
    fleet.start("a", arguments=("--autoscale=3,1",), concurrency=1)
    with fleet.producer() as app:
        for _ in range(3):
            app.send_task(WORK, ("x",), {"hold": True})
    fleet.wait_for("enter", 3)
    fleet.release(3)
    fleet.wait_until_free()


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_rate_goes_on_after_a_lost_connection(make: Make, pool: str) -> None:
    fleet = make(flows={WORK: {"rate": "5/s"}})
    (worker,) = fleet.start("a", pool=pool)
    with fleet.producer() as app:
        # It has all its connections.
        app.send_task(WORK, ("x",))
        fleet.wait_until_free()
        for kind in ("normal", "pubsub"):
            fleet.client.client_kill_filter(_type=kind, skipme=True)
        worker.wait_for_output("Connection to broker lost")
        for _ in range(5):
            app.send_task(WORK, ("x",))
        fleet.wait_for("leave", 6, timeout=20)
    times = [at for kind, _, _, at in fleet.events() if kind == "enter"][1:]
    assert times[-1] - times[0] >= 790
    fleet.wait_until_free()


def test_what_a_producer_without_flows_sends_is_counted(make: Make, server: RedisServer) -> None:
    fleet = make({"limit": 1})
    fleet.start("a")
    with Celery("stock", broker=url_of(server), set_as_current=False) as stock, fleet.producer() as app:
        stock.conf.task_default_queue = QUEUE
        app.send_task(WORK, kwargs={"key": "counted"})
        for _ in range(3):
            stock.send_task(WORK, kwargs={"key": "passes"})
        stock.send_task(SYNC, kwargs={"key": "passes"})
        fleet.wait_for("leave", 5)
        flows = StoredTasks.of(app).flow

        def uncounted() -> dict[str, int]:
            return {state.name: state.uncounted for state in flows.list()}

        wait_until(lambda: uncounted() == {LIMIT: 4, SYNC: 1}, description="the messages to be counted")
