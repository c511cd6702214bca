"""Schedules as listings, metrics and incidents show them: figures are those of the store, and reads are bounded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import CliRunner

from redis_queue import DelayQueue
from redis_queue.celery import DurableTasks
from redis_queue.celery.schedules import calendar
from redis_queue.celery.schedules.declaration import Declaration
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.cli.celery import group
from redis_queue.delay.dispatch_log import DispatcherRow
from redis_queue.delay.model import Dispatched
from redis_queue.monitor.model import WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate import schedules as shown
from redis_queue.operate.access import Access, AppAccess, access_to
from redis_queue.operate.diagnosis import examine
from redis_queue.operate.incidents.registry import MAX_OF_KIND, current
from redis_queue.operate.incidents.situation import Incident, look
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.metrics import Collector
from redis_queue.operate.schedules import ScheduleList, count
from redis_queue.schedules.state import MAX_EVENTS, NEVER, Event, State
from redis_queue.schedules.store import Change
from redis_queue.store.keys import Keys, ScheduleKeys
from tests.support.clock import Clock, when
from tests.support.recording import record_commands, record_round_trips
from tests.support.servers import RedisServer
from tests.support.wait import must

KEYS = ScheduleKeys(Keys("redis_queue", "delay", "scheduled", 0))


@pytest.fixture
def app(redis_server: RedisServer, client: redis.Redis) -> Iterator[Celery]:
    url = f"redis+socket://{redis_server.socket}"
    with Celery("shop", broker=url, backend=url, set_as_current=False) as app:

        @app.task(name="shop.build", shared=False)
        def build() -> None:
            """Do nothing."""

        yield app


@pytest.fixture
def schedules(app: Celery, client: redis.Redis, clock: Clock) -> Schedules:
    durable = DurableTasks(app, leases=False)
    durable.queue = DelayQueue("scheduled", client, clock=clock)
    return durable.schedules


@pytest.fixture
def access(app: Celery, schedules: Schedules, client: redis.Redis, clock: Clock) -> Access:
    """The same app for commands and pages, by the same clock."""
    found = AppAccess(app)
    found.inspector = Inspector(client, clock=clock)
    found.monitor = found.inspector.monitor
    return found


@pytest.fixture
def dispatched(schedules: Schedules, client: redis.Redis, clock: Clock) -> None:
    row = DispatcherRow("me", when(0), True, "1", 1, 0, "")
    DelayQueue("scheduled", client, clock=clock).dispatch_log.note(Dispatched(), dispatcher=row)


def note(schedules: Schedules, name: str, *events: Event, **state: Any) -> None:
    def make(stored: Any) -> Change:
        look = state.pop("look", stored.look)
        return Change(name, stored.state_text, replace(stored.state, **state), look=look, events=events)

    assert schedules.store.update(name, make)


def found(access: Access, kind: str) -> list[Incident]:
    return [one for one in current(access) if one.kind == kind]


def samples(access: Access) -> dict[tuple[str, ...], float]:
    """Return the metrics of schedules: name and labels -> value."""
    collector = Collector(access.inspector, schedules=lambda: count(access))
    rows = (sample for metric in collector.collect() for sample in metric.samples)
    return {
        (row.name.removeprefix("redis_queue_"), *row.labels.values()): row.value
        for row in rows
        if row.name.startswith("redis_queue_schedule")
    }


class TestMetrics:
    def test_they_are_sums_over_the_schedules(
        self, access: Access, schedules: Schedules, client: redis.Redis, clock: Clock
    ) -> None:
        for number in range(3):
            schedules.put(
                f"s{number}", "every 10 s", "shop.build", missed="skip", overlap="skip" if number else "allow"
            )
        schedules.put("paused", "every 1h", "shop.build")
        schedules.pause("paused")
        schedules.put("over", "every 1h", "shop.build", max_runs=1)
        note(schedules, "over", due=0, runs=1, look=NEVER)
        schedules.put("broken", "every 10 s", "shop.build")
        client.hset(KEYS.schedules, "broken", "{")
        for _ in range(4):
            clock.forward(10)
            schedules.dispatch.run()
        clock.forward(65)
        schedules.dispatch.run()
        schedules.store.settle([("s0", Event("ended", clock(), id_, text="failed")) for id_ in "xy"])
        clock.forward(95)
        known = [schedules.find(name) for name in schedules.store.names()]
        read = samples(access)
        assert read["schedule_runs_total",] == sum(one.runs for one in known)
        assert read["schedule_failed_total",] == 2
        for reason in ("late", "overlap", "paused", "taken"):
            assert read["schedule_skipped_total", reason] == sum(one.skipped.get(reason, 0) for one in known)
        assert read["schedule_skipped_total", "late"] > 0
        assert read["schedule_skipped_total", "overlap"] > 0
        states = {state: read["schedules", state] for state in ("active", "paused", "over", "unreadable")}
        assert states == {"active": 3, "paused": 1, "over": 1, "unreadable": 1}
        (due,) = {one.next_run for one in known if one.name.startswith("s")}
        assert due is not None
        assert read["schedule_lateness",] == (when((clock() - Clock().now) / 1000) - due).total_seconds() > 30

    def test_without_schedules_all_are_0(self, access: Access) -> None:
        assert set(samples(access).values()) == {0}

    def test_a_scrape_reads_at_most_1000_and_50_definitions(
        self, access: Access, schedules: Schedules, client: redis.Redis, clock: Clock
    ) -> None:
        schedules.put("first", "every 1h", "shop.build")
        (stored,) = schedules.store.get(["first"])
        assert stored is not None
        state = State("0123abcd", clock(), clock(), runs=1)
        text = stored.definition.text() if stored.definition else ""
        names = [f"n{number:05}" for number in range(1500)]
        schedules.store.change(
            [Change(name, b"", state, text.replace('"first"', f'"{name}"'), clock()) for name in names]
        )
        clock.forward(60)
        read = samples(access)
        assert (read["schedule_runs_total",], read["schedules", "active"]) == (1000, 1000)
        assert read["schedule_lateness",] == 60
        with record_commands(client) as commands:
            count(access)
            shown.look(access, when(60))
        assert Counter(commands) - Counter(hello=9) == Counter(zrange=2, hmget=4, hstrlen=50, evalsha=2)


class TestList:
    def test_pages_have_each_schedule_once_in_the_order_of_their_next_runs(
        self, access: Access, schedules: Schedules
    ) -> None:
        for number in range(250):
            schedules.put(f"s{number:03}", f"every {number + 1}h", "shop.build")
        listing, names, cursor = ScheduleList(access), [], None
        while True:
            page = listing.page(cursor, 70)
            names += [row.name for row in page.items]
            cursor = page.next
            if cursor is None:
                break
        assert names == [f"s{number:03}" for number in range(250)]
        (row,) = ScheduleList(access, "s024", "active").page(None, 10).items
        assert (row.name, row.queue, row.state) == ("s024", "celery", "active")

    def test_without_an_app_schedules_are_found_before_their_first_run(
        self, schedules: Schedules, client: redis.Redis
    ) -> None:
        schedules.put("nightly", "every 1h", "shop.build", queue="reports")
        (row,) = ScheduleList(access_to(client, "redis_queue")).all()
        assert (row.name, row.queue) == ("nightly", "reports")


@pytest.mark.usefixtures("dispatched")
class TestIncidents:
    def test_work_is_none(self, access: Access, schedules: Schedules, clock: Clock) -> None:
        schedules.put("nightly", "every 10 s", "shop.build")
        clock.forward(10)
        schedules.dispatch.run()
        schedules.put("paused", "every 10 s", "shop.build")
        schedules.pause("paused")
        clock.forward(20)
        assert [one.cause for one in current(access) if "schedule" in one.kind] == []

    def test_an_overdue_schedule(self, access: Access, schedules: Schedules, clock: Clock) -> None:
        schedules.put("nightly", "every 10 s", "shop.build")
        clock.forward(40)
        assert found(access, "missed schedules") == []
        clock.forward(1)
        (one,) = found(access, "missed schedules")
        assert (one.subject, one.severity, one.since, one.hits) == ("nightly", "warning", when(10), 1)
        assert one.cause == "schedule nightly: its next run is due since 31 s"
        assert one.page == "schedule?name=nightly"

    def test_runs_that_were_skipped_lately(self, access: Access, schedules: Schedules, clock: Clock) -> None:
        schedules.put("late", "every 10 s", "shop.build", missed="skip")
        schedules.put("long", "every 60 s", "shop.build", overlap="skip")
        clock.forward(100)
        schedules.dispatch.run()
        clock.forward(60)
        schedules.dispatch.run()
        late, long = found(access, "missed schedules")
        truth = [schedules.find(name).skipped for name in ("late", "long")]
        assert (late.subject, late.hits) == ("late", truth[0]["late"])
        assert f"{truth[0]['late']:,} runs skipped within the last hour (too late)" in late.cause
        assert (long.subject, long.hits) == ("long", truth[1]["overlap"] + truth[1]["late"])
        assert "(the run before had not ended)" in long.cause
        for name in ("late", "long"):
            schedules.pause(name)
        clock.forward(3601)
        assert found(access, "missed schedules") == []

    def test_one_that_waits_for_the_run_before(self, access: Access, schedules: Schedules, clock: Clock) -> None:
        schedules.put("queued", "every 10 s", "shop.build", overlap="queue")
        clock.forward(10)
        schedules.dispatch.run()
        clock.forward(60)
        schedules.dispatch.run()
        running = schedules.find("queued").running
        (one,) = found(access, "missed schedules")
        assert one.cause == f"schedule queued: its next run is due since 50 s, and waits for the run {running}"

    def test_one_that_cannot_be_sent(
        self, access: Access, schedules: Schedules, client: redis.Redis, clock: Clock, app: Celery
    ) -> None:
        schedules.put("nightly", "every 10 s", "shop.build", queue="nowhere")
        app.amqp.queues.create_missing = False
        del app.amqp.queues["nowhere"]
        clock.forward(11)
        schedules.dispatch.run()
        (one,) = found(access, "unsent schedules")
        assert (one.subject, one.severity, one.since) == ("nightly", "error", when(11))
        assert one.cause.startswith("schedule nightly is not sent: ")
        assert "nowhere" in one.cause
        assert found(access, "missed schedules") == []

    def test_an_unreadable_one_and_an_unknown_time_zone(
        self, access: Access, schedules: Schedules, client: redis.Redis
    ) -> None:
        for name in ("a", "b", "c"):
            schedules.put(name, "every 1h", "shop.build")
        client.hset(KEYS.schedules, "a", "{")
        client.hset(KEYS.schedule_states, "b", "x")
        text = client.hget(KEYS.schedules, "c")
        assert isinstance(text, bytes)
        client.hset(KEYS.schedules, "c", text.replace(b'"UTC"', b'"Mars/Base"'))
        causes = {one.subject: one.cause for one in found(access, "unsent schedules")}
        assert set(causes) == {"a", "b", "c"}
        assert "not JSON" in causes["a"]
        assert "state is unreadable" in causes["b"]
        assert "timezone='Mars/Base': unknown" in causes["c"]

    def test_a_pause_after_failures(self, access: Access, schedules: Schedules, clock: Clock) -> None:
        schedules.put("nightly", "every 10 s", "shop.build", pause_after_failures=2)
        for _ in range(2):
            clock.forward(10)
            schedules.dispatch.run()
            schedules.store.settle(
                [("nightly", Event("ended", clock(), schedules.find("nightly").running, text="failed"))]
            )
        (one,) = found(access, "failed schedules")
        assert one.cause == "schedule nightly is paused: 2 runs of shop.build in a row failed"
        assert (one.since, one.hits) == (when(20), 2)
        schedules.resume("nightly")
        assert found(access, "failed schedules") == []

    def test_a_queue_that_no_worker_reads(
        self, access: Access, schedules: Schedules, client: redis.Redis, clock: Clock
    ) -> None:
        schedules.put("a", "every 1h", "shop.build", queue="reprots")
        schedules.put("b", "every 1h", "shop.build", queue="reprots")
        schedules.put("c", "every 1h", "shop.build")
        # Nobody reports what workers read.
        assert found(access, "unread schedules") == []
        row = WorkerRow("one@host", when(0), when(0), queues=("reports", "celery"))
        Reports(client, "redis_queue", clock).write(row)
        (one,) = found(access, "unread schedules")
        assert (one.subject, one.hits) == ("reprots", 2)
        assert one.cause == (
            "schedules send to the queue reprots, and no worker that reports consumes it: a, b; workers consume "
            "reports, which has a similar name"
        )

    def test_two_apps_with_one_name(self, access: Access, schedules: Schedules, app: Celery) -> None:
        app.conf.beat_schedule = {"nightly": {"task": "shop.build", "schedule": 60}}
        Declaration(schedules).make()
        app.main, app.conf.beat_schedule = (
            "mail",
            {
                "nightly": {"task": "shop.build", "schedule": 30},
                "bad": {"task": "shop.build", "schedule": "0 25 * * *"},
            },
        )
        assert set(Declaration(schedules).make().refused) == {"nightly", "bad"}
        causes = {one.subject: one.cause for one in found(access, "refused schedules")}
        assert set(causes) == {"nightly", "bad"}
        assert causes["nightly"].startswith(
            "schedule nightly of the beat_schedule of mail is not stored: schedule 'nightly' belongs to the app 'shop'"
        )
        app.conf.beat_schedule = {}
        Declaration(schedules).make()
        assert found(access, "refused schedules") == []

    def test_many_schedules_are_declared_in_a_few_round_trips(self, schedules: Schedules, app: Celery) -> None:
        schedules.put("s7", "every 1h", "shop.build")
        app.conf.beat_schedule = {f"s{number}": {"task": "shop.build", "schedule": 60} for number in range(300)}
        with record_round_trips() as trips:
            report = Declaration(schedules).make()
        assert (len(report.changed), [*report.refused]) == (299, ["s7"])
        # Three hundred in steps of a hundred, and one of another owner alone.
        assert len(trips) <= 40
        app.conf.beat_schedule = {}
        with record_round_trips() as trips:
            assert len(Declaration(schedules).make().deleted) == 299
        assert len(trips) <= 40

    def test_events_of_other_programs_are_not_read(
        self, access: Access, schedules: Schedules, client: redis.Redis
    ) -> None:
        for name in ("many", "huge"):
            schedules.put(name, "every 1h", "shop.build")
        line = str(Event("sent", 1, "run", 1))
        client.hset(KEYS.schedule_events.decode(), "many", "\n".join([line] * 5000))
        client.hset(KEYS.schedule_events.decode(), "huge", "x" * 800_000)
        with record_round_trips() as trips:
            many, huge = schedules.store.events_of(["many", "huge"])
        assert (len(many), huge, len(trips)) == (MAX_EVENTS, [], 2)

    def test_of_many_the_most_overdue_are_read(self, access: Access, schedules: Schedules, clock: Clock) -> None:
        for number in range(120):
            schedules.put(f"s{number:03}", "every 10 s", "shop.build")
            clock.forward(0.1)
        clock.forward(100)
        rows = look(access).schedules
        assert {f"s{number:03}" for number in range(shown.MAX_LOOKS)} <= {row.name for row in rows}
        assert len(rows) <= 2 * shown.MAX_LOOKS
        assert len(found(access, "missed schedules")) == MAX_OF_KIND + 1


class TestDispatchers:
    def test_schedules_that_nobody_dispatches(self, access: Access, schedules: Schedules, clock: Clock) -> None:
        assert found(access, "schedule dispatchers") == []
        schedules.put("nightly", "every 10 s", "shop.build")
        (one,) = found(access, "schedule dispatchers")
        assert (one.severity, one.since, one.hits) == ("error", None, 1)
        assert one.cause.endswith("and there are active schedules: nightly")
        clock.forward(15)
        (one,) = found(access, "schedule dispatchers")
        assert one.since == when(10)
        schedules.pause("nightly")
        assert found(access, "schedule dispatchers") == []

    def test_command_and_doctor_show_it(self, access: Access, schedules: Schedules, app: Celery) -> None:
        schedules.put("nightly", "every 10 s", "shop.nothing")
        done = CliRunner().invoke(group, ["incidents", "--json"], obj=SimpleNamespace(app=app))
        assert '"schedule dispatchers"' in done.stdout
        said = {one.check: one for one in examine(access, ask=False) if one.severity != "ok"}
        assert "no dispatcher was seen" in said["schedule dispatchers"].found
        assert said["tasks"].found == "schedules call tasks that no worker knows: nightly (shop.nothing)"


@pytest.mark.parametrize(("stored", "told"), [("2099z", True), ("2001a", False), ("", False)])
def test_older_time_zone_data_than_those_of_the_store(
    access: Access, schedules: Schedules, client: redis.Redis, stored: str, told: bool
) -> None:
    schedules.put("nightly", "every 1h", "shop.build")
    text = client.hget(KEYS.schedules, "nightly")
    assert isinstance(text, bytes)
    own = calendar.tzdata_version()
    client.hset(KEYS.schedules, "nightly", text.replace(f'"tzdata":"{own}"'.encode(), f'"tzdata":"{stored}"'.encode()))
    said = [one for one in examine(access, ask=False) if one.check == "schedule time zones" and one.severity != "ok"]
    assert bool(said) == told
    if told:
        assert f"this host has the time zone data {own}" in said[0].found
        assert f"nightly ({stored})" in said[0].found


def test_lateness_without_jitter_and_the_outcome_of_the_last_run(
    access: Access, schedules: Schedules, clock: Clock
) -> None:
    schedules.put("nightly", "every 1h", "shop.build", jitter=600)
    definition = must(schedules.find("nightly").definition)
    due = clock() + 3_600_000
    clock.now = definition.fire_ms(due) + 1500
    schedules.dispatch.run()
    row = shown.find_row(access, "nightly")
    assert (row.lateness, row.outcome, row.last and row.last.due) == (1.5, None, due)
    schedules.store.settle([("nightly", Event("ended", clock(), row.schedule.running, text="succeeded"))])
    assert shown.find_row(access, "nightly").outcome == "succeeded"
