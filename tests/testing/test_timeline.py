"""Timeline: delayed tasks wait and run at their due time, and the app is restored afterwards."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from types import SimpleNamespace
from typing import Any

import freezegun
import pytest
import redis
import time_machine
from celery import Celery, Task, _state, chain, chord, group, shared_task
from celery.exceptions import Ignore
from celery.exceptions import TimeoutError as NoResultError
from celery.signals import task_postrun, task_revoked
from kombu.exceptions import ContentDisallowed

from redis_queue import InvalidDelayError, InvalidValueError, Lock, LockTakenError
from redis_queue.celery import DurableTasks, push_task
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.testing import Timeline
from redis_queue.testing.installation import find_app

HOUR = timedelta(hours=1)
NOWHERE = "redis://127.0.0.1:1/0"

Shop = Any
"""The tasks, the app, and *seen*: the arguments and times of the runs."""


def make_app(**options: Any) -> Celery:
    app = Celery("shop", broker=NOWHERE, backend=NOWHERE, set_as_current=False, **options)
    app.conf.task_always_eager = True
    app.conf.task_eager_propagates = True
    return app


@pytest.fixture
def app() -> Celery:
    """An app in eager mode, whose broker and backend are unreachable."""
    app = make_app()
    DurableTasks(app, leases=False)
    return app


@pytest.fixture
def shop(app: Celery) -> Shop:
    return make_shop(app)


def make_shop(app: Celery) -> Shop:  # noqa: C901 - many small tasks
    seen: list[Any] = []
    shop = SimpleNamespace(app=app, seen=seen, timeline=None, failed=[])

    def note(what: Any) -> None:
        seen.append(what)

    class Telling(Task):
        def on_failure(self, exc: Any, *_: Any) -> None:
            shop.failed.append(exc)

    @app.task(name="shop.remind", shared=False)
    def remind(order: Any, **_: Any) -> Any:
        note(order)
        return order + 1

    @app.task(name="shop.total", shared=False)
    def total(numbers: Any) -> Any:
        return sum(numbers)

    @app.task(name="shop.charge", bind=True, max_retries=3, shared=False)
    def charge(self: Any, delay: float) -> None:
        note(("try", self.request.retries, self.request.is_eager))
        raise self.retry(countdown=delay)

    @app.task(name="shop.broken", base=Telling, shared=False)
    def broken() -> None:
        raise ValueError("broken")

    @app.task(name="shop.again", shared=False)
    def again(left: int, delay: float = 60) -> None:
        note((left, shop.timeline.now))
        if left:
            again.apply_async((left - 1,), {"delay": delay}, countdown=delay)

    @app.task(name="shop.sender", shared=False)
    def sender() -> str:
        remind.delay(1)
        note("sender ends")
        return "sent"

    @app.task(name="shop.waiter", shared=False)
    def waiter() -> Any:
        return remind.delay(1).get(disable_sync_subtasks=False)

    tasks = (remind, total, charge, broken, again, sender, waiter)
    vars(shop).update({task.name.removeprefix("shop."): task for task in tasks})
    return shop


@pytest.fixture
def timeline(shop: Shop, redis_url: str, client: redis.Redis) -> Iterator[Timeline]:
    with Timeline(shop.app, redis_url) as timeline:
        shop.timeline = timeline
        yield timeline


class TestDurableTasks:
    """A delayed task waits, whichever part of Celery sends it; plain eager Celery would run it at once."""

    def test_countdown(self, shop: Shop, timeline: Timeline) -> None:
        shop.remind.apply_async((42,), countdown=3600)
        assert shop.seen == []
        (row,) = timeline.assert_scheduled(shop.remind, args=(42,), kwargs={}, in_=HOUR, queue="celery")
        assert (row.task, row.args, row.kwargs, row.retries) == ("shop.remind", (42,), {}, 0)
        timeline.travel(minutes=59)
        assert shop.seen == []
        (run,) = timeline.travel(minutes=1)
        assert shop.seen == [42]
        assert (run.id, run.state, run.result, run.at) == (row.id, "SUCCESS", 43, row.due_at)
        timeline.assert_not_scheduled()

    def test_eta(self, shop: Shop, timeline: Timeline) -> None:
        moment = datetime.now(timezone.utc) + HOUR
        shop.remind.apply_async((42,), eta=moment)
        timeline.assert_scheduled(shop.remind, at=moment, within=0.01)
        timeline.travel_to(moment + HOUR)
        assert shop.seen == [42]

    def test_an_eta_that_has_passed_runs_with_the_next_travel(self, shop: Shop, timeline: Timeline) -> None:
        shop.remind.apply_async((42,), eta=datetime.now(timezone.utc) - HOUR)
        before = timeline.now
        (run,) = timeline.travel()
        assert shop.seen == [42]
        assert run.at >= before

    def test_a_part_of_a_chain(self, shop: Shop, timeline: Timeline) -> None:
        result = chain(shop.remind.s(1), shop.remind.s().set(countdown=60), shop.remind.s())()
        assert shop.seen == [1]
        timeline.assert_scheduled(shop.remind, args=(2,), in_=60)
        timeline.travel(minutes=1)
        assert shop.seen == [1, 2, 3]
        assert result.get() == 4

    def test_a_part_of_a_chord(self, shop: Shop, timeline: Timeline) -> None:
        result = chord([shop.remind.s(1), shop.remind.s(2).set(countdown=60)])(shop.total.s())
        assert shop.seen == [1]
        timeline.travel(minutes=1)
        assert result.get() == 5

    def test_a_group(self, shop: Shop, timeline: Timeline) -> None:
        result = group(shop.remind.s(number) for number in range(3)).apply_async(countdown=60)
        timeline.assert_scheduled(shop.remind, in_=60, count=3)
        timeline.travel(minutes=1)
        assert result.get() == [1, 2, 3]

    def test_a_task_sent_by_name(self, shop: Shop, timeline: Timeline) -> None:
        shop.app.send_task("shop.remind", (42,), countdown=60)
        timeline.travel(minutes=1)
        assert shop.seen == [42]

    def test_send_many_and_push_task(self, shop: Shop, timeline: Timeline) -> None:
        timeline.durable.send_many([shop.remind.s(1), shop.remind.s(2)], countdown=60)
        push_task(timeline.durable.queue, shop.remind, (3,), delay=60)
        timeline.assert_scheduled(shop.remind, count=3, in_=60)
        timeline.travel(minutes=1)
        assert shop.seen == [1, 2, 3]

    def test_a_retry_waits_again(self, shop: Shop, timeline: Timeline) -> None:
        shop.app.conf.task_eager_propagates = False
        shop.charge.apply_async((60,), countdown=60)
        runs = timeline.travel(minutes=2)
        assert [run.state for run in runs] == ["RETRY", "RETRY"]
        (row,) = timeline.assert_scheduled(shop.charge, in_=60)
        assert (row.id, row.retries) == (runs[0].id, 2)
        timeline.travel(minutes=2)
        assert shop.seen == [("try", number, False) for number in range(4)]
        assert [run.state for run in timeline.runs] == ["RETRY", "RETRY", "RETRY", "FAILURE"]
        timeline.assert_not_scheduled()

    def test_a_retry_of_an_immediate_task_waits(self, shop: Shop, timeline: Timeline) -> None:
        result = shop.charge.delay(60)
        timeline.assert_scheduled(shop.charge, in_=60)
        assert result.state == "RETRY"

    def test_a_retry_without_a_delay_runs_after_the_attempt(self, shop: Shop, timeline: Timeline) -> None:
        shop.app.conf.task_eager_propagates = False
        result = shop.charge.delay(0)
        assert [run.state for run in timeline.runs] == ["RETRY", "RETRY", "RETRY", "FAILURE"]
        assert result.state == "FAILURE"

    @pytest.mark.parametrize(
        "settings", [{"task_protocol": 1}, {"task_serializer": "yaml"}, {"task_compression": "zlib"}]
    )
    def test_every_message_format(self, settings: Any, app: Celery, redis_url: str, client: redis.Redis) -> None:
        app.conf.update(settings, accept_content=["json", "yaml"])
        shop = make_shop(app)
        with Timeline(app, redis_url) as timeline:
            shop.remind.apply_async((42,), countdown=60)
            shop.remind.delay(41)
            timeline.assert_scheduled("shop.remind", args=[42])
            timeline.travel(minutes=1)
        assert shop.seen == [41, 42]

    def test_a_content_type_that_the_app_does_not_accept_is_refused(self, shop: Shop, timeline: Timeline) -> None:
        shop.remind.apply_async((42,), countdown=60, serializer="pickle")
        with pytest.raises(ContentDisallowed):
            timeline.travel(minutes=1)
        assert shop.seen == []


class TestTravel:
    def test_tasks_run_by_due_time_and_then_in_the_order_of_sending(self, shop: Shop, timeline: Timeline) -> None:
        moment = timeline.now + HOUR
        shop.remind.apply_async((9,), countdown=7200)
        for number in range(8):
            shop.remind.apply_async((number,), eta=moment)
        shop.remind.apply_async((8,), countdown=60)
        timeline.travel(days=1)
        assert shop.seen == [8, *range(8), 9]

    def test_tasks_delayed_by_tasks_run_at_their_due_time(self, shop: Shop, timeline: Timeline) -> None:
        shop.again.apply_async((3,), countdown=60)
        (row,) = timeline.scheduled
        timeline.travel(minutes=3)
        assert shop.seen == [(3, row.due_at), (2, row.due_at + HOUR / 60), (1, row.due_at + HOUR / 30)]
        timeline.assert_scheduled(shop.again, args=(0,), in_=60)
        # Real time does not add to the time of the test.
        assert timeline.now - row.stored_at < timedelta(minutes=3, seconds=30)

    def test_each_travel_starts_at_the_end_of_the_last(self, shop: Shop, timeline: Timeline) -> None:
        start = timeline.now
        timeline.travel(timedelta(days=1), limit=1)
        timeline.travel(3600.0)
        timeline.travel_to(start + timedelta(days=2))
        assert timedelta() <= timeline.now - start - timedelta(days=2) < timedelta(seconds=30)

    def test_an_expired_task_does_not_run(self, shop: Shop, timeline: Timeline) -> None:
        heard: list[Any] = []

        def hear(sender: Any, request: Any, expired: bool, **_: Any) -> None:
            heard.append((sender.name, request.id, expired))

        task_revoked.connect(hear)
        result = shop.remind.apply_async((42,), countdown=60, expires=30)
        (run,) = timeline.travel(minutes=1)
        task_revoked.disconnect(hear)
        assert (shop.seen, run.state, result.state) == ([], "REVOKED", "REVOKED")
        assert heard == [("shop.remind", result.id, True)]

    @pytest.mark.parametrize("by_name", [False, True])
    def test_expires_counts_from_the_time_of_the_test(self, by_name: bool, shop: Shop, timeline: Timeline) -> None:
        timeline.travel(days=1)
        send: Callable[..., Any] = shop.remind.apply_async
        if by_name:
            send = lambda *args, **options: shop.app.send_task("shop.remind", *args, **options)  # noqa: E731
        send((42,), countdown=60, expires=90)
        assert [timeline.now - row.expires_at < timedelta() for row in timeline.scheduled if row.expires_at] == [True]
        timeline.travel(minutes=1)
        assert shop.seen == [42]

    def test_a_revoked_or_replaced_task_does_not_run(self, shop: Shop, timeline: Timeline) -> None:
        result = shop.remind.apply_async((1,), countdown=60)
        shop.remind.apply_async((2,), countdown=60, task_id="order-2")
        shop.remind.apply_async((3,), countdown=90, task_id="order-2")
        result.revoke()
        timeline.assert_not_scheduled(shop.remind, args=(1,))
        timeline.travel(hours=1)
        assert shop.seen == [3]
        assert result.state == "REVOKED"

    def test_a_rescheduled_task_runs_at_its_new_time(self, shop: Shop, timeline: Timeline) -> None:
        result = shop.remind.apply_async((1,), countdown=60)
        timeline.durable.reschedule(result.id, countdown=7200)
        timeline.travel(hours=1)
        assert shop.seen == []
        timeline.travel(hours=1)
        assert shop.seen == [1]

    def test_a_failure_raises_at_its_due_time_and_later_tasks_wait(self, shop: Shop, timeline: Timeline) -> None:
        start = timeline.now
        shop.broken.apply_async(countdown=60)
        shop.remind.apply_async((42,), countdown=120)
        with pytest.raises(ValueError, match="broken"):
            timeline.travel(hours=1)
        assert timeline.now - start < timedelta(seconds=90)
        assert [str(error) for error in shop.failed] == ["broken"]
        timeline.assert_scheduled(shop.remind, in_=60)
        timeline.travel(hours=1)
        assert shop.seen == [42]

    def test_without_propagation_failures_are_collected(self, shop: Shop, timeline: Timeline) -> None:
        shop.app.conf.task_eager_propagates = False
        result = shop.broken.apply_async(countdown=60)
        shop.remind.apply_async((42,), countdown=120)
        runs = timeline.travel(hours=1)
        assert [run.state for run in runs] == ["FAILURE", "SUCCESS"]
        assert timeline.failures == runs[:1]
        assert repr(runs[0].exception) == "ValueError('broken')"
        with pytest.raises(ValueError, match="broken"):
            result.get()

    def test_an_endless_series_of_tasks_is_an_error(self, shop: Shop, timeline: Timeline) -> None:
        shop.again.apply_async((1000,), {"delay": 1}, countdown=1)
        with pytest.raises(RuntimeError, match="10 tasks ran"):
            timeline.travel(hours=1, limit=10)
        assert len(timeline.runs) == 10

    def test_a_task_cannot_travel(self, shop: Shop, timeline: Timeline) -> None:
        @shop.app.task(name="shop.traveller", shared=False)
        def traveller() -> None:
            timeline.travel(hours=1)

        with pytest.raises(InvalidValueError, match="a task cannot travel"):
            traveller.delay()

    def test_a_task_waits_for_a_lock_that_the_test_holds(self, app: Celery, timeline: Timeline) -> None:
        seen: list[int] = []

        @app.task(name="shop.bill", bind=True, shared=False, max_retries=None)
        def bill(self: Any, customer: int) -> None:
            try:
                with Lock(f"customer:{customer}", timeline.durable.store.client).hold():
                    seen.append(self.request.retries)
            except LockTakenError:
                raise self.retry(countdown=30) from None

        with Lock("customer:7", timeline.durable.store.client).hold():
            bill.delay(7)
            # More than the three retries of a task by default.
            timeline.travel(minutes=2)
        timeline.travel(minutes=1)
        assert [run.state for run in timeline.runs] == ["RETRY"] * 5 + ["SUCCESS"]
        assert seen == [5]

    def test_a_task_of_another_project_is_sent(self, shop: Shop, timeline: Timeline) -> None:
        shop.app.send_task("mails.send", (1,), countdown=60)
        shop.app.send_task("mails.send", (2,))
        assert timeline.travel(minutes=1) == []
        assert [row.call for row in timeline.sent] == ["mails.send(2)", "mails.send(1)"]

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (((-1,), {}), ">= 0"),
            (((HOUR,), {"hours": 1}), "expected only one of them"),
            ((("1h",), {}), "must be a number of seconds"),
            (((), {"days": -1}), ">= 0"),
        ],
    )
    def test_an_invalid_time_is_refused(self, arguments: Any, told: str, timeline: Timeline) -> None:
        before = timeline.now
        with pytest.raises(InvalidDelayError, match=told):
            timeline.travel(*arguments[0], **arguments[1])
        assert timeline.now - before < timedelta(seconds=10)

    def test_time_does_not_go_back(self, timeline: Timeline) -> None:
        with pytest.raises(InvalidDelayError, match="must not be in the past"):
            timeline.travel_to(datetime.now(timezone.utc) - HOUR)
        with pytest.raises(InvalidDelayError, match="must have a time zone"):
            timeline.travel_to(datetime(2050, 1, 1))


class TestImmediateTasks:
    def test_it_runs_and_has_its_result(self, shop: Shop, timeline: Timeline) -> None:
        result = shop.remind.delay(41)
        assert (shop.seen, result.get(), result.state) == ([41], 42, "SUCCESS")
        assert [row.call for row in timeline.sent] == ["shop.remind(41)"]

    def test_the_result_is_the_object_itself(self, shop: Shop, timeline: Timeline) -> None:
        made = object()

        @shop.app.task(name="shop.make", shared=False)
        def make() -> object:
            return made

        assert make.delay().get() is made

    def test_it_runs_after_the_task_that_sent_it(self, shop: Shop, timeline: Timeline) -> None:
        shop.sender.apply_async(countdown=60)
        timeline.travel(minutes=1)
        assert shop.seen == ["sender ends", 1]

    def test_a_task_may_wait_for_it(self, shop: Shop, timeline: Timeline) -> None:
        assert shop.waiter.delay().get() == 2

    def test_callbacks_and_signals_are_called(self, shop: Shop, timeline: Timeline) -> None:
        heard: list[Any] = []

        def hear(task: Any, state: str, **_: Any) -> None:
            heard.append((task.name, state))

        task_postrun.connect(hear)
        shop.app.conf.task_eager_propagates = False
        shop.remind.apply_async((1,), link=shop.remind.s())
        shop.broken.apply_async(link_error=shop.remind.si(5), countdown=1)
        timeline.travel(1)
        task_postrun.disconnect(hear)
        assert shop.seen == [1, 2, 5]
        assert heard == [("shop.remind", "SUCCESS")] * 2 + [("shop.broken", "FAILURE"), ("shop.remind", "SUCCESS")]

    def test_a_failure_raises(self, shop: Shop, timeline: Timeline) -> None:
        with pytest.raises(ValueError, match="broken"):
            shop.broken.delay()

    def test_getting_the_result_of_a_waiting_task_raises_at_once(self, shop: Shop, timeline: Timeline) -> None:
        result = shop.remind.apply_async((41,), countdown=60)
        with pytest.raises(NoResultError, match="travel to it first"):
            result.get()
        timeline.travel(minutes=1)
        assert result.get() == 42

    def test_getting_a_result_that_cannot_come_raises_at_once(self, shop: Shop, timeline: Timeline) -> None:
        @shop.app.task(name="shop.ignored", shared=False)
        def ignored() -> None:
            raise Ignore

        steps = chain(shop.remind.s(1).set(countdown=60), shop.remind.s())()
        with pytest.raises(NoResultError, match="was not sent yet"):
            steps.get()
        timeline.travel(minutes=1)
        assert steps.get() == 3
        with pytest.raises(NoResultError, match="ended as IGNORED"):
            ignored.delay().get()
        with pytest.raises(NoResultError, match="nothing runs it here"):
            shop.app.send_task("elsewhere.task").get()
        timeline.eager = False
        with pytest.raises(NoResultError, match="nothing runs it here"):
            shop.remind.delay(1).get()

    def test_a_result_of_a_worker_in_this_process_is_waited_for(self, shop: Shop, timeline: Timeline) -> None:
        timeline.eager = False
        # celery.contrib.testing.worker starts with this; a complete worker would affect other tests.
        shop.app.loader.init_worker()
        with pytest.raises(NoResultError, match="timed out"):
            shop.remind.delay(1).get(timeout=0.01)

    def test_with_eager_off_it_stays_in_a_broker_in_memory(self, shop: Shop, timeline: Timeline) -> None:
        timeline.eager = False
        result = shop.remind.delay(41)
        shop.sender.apply_async(countdown=60)
        timeline.travel(minutes=1)
        assert shop.seen == ["sender ends"]
        assert [row.call for row in timeline.sent] == ["shop.remind(41)", "shop.remind(1)"]
        with shop.app.connection_for_read() as connection:
            assert connection.transport.driver_type == "memory"
            queue = connection.SimpleQueue("celery")
            assert [queue.get_nowait().headers["id"] for _ in range(2)] == [row.id for row in timeline.sent]
        assert result.state == "PENDING"

    def test_the_broker_is_empty_for_the_next_test(self, shop: Shop, redis_url: str, client: redis.Redis) -> None:
        with Timeline(shop.app, redis_url) as timeline:
            timeline.eager = False
            shop.remind.delay(41)
        with Timeline(shop.app, redis_url), shop.app.connection_for_read() as connection:
            assert connection.default_channel.queue_declare("celery").message_count == 0

    @pytest.mark.parametrize("eager", [True, False])
    def test_the_setting_of_the_app_is_the_default_for_eager(
        self, eager: bool, app: Celery, redis_url: str, client: redis.Redis
    ) -> None:
        app.conf.task_always_eager = eager
        shop = make_shop(app)
        with Timeline(app, redis_url) as timeline:
            shop.remind.delay(1)
            assert (timeline.eager, shop.seen) == (eager, [1] if eager else [])


class TestAssertions:
    @pytest.mark.parametrize(
        "wanted",
        [
            {"args": (41,)},
            {"args": ()},
            {"kwargs": {}},
            {"kwargs": {"tags": ["a"]}},
            {"in_": 3595},
            {"in_": 3605},
            {"queue": "mails"},
            {"count": 2},
        ],
    )
    def test_a_difference_fails(self, wanted: Any, shop: Shop, timeline: Timeline) -> None:
        shop.remind.apply_async((42,), {"tags": ("a", "b")}, countdown=3600)
        timeline.assert_scheduled(shop.remind, (42,), {"tags": ("a", "b")}, in_=3600, queue="celery")
        with pytest.raises(AssertionError, match=r"scheduled"):
            timeline.assert_scheduled(shop.remind, **wanted)
        if "count" not in wanted:
            timeline.assert_not_scheduled(shop.remind, **wanted)

    def test_another_task_fails(self, shop: Shop, timeline: Timeline) -> None:
        shop.total.apply_async(([],), countdown=60)
        with pytest.raises(AssertionError, match=r"not scheduled: shop\.remind"):
            timeline.assert_scheduled(shop.remind)
        timeline.assert_not_scheduled(shop.remind)

    def test_in_counts_from_the_time_of_the_test(self, shop: Shop, timeline: Timeline) -> None:
        shop.remind.apply_async((42,), countdown=3600)
        timeline.travel(minutes=30)
        timeline.assert_scheduled(shop.remind, in_=timedelta(minutes=30))
        with pytest.raises(AssertionError):
            timeline.assert_scheduled(shop.remind, in_=HOUR)

    def test_a_slow_test_does_not_fail(self, shop: Shop, timeline: Timeline) -> None:
        with time_machine.travel(datetime.now(timezone.utc), tick=False) as traveller:
            timeline.travel(minutes=10)
            shop.remind.apply_async((42,), countdown=3600)
            traveller.shift(5)
            timeline.travel(minutes=10)
            traveller.shift(5)
            timeline.assert_scheduled(shop.remind, in_=timedelta(minutes=50))
            timeline.assert_not_scheduled(shop.remind, in_=timedelta(minutes=50, seconds=3), within=0.5)
            with pytest.raises(AssertionError):
                timeline.assert_scheduled(shop.remind, in_=timedelta(minutes=50, seconds=12))

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            ({"task": None}, "must be a Celery task"),
            ({"task": 3}, "task=3: must be a Celery task"),
            ({"args": 42}, "args=42: must be a list or tuple"),
            ({"kwargs": [1]}, "must be a mapping"),
            ({"count": 0}, "call assert_not_scheduled"),
            ({"in_": 1, "at": datetime.now(timezone.utc)}, "expected only one of them"),
            ({"in_": -1}, ">= 0"),
            ({"at": datetime(2030, 1, 1)}, "must have a time zone"),
            ({"within": -1}, "within=-1: must be >= 0"),
        ],
    )
    def test_invalid_conditions_are_refused(self, arguments: Any, told: str, timeline: Timeline) -> None:
        with pytest.raises(InvalidValueError, match=told):
            timeline.assert_scheduled(**{"task": "shop.remind", **arguments})


class TestClock:
    @pytest.mark.parametrize("frozen", [partial(time_machine.travel, tick=False), freezegun.freeze_time])
    def test_the_clock_of_the_process_follows(self, shop: Shop, timeline: Timeline, frozen: Callable[..., Any]) -> None:
        seen: list[Any] = []

        @shop.app.task(name="shop.look", shared=False)
        def look() -> None:
            seen.append(time.time())

        with frozen(datetime(2030, 1, 1, tzinfo=timezone.utc)) as traveller:
            timeline.follow(traveller.move_to)
            look.apply_async(countdown=60)
            start = time.time()
            timeline.travel(hours=1)
            assert seen == [start + 60]
            assert time.time() == start + 3600
            assert timeline.now.timestamp() == start + 3600

    def test_it_follows_the_clock_of_the_process(self, shop: Shop, timeline: Timeline) -> None:
        with time_machine.travel(datetime(2030, 1, 1, tzinfo=timezone.utc), tick=False) as traveller:
            shop.remind.apply_async((42,), countdown=60)
            traveller.shift(61)
            timeline.travel()
        assert shop.seen == [42]


class TestApp:
    @pytest.mark.parametrize("kind", ["with DurableTasks", "without", "by its AMQP", "used", "control used"])
    def test_is_restored_afterwards(self, kind: str, redis_url: str, client: redis.Redis) -> None:
        app = make_app(**({"amqp": "redis_queue.celery:DelayedAMQP"} if kind == "by its AMQP" else {}))
        if kind in ("with DurableTasks", "used"):
            DurableTasks(app, leases=False)
        if kind == "used":
            app.conf.redis_queue_url = NOWHERE
            assert StoredTasks.of(app).settings.url == NOWHERE
        if kind == "control used":
            assert vars(app.control).get("broadcast") is None
        _ = app.amqp.send_task_message, app.conf.task_always_eager, app.tasks
        before = state(app)
        shop = make_shop(app)
        with Timeline(app, redis_url) as timeline:
            assert state(app) != before
            shop.remind.apply_async((42,), countdown=60).revoke()
            shop.remind.apply_async((42,), countdown=60)
            timeline.travel(minutes=1)
        assert shop.seen == [42]
        assert state(app) == before
        assert "broadcast" not in vars(app.control) or kind != "control used"

    def test_is_restored_after_a_failed_start(self, app: Celery) -> None:
        app.conf.redis_queue_unknown = 1
        _ = app.amqp, app.conf.task_always_eager
        before = state(app)
        with pytest.raises(ValueError, match="unknown"), Timeline(app, NOWHERE):
            pass
        assert state(app) == before

    def test_keeps_its_own_settings(self, app: Celery, redis_url: str, client: redis.Redis) -> None:
        app.conf.update(redis_queue_prefix="mine", redis_queue_min_delay=600, redis_queue_shards=4)
        shop = make_shop(app)
        with Timeline(app, redis_url) as timeline:
            shop.remind.apply_async((42,), countdown=60)
            timeline.assert_scheduled(shop.remind)
            assert {key.split(b":")[0] for key in client.scan_iter()} <= {b"mine", b"{mine"}

    @pytest.mark.parametrize("name", ["shop_of_a_test:app", "shop_of_a_test", "shop_of_a_test:holder.inner"])
    def test_is_found_by_name(self, name: str, app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
        module = SimpleNamespace(app=app, holder=SimpleNamespace(inner=app))
        monkeypatch.setitem(sys.modules, "shop_of_a_test", module)
        assert find_app(name) is app

    @pytest.mark.parametrize(
        ("name", "error"), [("os:path", TypeError), ("os:application", AttributeError), ("no_such:app", ImportError)]
    )
    def test_another_object_is_refused(self, name: str, error: type[Exception]) -> None:
        with pytest.raises(error):
            find_app(name)

    def test_is_the_current_app_for_shared_tasks(
        self, app: Celery, redis_url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # Apps of other tests must not get the task.
        monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
        before = _state.get_current_app(), _state.default_app

        @shared_task(name="shop.shared")
        def shared() -> None: ...

        with Timeline(app, redis_url) as timeline:
            shared.apply_async(countdown=60)
            # A thread, such as that of an asynchronous view, has no current app.
            sender = threading.Thread(target=lambda: shared.apply_async(countdown=60))
            sender.start()
            sender.join()
            assert [run.state for run in timeline.travel(minutes=1, seconds=1)] == ["SUCCESS"] * 2
        assert (_state.get_current_app(), _state.default_app) == before
        for other in _state._get_active_apps():
            other._tasks.pop("shop.shared", None)

    def test_a_closed_timeline_raises(self, app: Celery) -> None:
        with pytest.raises(InvalidValueError, match="this Timeline is closed"):
            _ = Timeline(app, NOWHERE).scheduled


def state(app: Celery) -> Any:
    """Return everything that a Timeline changes in an app."""
    names = ("amqp", "_pool", "_backend_cache", "redis_queue_store", "send_task", "durable_tasks")
    durable = vars(app).get("durable_tasks")
    return (
        [vars(app).get(name) for name in names],
        dict(app.conf.changes),
        dict(vars(app.amqp)),
        dict(vars(durable)) if durable else None,
        set(app.steps["worker"]),
        set(app.user_options["worker"]),
        app.control_cls,
    )
