"""Schedules of an app: put, send, pause, resume, delete, declare; each due time is sent once by any dispatcher."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from threading import Barrier
from typing import Any, ClassVar
from uuid import UUID

import pytest
import redis
from celery import Celery, signals
from celery.schedules import crontab, schedule

from redis_queue import DelayQueue, Unique
from redis_queue.celery import DurableTasks
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.celery.schedules.transfer import export_document
from redis_queue.errors import BodyError, ConfigurationError, DuplicateTaskError, InvalidValueError
from redis_queue.schedules.state import Event
from redis_queue.schedules.store import ScheduleStore
from redis_queue.store.keys import Keys, MonitorKeys, ScheduleKeys
from tests.support.celery.brokers import Broker, ManualClock, stored_messages
from tests.support.celery.tenants import AUDIT, CURRENT, HEADER, TenantTask, single_task
from tests.support.wait import must

pytestmark = pytest.mark.parametrize("broker", ["redis"], indirect=True)

KEYS = ScheduleKeys(Keys("redis_queue", "delay", "scheduled", 0))

MakeApp = Callable[..., DurableTasks]


def work(*args: Any, **kwargs: Any) -> None:
    """Do the work of a task."""


@pytest.fixture
def make_app(broker: Broker, redis_url: str, delayed: Callable[..., DelayQueue]) -> Iterator[MakeApp]:
    """Makes apps with one name, or *name*, whose DelayQueue has the manual clock."""
    with ExitStack() as apps:
        name_of_queue = broker.name("schedules")

        def make(name: str = "shop", **conf: Any) -> DurableTasks:
            app: Celery = broker.app(redis_queue_url=redis_url, result_expires=None, **conf)
            app.main, app.conf.task_default_queue = name, name_of_queue
            app.task(name="shop.build", shared=False)(work)
            app.task(name="shop.single", shared=False, unique=Unique(until="end"))(work)
            found = DurableTasks(app)
            found.queue = delayed()
            apps.callback(app.close)
            return found

        yield make


@pytest.fixture
def durable(make_app: MakeApp) -> DurableTasks:
    return make_app()


@pytest.fixture
def schedules(durable: DurableTasks) -> Schedules:
    return durable.schedules


def messages(durable: DurableTasks) -> list[Envelope]:
    return sorted(stored_messages(durable.app), key=lambda envelope: str(envelope.headers["scheduled_for"]))


def sent(durable: DurableTasks) -> list[str]:
    """Return the due times of the stored runs, as minutes and seconds of the hour."""
    return [envelope.headers["scheduled_for"][14:19] for envelope in messages(durable)]


def at_the_hour(clock: ManualClock) -> None:
    """Move the clock to the next full hour."""
    clock.advance(3600 - clock() / 1000 % 3600)


def test_a_run_is_the_message_of_its_task_with_the_due_time_in_its_headers(
    durable: DurableTasks, schedules: Schedules, clock: ManualClock
) -> None:
    at_the_hour(clock)
    put = schedules.put(
        "nightly",
        "*/10 * * * *",
        "shop.build",
        args=(1, UUID(int=5)),
        kwargs={"é": datetime(2026, 1, 1, tzinfo=timezone.utc)},
        queue="reports",
        priority=3,
        headers={"tenant": "a"},
        expires="next",
    )
    assert (put.next_run, put.runs, put.task) == (clock.after(600), 0, "shop.build")
    assert schedules.dispatch.run() == pytest.approx(600)
    clock.advance(600)
    schedules.dispatch.run()
    (message,) = messages(durable)
    assert message.headers["schedule"] == "nightly"
    assert message.headers["scheduled_for"] == clock.after(0).isoformat()
    assert message.headers["tenant"] == "a"
    assert message.headers["expires"] == clock.after(600).isoformat()
    assert (message.routing_key, message.priority) == ("reports", 3)
    args, kwargs, _ = json.loads(message.body)
    assert args == [1, {"__type__": "uuid", "__value__": {"hex": UUID(int=5).hex}}]
    assert kwargs == {"é": {"__type__": "datetime", "__value__": "2026-01-01T00:00:00+00:00"}}
    assert message.id == schedules.store.run_id("nightly", clock())
    assert schedules.dispatch.run() == pytest.approx(600)
    now = schedules.find("nightly")
    assert (now.runs, now.next_run, now.running) == (1, clock.after(600), message.id)
    assert [(run.due, run.outcome) for run in schedules.runs("nightly")] == [(clock.after(0), None)]


def test_an_equal_schedule_keeps_next_run_and_counts_and_another_one_begins_anew(
    schedules: Schedules, clock: ManualClock
) -> None:
    schedules.put("a", "every 10 s", "shop.build")
    clock.advance(12)
    schedules.dispatch.run()
    before = schedules.find("a")
    clock.advance(5)
    assert schedules.put("a", 10, "shop.build") == before
    changed = schedules.put("a", 20, "shop.build")
    assert (changed.next_run, changed.runs) == (clock.after(20), 0)


def test_missed_runs_are_sent_by_policy_and_counted(
    durable: DurableTasks, schedules: Schedules, clock: ManualClock
) -> None:
    at_the_hour(clock)
    for missed in ("skip", "latest", "all"):
        schedules.put(missed, "*/10 * * * *", "shop.build", missed=missed, window=1500)
    clock.advance(3630)
    schedules.dispatch.run()
    found = [(envelope.headers["schedule"], envelope.headers["scheduled_for"][14:16]) for envelope in messages(durable)]
    assert sorted(found) == [("all", "00"), ("all", "40"), ("all", "50"), ("latest", "00")]
    skipped = {name: schedules.find(name).skipped["late"] for name in ("skip", "latest", "all")}
    assert skipped == {"skip": 6, "latest": 5, "all": 3}
    (event,) = [event for event in schedules.events("skip") if event.kind == "skipped"]
    assert (event.count, event.text, event.until - event.due) == (6, "late", 3_000_000)
    assert {schedules.find(name).next_run for name in skipped} == {clock.after(570)}


def test_many_missed_runs_are_passed_in_steps(durable: DurableTasks, schedules: Schedules, clock: ManualClock) -> None:
    schedules.put("fast", 1, "shop.build", missed="all")
    schedules.put("faster", 0.1, "shop.build")
    clock.advance(300)
    schedules.dispatch.run()
    assert durable.queue.count() == 301
    assert schedules.find("faster").skipped["late"] == 2999


def test_schedules_that_take_long_are_cut_at_the_budget(schedules: Schedules, clock: ManualClock) -> None:
    for number in range(3):
        schedules.put(f"s{number}", 1, "shop.build", missed="all")
    clock.advance(30)
    assert schedules.dispatch.run(0) == 0.0
    assert sorted(schedules.find(f"s{number}").runs for number in range(3)) == [0, 0, 30]
    assert schedules.dispatch.run() == pytest.approx(1)
    assert [schedules.find(f"s{number}").runs for number in range(3)] == [30, 30, 30]


def test_a_paused_schedule_sends_nothing_and_counts_what_it_leaves_out(
    durable: DurableTasks, schedules: Schedules, clock: ManualClock
) -> None:
    for name in ("skips", "catches up", "ends by itself"):
        schedules.put(name, 60, "shop.build", missed="all")
    schedules.pause("skips", reason="holidays")
    schedules.pause("catches up")
    assert schedules.pause("ends by itself", until=clock.after(150)).pause_ends == clock.after(150)
    clock.advance(130)
    schedules.dispatch.run()
    assert sent(durable) == []
    resumed = schedules.resume("skips")
    assert (resumed.paused, resumed.skipped["paused"], resumed.next_run) == (False, 2, clock.after(50))
    schedules.resume("catches up", catch_up=True)
    schedules.dispatch.run()
    assert len(sent(durable)) == 2
    clock.advance(20)
    schedules.dispatch.run()
    over = schedules.find("ends by itself")
    assert (over.paused, over.skipped["paused"], over.next_run) == (False, 2, clock.after(30))
    kinds = [(event.kind, event.text) for event in schedules.events("skips")]
    assert kinds == [("resumed", ""), ("skipped", "paused"), ("paused", "holidays")]


def after_the_next_read(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Call *act* between the next look of a dispatcher for due schedules and what it does with them."""
    read = ScheduleStore.due

    def read_and_act(self: ScheduleStore, limit: int) -> Any:
        found = read(self, limit)
        monkeypatch.setattr(ScheduleStore, "due", read)
        act()
        return found

    monkeypatch.setattr(ScheduleStore, "due", read_and_act)


def test_an_unreadable_copy_does_not_end_a_pause(
    schedules: Schedules, client: redis.Redis, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mend() -> None:
        schedules.put("a", 60, "shop.build")
        schedules.pause("a")

    schedules.put("a", 60, "shop.build")
    client.hset(KEYS.schedule_states, "a", "?")
    clock.advance(60)
    after_the_next_read(monkeypatch, mend)
    schedules.dispatch.run()
    clock.advance(3600)
    schedules.dispatch.run()
    assert schedules.find("a").paused


def test_an_older_copy_does_not_end_a_longer_pause(
    schedules: Schedules, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.put("a", 60, "shop.build")
    schedules.pause("a", until=clock.after(30))
    clock.advance(31)
    after_the_next_read(monkeypatch, lambda: schedules.pause("a", until=clock.after(3600)))
    schedules.dispatch.run()
    assert schedules.find("a").pause_ends == clock.after(3600)


@pytest.mark.parametrize("change", ["pause", "delete", "put", "delete and put"])
def test_an_older_copy_sends_nothing(
    durable: DurableTasks, schedules: Schedules, clock: ManualClock, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit() -> None:
        if change == "pause":
            schedules.pause("a")
        if "delete" in change:
            schedules.delete("a")
        if "put" in change:
            schedules.put("a", 60 if "delete" in change else 61, "shop.build")

    schedules.put("a", 60, "shop.build")
    clock.advance(60)
    after_the_next_read(monkeypatch, edit)
    schedules.dispatch.run()
    assert sent(durable) == []


def test_any_number_of_dispatchers_send_each_due_time_once(
    durable: DurableTasks, make_app: MakeApp, clock: ManualClock
) -> None:
    for number in range(30):
        durable.schedules.put(f"s{number}", 60, "shop.build")
    others = [make_app().schedules for _ in range(4)]
    for _ in range(3):
        clock.advance(60)
        together = Barrier(len(others))

        def work(found: Schedules, together: Barrier = together) -> None:
            together.wait()
            found.dispatch.run()

        with ThreadPoolExecutor(len(others)) as threads:
            list(threads.map(work, others))
    assert durable.queue.count() == 90
    assert {durable.schedules.find(f"s{number}").runs for number in range(30)} == {3}


def test_a_bad_schedule_stops_no_other(
    durable: DurableTasks, schedules: Schedules, client: redis.Redis, clock: ManualClock
) -> None:
    names = [
        "hostile state",
        "hostile definition",
        "unknown zone",
        "wrong rule",
        "no such serializer",
        "other name",
        "long queue",
        "good",
    ]
    for name in names:
        schedules.put(name, 60, "shop.build")
    client.hset(KEYS.schedule_states, "hostile state", b"\xff" * 100_000)
    client.hset(KEYS.schedules, "hostile definition", "[" * 100_000)

    def edit(name: str, /, **fields: Any) -> None:
        text = client.hget(KEYS.schedules, name)
        assert isinstance(text, bytes)
        client.hset(KEYS.schedules, name, json.dumps({**json.loads(text), **fields}))

    edit("unknown zone", timezone="Mars/Olympus")
    edit("wrong rule", rules=[{"cron": "0 0 31 2 *"}])
    edit("no such serializer", options={"serializer": "none"})
    edit("other name", name="good")
    edit("long queue", options={"queue": "q" * 20_000})
    clock.advance(60)
    schedules.dispatch.run()
    assert [envelope.headers["schedule"] for envelope in messages(durable)] == ["good"]
    found = {item.name: item for item in schedules.list()}
    assert [bool(found[name].error) for name in names] == [True, True, True, True, False, True, False, False]
    errors = [event for event in schedules.events("no such serializer") if event.kind == "error"]
    assert len(errors) == 1
    # Tried again later, not at once, and sent as soon as it can be.
    edit("no such serializer", options={})
    clock.advance(11)
    schedules.dispatch.run()
    assert {envelope.headers["schedule"] for envelope in messages(durable)} == {"good", "no such serializer"}
    assert schedules.delete("hostile state")
    schedules.put("unknown zone", 60, "shop.build")


def test_an_error_without_a_text_stops_no_other(make_app: MakeApp, clock: ManualClock) -> None:
    class UntoldError(Exception):
        """An error of the application whose text cannot be made."""

        def __str__(self) -> str:
            raise ValueError

    def route(name: str, *_: Any, **__: Any) -> None:
        if name == "shop.unrouted" and puts:
            raise UntoldError

    puts: list[str] = []
    schedules = make_app(task_routes=(route,)).schedules
    puts += [schedules.put(name, 60, task).name for name, task in (("bad", "shop.unrouted"), ("good", "shop.build"))]
    clock.advance(60)
    schedules.dispatch.run()
    assert (schedules.find("good").runs, schedules.events("bad")[0].text) == (1, "UntoldError")


def test_a_name_that_no_schedule_can_have_hides_no_other(
    schedules: Schedules, client: redis.Redis, clock: ManualClock
) -> None:
    schedules.put("good", 60, "shop.build")
    client.zadd(KEYS.schedule_looks, {b"\xff\xfe": 0, b"": 0, b"x" * 1000: 0, b"a\nb": float("-inf")})
    assert [item.name for item in schedules.list()] == ["good"]
    assert len(export_document(schedules)[0]["schedules"]) == 1
    clock.advance(60)
    schedules.dispatch.run()
    assert schedules.find("good").runs == 1


def test_a_key_that_only_one_schedule_needs_stops_no_other(
    durable: DurableTasks, schedules: Schedules, client: redis.Redis, clock: ManualClock
) -> None:
    schedules.put("looks for its run", 60, "shop.build", overlap="skip", overlap_timeout=1)
    clock.advance(60)
    schedules.dispatch.run()
    durable.queue.cancel_many([entry.id for entry in durable.queue.list()])
    schedules.put("good", 60, "shop.build")
    client.set(MonitorKeys("redis_queue").running, "of another program")
    clock.advance(60)
    schedules.dispatch.run()
    assert schedules.find("good").runs == 1


def test_an_end_of_a_run_is_noted_and_failures_pause(schedules: Schedules, clock: ManualClock) -> None:
    schedules.put("a", 60, "shop.build", pause_after_failures=2)
    ids = []
    for _ in range(2):
        clock.advance(60)
        schedules.dispatch.run()
        ids.append(schedules.find("a").running)
    ends = [("a", Event("ended", clock(), id_, text="failed")) for id_ in ids]
    schedules.store.settle([("unknown", ends[0][1]), ends[0]])
    assert (schedules.find("a").failures, schedules.find("a").paused) == (1, False)
    schedules.store.settle([ends[1]])
    found = schedules.find("a")
    assert (found.failures, found.failed, found.paused, found.running) == (2, 2, True, "")
    assert [run.outcome for run in schedules.runs("a")] == ["failed", "failed"]
    assert schedules.events("a")[0].text == "2 runs in a row failed"
    assert (schedules.resume("a").failures, schedules.find("a").paused) == (0, False)


def test_an_end_that_is_told_again_counts_once(schedules: Schedules, clock: ManualClock) -> None:
    schedules.put("a", 60, "shop.build", pause_after_failures=2)
    clock.advance(60)
    schedules.dispatch.run()
    id_ = schedules.find("a").running
    # The clock of a worker is measured again for each attempt, and a task that was redelivered ends twice.
    for later in (0, 5):
        schedules.store.settle([("a", Event("ended", clock() + later, id_, text="failed"))] * 2)
    found = schedules.find("a")
    assert (found.failed, found.failures, found.paused) == (1, 1, False)
    schedules.store.settle([("a", Event("ended", clock(), id_, text="succeeded"))])
    assert schedules.find("a").failures == 0


def test_runs_that_overlap(durable: DurableTasks, schedules: Schedules, clock: ManualClock) -> None:
    for overlap in ("allow", "skip", "queue"):
        schedules.put(overlap, 60, "shop.build", overlap=overlap, overlap_timeout=600)
    for _ in range(3):
        clock.advance(60)
        schedules.dispatch.run()
    runs = {
        name: (schedules.find(name).runs, schedules.find(name).skipped["overlap"])
        for name in ("allow", "skip", "queue")
    }
    assert runs == {"allow": (3, 0), "skip": (1, 2), "queue": (1, 0)}
    for name in ("skip", "queue"):
        schedules.store.settle([(name, Event("ended", clock(), schedules.find(name).running, text="succeeded"))])
    clock.advance(1)
    schedules.dispatch.run()
    # The newest of those that waited.
    assert (schedules.find("queue").runs, schedules.find("queue").skipped["overlap"]) == (2, 1)
    # A run that left the store and that no worker has reported for so long blocks no more.
    durable.queue.cancel_many([entry.id for entry in durable.queue.list()])
    clock.advance(601)
    schedules.dispatch.run()
    assert schedules.find("queue").runs == 3
    assert schedules.find("skip").runs == 2


def test_it_ends_by_time_and_by_number(durable: DurableTasks, schedules: Schedules, clock: ManualClock) -> None:
    schedules.put("until", 60, "shop.build", until=clock.after(130))
    schedules.put("twice", 60, "shop.build", max_runs=2)
    for _ in range(4):
        clock.advance(60)
        schedules.dispatch.run()
    assert [schedules.find(name).runs for name in ("until", "twice")] == [2, 2]
    assert [schedules.find(name).next_run for name in ("until", "twice")] == [None, None]
    assert schedules.dispatch.run() == float("inf")
    assert schedules.next_runs("until") == []
    assert len(sent(durable)) == 4


def test_a_run_with_an_id_that_none_can_have_blocks_until_its_timeout(
    schedules: Schedules, client: redis.Redis, clock: ManualClock
) -> None:
    schedules.put("a", 60, "shop.build", overlap="skip", overlap_timeout=100)
    state = must(must(schedules.store.get(["a"])[0]).state)
    client.hset(KEYS.schedule_states, "a", str(replace(state, active="x\x01y", active_at=clock())))
    for _ in range(2):
        clock.advance(60)
        schedules.dispatch.run()
    assert (schedules.find("a").skipped["overlap"], schedules.find("a").runs) == (1, 1)


def test_a_unique_task_that_waits_or_runs_is_not_sent_again(
    durable: DurableTasks, schedules: Schedules, clock: ManualClock
) -> None:
    schedules.put("a", 60, "shop.single")
    for _ in range(2):
        clock.advance(60)
        schedules.dispatch.run()
    found = schedules.find("a")
    assert (found.runs, found.skipped["taken"]) == (1, 1)
    assert len(messages(durable)) == 1


def test_a_unique_task_by_hand(schedules: Schedules, clock: ManualClock) -> None:
    schedules.put("a", 60, "shop.single")
    clock.advance(300)
    schedules.dispatch.run()
    with pytest.raises(DuplicateTaskError) as caught:
        schedules.run_now("a")
    assert caught.value.task_id == schedules.find("a").running
    assert schedules.backfill("a", clock.after(-300), clock.after(0)) == []
    assert schedules.find("a").runs == 1


@pytest.fixture
def single(durable: DurableTasks, redis_url: str) -> Any:
    """A task of celery-singleton that is called for a tenant."""
    return single_task(durable.app, redis_url)


def test_a_run_is_made_by_the_apply_async_of_its_task(
    durable: DurableTasks, schedules: Schedules, clock: ManualClock, client: redis.Redis
) -> None:
    app = durable.app
    app.task(base=TenantTask, name="shop.tenant", shared=False)(work)
    schedules.put("a", 60, "shop.tenant", headers={"source": "test"}, countdown=5)
    token = CURRENT.set("acme")
    try:
        clock.advance(120)
        schedules.dispatch.run()
        schedules.run_now("a")
        with durable.batch():
            schedules.backfill("a", clock.after(-60), clock.after(0))
    finally:
        CURRENT.reset(token)
    made = messages(durable)
    assert [(one.headers[HEADER], one.headers["source"], one.headers["schedule"]) for one in made] == [
        ("acme", "test", "a")
    ] * 3
    assert {entry.due_at for entry in durable.queue.list()} == {clock.after(5)}
    # What it sends besides goes out, once for each run.
    audit = client.lrange(f"{app.conf.task_default_queue}-audit", 0, -1)
    told = [json.loads(b64decode(json.loads(element)["body"]))[0] for element in audit]
    assert sorted(id_ for _, id_ in told) == sorted(one.id for one in made)


def test_a_run_that_the_task_does_not_send_is_counted_and_blocks_nothing(
    durable: DurableTasks, schedules: Schedules, clock: ManualClock, single: Any
) -> None:
    schedules.put("a", 60, single)
    for _ in range(3):
        clock.advance(60)
        schedules.dispatch.run()
    now = schedules.find("a")
    assert (now.runs, now.skipped["taken"], now.next_run) == (1, 2, clock.after(60))
    skipped = [event.text for event in schedules.events("a") if event.kind == "skipped"]
    assert skipped == ["not sent by the task"] * 2
    with pytest.raises(DuplicateTaskError, match="its apply_async sent nothing"):
        schedules.run_now("a")
    single.release_lock()
    clock.advance(60)
    schedules.dispatch.run()
    assert (len(messages(durable)), schedules.find("a").runs) == (2, 2)


@pytest.mark.parametrize("made_by", ["this process", "a killed one"])
def test_a_message_that_was_not_stored_is_stored_later_although_the_task_is_single(
    durable: DurableTasks, schedules: Schedules, clock: ManualClock, single: Any, made_by: str
) -> None:
    schedules.put("a", 60, single)
    clock.advance(60)
    (stored,) = schedules.store.get(["a"])
    due = clock()
    maker = schedules if made_by == "this process" else Schedules(durable.app)
    assert maker.dispatch.message(must(must(stored).definition), schedules.store.run_id("a", due), due, due)
    schedules.dispatch.run()
    (message,) = messages(durable)
    assert (message.id, schedules.find("a").runs) == (schedules.store.run_id("a", due), 1)
    # What a killed process called is not called again, nor can its header be known.
    assert message.headers.get(HEADER) == ("none" if made_by == "this process" else None)


def test_a_schedule_that_changes_while_its_message_is_made_is_sent_once(
    durable: DurableTasks, schedules: Schedules, clock: ManualClock, single: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    plain = single.apply_async

    def change(*args: Any, **options: Any) -> Any:
        calls.append(options["task_id"])
        schedules.store.settle([("a", Event("ended", clock(), "other", text="failed"))])
        return plain(*args, **options)

    monkeypatch.setattr(single, "apply_async", change)
    schedules.put("a", 60, single)
    clock.advance(60)
    schedules.dispatch.run()
    (message,) = messages(durable)
    assert (calls, schedules.find("a").runs, schedules.find("a").failed) == ([message.id], 1, 1)


def test_what_a_receiver_sends_while_a_run_is_made_goes_out(
    durable: DurableTasks, schedules: Schedules, clock: ManualClock, client: redis.Redis
) -> None:
    queue = f"{durable.app.conf.task_default_queue}-heard"

    def hear(sender: str, **_: Any) -> None:
        if sender == "shop.build":
            durable.app.send_task(AUDIT, queue=queue)

    signals.before_task_publish.connect(hear)
    try:
        schedules.put("a", 60, "shop.build")
        clock.advance(60)
        schedules.dispatch.run()
    finally:
        signals.before_task_publish.disconnect(hear)
    assert (len(messages(durable)), client.llen(queue), schedules.find("a").runs) == (1, 1, 1)


def test_by_hand(durable: DurableTasks, schedules: Schedules, clock: ManualClock) -> None:
    at_the_hour(clock)
    schedules.put("a", "*/10 * * * *", "shop.build")
    clock.advance(601)
    schedules.dispatch.run()
    now = schedules.run_now("a")
    assert now in {envelope.id for envelope in messages(durable)}
    start = clock.after(-3601)
    backfilled = schedules.backfill("a", start, clock.after(3600))
    assert len(backfilled) == 6
    assert schedules.backfill("a", start, clock.after(3600)) == []
    assert schedules.find("a").runs == 8
    assert sorted(sent(durable)) == ["00:00", "10:00", "10:00", "10:01", "20:00", "30:00", "40:00", "50:00"]
    assert schedules.next_runs("a", 2) == [clock.after(599), clock.after(1199)]
    with pytest.raises(InvalidValueError, match="more than 1,000"):
        schedules.backfill("a", clock.after(-86400 * 365), clock.after(0))
    assert schedules.delete("a")
    assert not schedules.delete("a")
    assert len(messages(durable)) == 8


def test_a_backfill_leaves_out_what_the_schedule_sends_itself(schedules: Schedules, clock: ManualClock) -> None:
    at_the_hour(clock)
    schedules.put("a", 60, "shop.build", missed="all")
    clock.advance(60)
    schedules.dispatch.run()
    schedules.pause("a")
    clock.advance(120)
    assert schedules.backfill("a", clock.after(-179), clock.after(1)) == []
    schedules.resume("a", catch_up=True)
    schedules.dispatch.run()
    ids = [run.id for run in schedules.runs("a")]
    assert len(ids) == len(set(ids)) == 3


BAD: list[tuple[dict[str, Any], str]] = [
    ({"rules": "0 0 31 2 *"}, "Bad day-of-month"),
    ({"rules": 0}, "0"),
    ({"rules": -5}, "-5"),
    ({"rules": timedelta(0)}, "0"),
    ({"rules": "now and then"}, "now and then"),
    ({"rules": lambda: 5}, "data"),
    ({"timezone": "qqq"}, "unknown, must be a name such as 'Europe/Berlin'"),
    ({"name": "x" * 201}, "200"),
    ({"name": "a\nb"}, "printable"),
    ({"args": (object(),)}, "args"),
    ({"args": lambda: ()}, "data"),
    ({"until": datetime(2020, 1, 1, tzinfo=timezone.utc)}, "until"),
    ({"until": datetime(2020, 1, 1)}, "time zone"),
    ({"quue": "x"}, "queue"),
    ({"eta": datetime(2030, 1, 1, tzinfo=timezone.utc)}, "eta"),
    ({"countdown": -1}, "countdown"),
    ({"exclude": "shop.holidays"}, "dates"),
    ({"missed": "all", "expires": "next"}, "expire"),
    ({"window": float("nan")}, "window"),
    ({"jitter": -1}, "jitter"),
    ({"args": ("x" * 300_000,)}, "at most"),
]


@pytest.mark.parametrize(("given", "text"), BAD)
def test_bad_input_is_refused_and_nothing_is_stored(
    schedules: Schedules, client: redis.Redis, given: dict[str, Any], text: str
) -> None:
    fields = {"name": "a", "rules": 60, "task": "shop.build", **given}
    with pytest.raises((InvalidValueError, BodyError), match=text):
        schedules.put(**fields)
    assert not client.exists(KEYS.schedules, KEYS.schedule_states, KEYS.schedule_looks)


def test_a_run_by_hand_is_found_by_its_id_in_a_queue_of_several_shards(
    durable: DurableTasks, delayed: Callable[..., DelayQueue]
) -> None:
    durable.queue = delayed(shards=4)
    durable.schedules.put("a", 60, "shop.build")
    ids = {durable.schedules.run_now("a") for _ in range(10)}
    assert durable.queue.reader.find([*ids]).keys() == ids


def test_twenty_that_change_one_schedule_at_once_all_succeed(schedules: Schedules, make_app: MakeApp) -> None:
    schedules.put("a", 60, "shop.build")

    def run(own: Schedules) -> None:
        for _ in range(10):
            own.run_now("a")

    with ThreadPoolExecutor(20) as threads:
        list(threads.map(run, [make_app().schedules for _ in range(20)]))
    assert schedules.find("a").runs == 200


def test_an_unknown_name_has_a_suggestion(schedules: Schedules) -> None:
    schedules.put("nightly", 60, "shop.build")
    for call in (
        schedules.find,
        schedules.pause,
        schedules.resume,
        schedules.run_now,
        schedules.next_runs,
        schedules.runs,
    ):
        with pytest.raises(InvalidValueError, match="did you mean 'nightly'"):
            call("nightli")
    assert schedules.get("nightli") is None


def test_overlap_needs_reports(make_app: MakeApp) -> None:
    with pytest.raises(ConfigurationError, match="redis_queue_monitor"):
        make_app(redis_queue_monitor=False).schedules.put("a", 60, "shop.build", overlap="skip")


class TestDeclare:
    """The beat_schedule of an app, by version."""

    BEAT: ClassVar = {
        "interval": {"task": "shop.build", "schedule": 30.0, "args": (1,)},
        "cron": {"task": "shop.build", "schedule": crontab(minute="*/5"), "options": {"queue": "q", "expires": 10}},
        "relative": {"task": "shop.build", "schedule": schedule(3600, relative=True), "relative": True},
    }

    def test_it_becomes_schedules_and_what_is_gone_is_deleted(self, make_app: MakeApp, clock: ManualClock) -> None:
        durable = make_app(beat_schedule=self.BEAT)
        report = durable.declare_schedules()
        assert sorted(report.changed) == ["cron", "interval", "relative"]
        assert durable.declare_schedules().changed == []
        found = {item.name: item for item in durable.schedules.list()}
        assert {name: item.static for name, item in found.items()} == dict.fromkeys(self.BEAT, True)
        durable.schedules.pause("interval")
        clock.advance(40)
        second = make_app(beat_schedule={"cron": self.BEAT["cron"], "interval": self.BEAT["interval"]})
        assert second.declare_schedules().deleted == ["relative"]
        assert second.schedules.find("interval").paused
        assert second.schedules.find("cron") == found["cron"]

    @pytest.mark.parametrize("release", [None, "by release"])
    def test_an_older_version_changes_nothing_until_it_is_forced(self, make_app: MakeApp, release: str | None) -> None:
        def version(number: int) -> DurableTasks:
            conf = {} if release is None else {"redis_queue_release": f"r{number}"}
            entry = {"task": "shop.build", "schedule": 30.0 + number}
            return make_app(beat_schedule={"a": entry}, **conf)

        assert version(1).declare_schedules().changed == ["a"]
        assert version(2).declare_schedules().changed == ["a"]
        old = version(1).declare_schedules()
        assert (old.changed, bool(old.newer)) == ([], True)
        assert version(2).schedules.find("a").rules == "every 32 s"
        assert version(1).declare_schedules(force=True).changed == ["a"]
        assert version(2).declare_schedules().newer
        assert version(3).schedules.find("a").rules == "every 31 s"

    @pytest.mark.parametrize(
        ("step", "passed"),
        [
            (step, passed)
            for step, few in (("get", (0, 1, 2)), ("versions", (1, 2, 3)), ("change", (0, 1)))
            for passed in few
        ],
    )
    def test_a_newer_version_that_starts_meanwhile_is_not_undone(
        self, make_app: MakeApp, passed: int, step: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def version(seconds: float, *names: str) -> DurableTasks:
            return make_app(beat_schedule={name: {"task": "shop.build", "schedule": seconds} for name in names})

        version(1, "a", "b", "z").declare_schedules()
        old, new = version(2, "a", "b", "c"), version(3, "a", "b", "z")
        taken, calls = getattr(ScheduleStore, step), list[Any]()

        def overtaken(*args: Any) -> Any:
            calls.append(args)
            if len(calls) == passed + 1:
                new.declare_schedules()
            return taken(*args)

        monkeypatch.setattr(ScheduleStore, step, overtaken)
        assert old.declare_schedules().newer
        assert {item.name: item.rules for item in new.schedules.list()} == dict.fromkeys("abz", "every 3 s")

    def test_twenty_that_start_together_make_one(self, make_app: MakeApp) -> None:
        apps = [make_app(beat_schedule=self.BEAT) for _ in range(20)]
        with ThreadPoolExecutor(len(apps)) as threads:
            reports = list(threads.map(DurableTasks.declare_schedules, apps))
        assert sorted(name for report in reports for name in report.changed) == ["cron", "interval", "relative"]

    def test_names_of_others_are_left_alone_and_bad_entries_named(self, make_app: MakeApp) -> None:
        class Own(schedule):  # type: ignore[misc]
            """A schedule of the user's own."""

        durable = make_app(
            beat_schedule={
                "dynamic": {"task": "shop.build", "schedule": 60},
                "own": {"task": "shop.build", "schedule": Own(5)},
                "no task": {"schedule": 60},
                "text": {"task": "shop.build", "schedule": 60, "options": "queue"},
                "good": {"task": "shop.build", "schedule": 60},
            }
        )
        durable.schedules.put("dynamic", 5, "shop.build")
        report = durable.declare_schedules()
        assert report.changed == ["good"]
        assert sorted(report.refused) == ["dynamic", "no task", "own", "text"]
        assert durable.schedules.find("dynamic").rules == "every 5 s"
        with pytest.raises(InvalidValueError, match="remove it there, or pause it"):
            durable.schedules.delete("good")
        with pytest.raises(InvalidValueError, match="beat_schedule"):
            durable.schedules.put("good", 5, "shop.build")
        other = make_app("other", beat_schedule={"good": {"task": "shop.build", "schedule": 7}})
        assert "good" in other.declare_schedules().refused
        assert durable.schedules.find("good").rules == "every 1 min"

    def test_hosts_with_other_time_zone_data_have_one_version(
        self, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for tzdata in ("2026a", "2026b", "2026a"):
            monkeypatch.setattr("redis_queue.celery.schedules.schedules.tzdata_version", lambda found=tzdata: found)
            assert make_app(beat_schedule=self.BEAT).declare_schedules().newer == ""

    @pytest.mark.parametrize(
        "text", [b'{"versions": {"a": 1}, "names": 5}\xff', b'{"versions": [""], "names": ["", "a\\nb"]}']
    )
    def test_hostile_versions_stop_nothing(self, make_app: MakeApp, client: redis.Redis, text: bytes) -> None:
        client.hset(KEYS.schedule_apps, "shop", text)
        durable = make_app(beat_schedule=self.BEAT)
        assert durable.declare_schedules().changed != []
        assert durable.schedules.store.versions("shop")[1]["names"] == ["cron", "interval", "relative"]


def test_schedules_need_delays(broker: Broker, redis_url: str) -> None:
    app = broker.app(redis_queue_url=redis_url)
    durable = DurableTasks(app, delays=False)
    with pytest.raises(ConfigurationError, match="with delays"):
        durable.schedules.put("a", 60, "shop.build")
    Schedules(app).put("a", 60, "shop.build")
    with pytest.raises(ConfigurationError, match="with delays"):
        Schedules(app).run_now("a")
