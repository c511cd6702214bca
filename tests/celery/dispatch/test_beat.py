"""The two periodic tasks: names, entries in the beat schedule, and execution in a worker."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery, signals
from celery.beat import Scheduler, Service
from celery.schedules import schedule

from redis_queue import DelayQueue, RedisQueue
from redis_queue.celery import (
    DurableTasks,
    Store,
    add_beat_entries,
    beat_schedule,
    push_task,
    register_delay_dispatch,
    register_putback,
)
from tests.support.celery.brokers import Broker, ManualClock
from tests.support.servers import RedisServer
from tests.support.store.server_states import REFUSALS
from tests.support.wait import wait_until

PUTBACK = "tasks.putback.putback"
DELAY_DISPATCH = "tasks.delay_dispatch.delay_dispatch"


def periodic_tasks(app: Celery) -> set[str]:
    return {name for name in app.tasks if name.startswith("tasks.")}


@pytest.fixture
def app(redis_url: str) -> Celery:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.redis_queue_url = redis_url
    return app


class TestSchedule:
    def test_ticks_expire_so_that_they_do_not_accumulate(self) -> None:
        for entry in beat_schedule().values():
            assert entry["schedule"] <= entry["options"]["expires"] <= max(entry["schedule"], 10)

    def test_routes_of_the_app_choose_the_queue_by_default(self) -> None:
        assert all("queue" not in entry["options"] for entry in beat_schedule().values())
        assert {entry["options"]["queue"] for entry in beat_schedule(queue="ticks").values()} == {"ticks"}


class TestInstall:
    def test_registers_both_tasks_and_adds_them_to_the_schedule(self, app: Celery) -> None:
        app.conf.beat_schedule = {"report": {"task": "shop.report", "schedule": 60}}

        add_beat_entries(app, queue="ticks")

        assert periodic_tasks(app) == {PUTBACK, DELAY_DISPATCH}
        assert set(app.conf.beat_schedule) == {"report", *beat_schedule()}
        assert app.conf.beat_schedule["redis-queue-putback"]["options"]["queue"] == "ticks"

    def test_keeps_user_entries_with_the_same_names(self, app: Celery) -> None:
        mine = {"task": DELAY_DISPATCH, "schedule": 0.2}
        app.conf.beat_schedule = {"redis-queue-delay-dispatch": mine}

        add_beat_entries(app)

        assert app.conf.beat_schedule["redis-queue-delay-dispatch"] == mine

    def test_does_not_change_the_tasks_of_other_apps(self, app: Celery) -> None:
        other = Celery("shop", broker="memory://", set_as_current=False)

        add_beat_entries(app)

        assert periodic_tasks(other) == set()


class TestTasks:
    def test_have_names_and_return_their_results(self, app: Celery, client: redis.Redis) -> None:
        putback, dispatch = register_putback(app), register_delay_dispatch(app)
        assert (putback.name, dispatch.name) == (PUTBACK, DELAY_DISPATCH)
        assert (putback.ignore_result, dispatch.ignore_result) == (True, True)

        Store.of(app).queue("lines").put("x")
        push_task(Store.of(app).delay_queue(), "shop.remind")

        assert dispatch() == {"sent": 1, "failed": 0}
        assert putback() == {
            "delay:scheduled": {"returned": 0, "dead": 0, "promoted": 0},
            "queue:lines": {"returned": 0, "dead": 0, "promoted": 0},
        }

    def test_close_their_connections(self, app: Celery, client: redis.Redis) -> None:
        putback, dispatch = register_putback(app), register_delay_dispatch(app)
        Store.of(app).delay_queue().push({})
        for number in range(10):
            Store.of(app).queue(f"lines-{number}").put("x")
        putback()
        dispatch()
        before: Any = client.info("clients")

        for _ in range(10):
            putback()
            dispatch()

        after: Any = client.info("clients")
        assert after["connected_clients"] <= before["connected_clients"] + 1


class Executions:
    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def add(self, request: Any, *args: Any, **kwargs: Any) -> None:
        with self._lock:
            self.requests.append(
                {
                    "id": request.id,
                    "root": request.root_id,
                    "parent": request.parent_id,
                    "queue": request.delivery_info["routing_key"],
                    "priority": request.delivery_info["priority"],
                    "headers": request.headers,
                    "expires": request.expires,
                    "eta": request.eta,
                    "args": args,
                    "kwargs": kwargs,
                }
            )

    @property
    def ids(self) -> list[str]:
        with self._lock:
            return [request["id"] for request in self.requests]


@pytest.mark.usefixtures("quiet", "celery_worker")
class TestInAWorker:
    @pytest.fixture
    def quiet(self) -> Any:
        """Keep the log of the worker out of the log of the test."""
        logging.getLogger("celery").setLevel(logging.ERROR)
        yield
        logging.getLogger("celery").setLevel(logging.NOTSET)

    @pytest.fixture
    def queues(self, broker: Broker) -> dict[str, str]:
        return {name: broker.name(name) for name in ("default", "mail", "ticks")}

    @pytest.fixture
    def celery_config(self, broker: Broker, redis_url: str, queues: dict[str, str]) -> dict[str, Any]:
        return broker.settings(
            task_default_queue=queues["default"],
            redis_queue_url=redis_url,
            worker_enable_remote_control=False,
            worker_send_task_events=False,
        )

    @pytest.fixture
    def celery_worker_pool(self) -> str:
        return "threads"

    @pytest.fixture
    def celery_worker_parameters(self, queues: dict[str, str], tasks: Executions) -> dict[str, Any]:
        return {"concurrency": 4, "queues": list(queues.values()), "perform_ping_check": False}

    @pytest.fixture
    def tasks(self, celery_app: Celery, queues: dict[str, str]) -> Executions:
        """The app's tasks, and a record of their executions."""
        done = Executions()

        @celery_app.task(name="shop.remind", shared=False, bind=True)  # type: ignore[untyped-decorator]
        def remind(self: Any, *args: Any, **kwargs: Any) -> None:
            done.add(self.request, *args, **kwargs)

        add_beat_entries(celery_app, queue=queues["ticks"])
        return done

    @pytest.fixture
    def tick(self, celery_app: Celery, queues: dict[str, str]) -> Callable[[str], Any]:
        """Send one of the periodic tasks like beat."""

        def send(name: str) -> Any:
            (entry,) = (entry for entry in celery_app.conf.beat_schedule.values() if entry["task"] == name)
            return celery_app.send_task(name, **entry["options"])

        return send

    @pytest.fixture
    def delay_queue(self, celery_app: Celery) -> DelayQueue:
        return Store.of(celery_app).delay_queue()

    def test_due_call_runs_with_all_its_options(
        self, delay_queue: DelayQueue, tasks: Executions, tick: Callable[[str], Any], queues: dict[str, str]
    ) -> None:
        push_task(
            delay_queue,
            "shop.remind",
            ["42"],
            {"tone": "kind"},
            id="order-42",
            queue=queues["mail"],
            priority=6,
            headers={"tenant": "acme"},
            expires=60,
        )
        before = datetime.now(timezone.utc)

        tick(DELAY_DISPATCH)
        wait_until(lambda: tasks.ids, description="the call to run")

        (request,) = tasks.requests
        assert request["id"] == "order-42"
        assert (request["args"], request["kwargs"]) == (("42",), {"tone": "kind"})
        assert request["queue"] == queues["mail"]
        assert request["priority"] == 6
        assert request["headers"]["tenant"] == "acme"
        assert request["eta"] is None
        expires = datetime.fromisoformat(request["expires"]) - before
        assert timedelta(seconds=60) <= expires < timedelta(seconds=90)

    def test_call_has_no_parent_although_a_tick_sent_it(
        self, delay_queue: DelayQueue, tasks: Executions, tick: Callable[[str], Any]
    ) -> None:
        push_task(delay_queue, "shop.remind", id="order-42")

        tick(DELAY_DISPATCH)
        wait_until(lambda: tasks.ids, description="the call to run")

        (request,) = tasks.requests
        assert (request["root"], request["parent"]) == ("order-42", None)

    @pytest.mark.timeout(180)
    def test_overlapping_ticks_run_each_call_once(
        self, delay_queue: DelayQueue, tasks: Executions, tick: Callable[[str], Any]
    ) -> None:
        ids = delay_queue.push_many([{"task": "shop.remind", "args": [number]} for number in range(300)])

        for _ in range(6):
            tick(DELAY_DISPATCH)
        # Sometimes Celery 5.5 takes from RabbitMQ only once a second.
        wait_until(lambda: len(tasks.ids) >= 300, timeout=80, description="all calls to run")
        wait_until(lambda: not delay_queue.stats().in_flight, description="all calls to be acked")

        assert len(delay_queue) == 0
        assert Counter(tasks.ids) == Counter(ids)

    def test_tick_puts_back_entries_of_a_dead_dispatcher_and_the_next_sends_them(
        self, client: redis.Redis, clock: ManualClock, tasks: Executions, tick: Callable[[str], Any]
    ) -> None:
        clock.advance(-3600)
        dead = DelayQueue("scheduled", client, clock=clock)
        push_task(dead, "shop.remind", id="held")
        assert dead.claim()
        lines = RedisQueue("lines", client, clock=clock)
        lines.put("x")
        assert lines.get()

        tick(PUTBACK)
        wait_until(lambda: lines.stats().ready, description="the message to be put back")
        wait_until(lambda: dead.stats().due or dead.stats().waiting, description="the entry to be put back")
        tick(DELAY_DISPATCH)
        wait_until(lambda: tasks.ids, description="the call to run")

        assert tasks.ids == ["held"]

    def test_expired_tick_is_dropped(
        self, celery_app: Celery, delay_queue: DelayQueue, tasks: Executions, queues: dict[str, str]
    ) -> None:
        push_task(delay_queue, "shop.remind", id="waits")
        late = {"expires": datetime.now(timezone.utc) - timedelta(seconds=1), "queue": queues["ticks"]}
        logging.getLogger("celery.app.base").setLevel(logging.ERROR)

        celery_app.send_task(DELAY_DISPATCH, **late)
        celery_app.send_task("shop.remind", ["behind it"], task_id="behind", queue=queues["ticks"])
        wait_until(lambda: tasks.ids, description="the task after the tick to run")

        assert tasks.ids == ["behind"]
        assert delay_queue.stats().due == 1


class TestOutage:
    """Beat waits for a broker that refuses commands, says so once, and sends what was due."""

    @pytest.mark.parametrize("refusal", ["OOM", "READONLY", "NOREPLICAS"])
    def test_a_run_is_sent_once_the_broker_takes_it(self, refusal: str, caplog: pytest.LogCaptureFixture) -> None:
        with RedisServer() as server, server.client() as client, ThreadPoolExecutor(1) as pool:
            app = Celery("beats", broker=f"redis+socket://{server.socket}", set_as_current=False)
            DurableTasks(app, leases=False)
            app.conf.task_publish_retry = False
            service = Service(app, scheduler_cls=Scheduler)
            signals.beat_init.send(sender=service)
            scheduler = service.scheduler
            entry = scheduler.Entry("tick", "shop.tick", schedule=schedule(60), app=app)
            scheduler.apply_entry(entry)
            wait_until(lambda: client.llen("celery") == 1, description="the first run")
            with caplog.at_level("WARNING"):
                with REFUSALS[refusal](server):
                    sent = pool.submit(scheduler.apply_entry, entry)
                    wait_until(lambda: "beat cannot send" in caplog.text, description="the line")
                    assert not sent.done()
                sent.result(timeout=30)
            assert client.llen("celery") == 2
            assert caplog.text.count("beat cannot send") == 1
            assert caplog.text.count("beat sends again") == 1
            assert "Message Error" not in caplog.text
            app.close()

    def test_other_errors_are_those_of_celery(self, caplog: pytest.LogCaptureFixture) -> None:
        app = Celery("beats", broker="memory://", set_as_current=False)
        DurableTasks(app, leases=False)
        service = Service(app, scheduler_cls=Scheduler)
        signals.beat_init.send(sender=service)
        entry = service.scheduler.Entry("tick", "shop.tick", schedule=schedule(60), app=app, args=(object(),))
        service.scheduler.apply_entry(entry)
        assert "Message Error" in caplog.text
