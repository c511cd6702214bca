"""DispatchReport: counts of all dispatchers are readable, and a failed write never stops a dispatch."""

from __future__ import annotations

import logging

import pytest
import redis

from redis_queue import DelayQueue
from redis_queue.basics.histogram import Histogram
from redis_queue.celery import DispatchLoop, DurableTasks
from redis_queue.celery.dispatch.beat import dispatch_due
from redis_queue.celery.dispatch.dispatcher import Dispatcher
from redis_queue.celery.dispatch.outcome import DispatchReport
from redis_queue.delay.model import Dispatched
from redis_queue.store.keys import Keys
from tests.support.celery.brokers import Broker, ManualClock
from tests.support.celery.dispatch import running
from tests.support.wait import wait_until

KEYS = Keys("redis_queue", "delay", "scheduled", 0)
one_place = pytest.mark.parametrize("broker", ["redis"], indirect=True)
PLACES = ["redis", "another redis", "rabbitmq"]


@pytest.fixture
def delayed(broker: Broker, redis_url: str, client: redis.Redis) -> DurableTasks:
    """The delayed tasks of an app on the broker."""
    return DurableTasks(broker.app(redis_queue_url=redis_url), leases=False)


def send_due(delayed: DurableTasks) -> str:
    """Store a task that is due now; return its id."""
    result = delayed.app.send_task("shop.remind", countdown=60)
    assert delayed.run_now(result.id)
    return str(result.id)


@pytest.mark.parametrize("broker", PLACES, indirect=True)
class TestEachDispatcher:
    def test_loop_counts_sent_entries_and_is_listed(self, delayed: DurableTasks) -> None:
        queue, loop = delayed.queue, DispatchLoop(delayed.app)
        with running(loop):
            wait_until(
                lambda: [row.name for row in queue.dispatch_log.dispatchers()] == [loop.name],
                description="the dispatcher to be listed",
            )
            for _ in range(5):
                delayed.app.send_task("shop.remind", countdown=0.05)
            wait_until(lambda: queue.dispatch_log.totals().sent == 5, description="all entries to be counted")
            (row,) = queue.dispatch_log.dispatchers()
            assert row.leads
            assert row.error == ""
        found = queue.dispatch_log.totals()
        assert (found.failed, found.lateness.total) == (0, 5)
        assert 0 <= found.lateness.seconds < 5
        (minute,) = [minute for minute in queue.dispatch_log.minutes(2) if minute.sent]
        assert minute.sent == 5
        assert minute.worst_seconds <= minute.late_seconds <= 5 * minute.worst_seconds
        assert queue.dispatch_log.dispatchers() == [], "expected a stopped dispatcher to be removed"

    def test_beat_task_counts_sent_entries_and_is_listed(self, delayed: DurableTasks) -> None:
        send_due(delayed)
        assert dispatch_due(delayed.app) == {"sent": 1, "failed": 0}
        assert delayed.queue.dispatch_log.totals().sent == 1
        (row,) = delayed.queue.dispatch_log.dispatchers()
        assert (row.name.endswith(":task"), row.leads, row.sent) == (True, False, 1)

    def test_lateness_is_counted_from_the_due_time(self, delayed: DurableTasks) -> None:
        assert delayed.reschedule(send_due(delayed), eta=ManualClock().after(-300))
        done = Dispatcher(delayed.app, delayed.queue).run()
        assert done.lateness.total == 1
        assert 299 < done.lateness.least == done.lateness.most < 310


@one_place
def test_delivered_and_published_entries_are_counted_like_moved_ones(delayed: DurableTasks) -> None:
    ids = [send_due(delayed)]
    # The destination is known only after the entry has been read.
    ids += [delayed.queue.push({"task": "shop.remind"}, delay=60) for _ in range(2)]
    past = ManualClock()
    for id_ in ids:
        assert delayed.reschedule(id_, eta=past.after(-100))
    done = Dispatcher(delayed.app, delayed.queue).run()
    assert (done.sent, done.lateness.total) == (3, 3)
    assert 99 * 3 < done.lateness.seconds < 110 * 3


@one_place
def test_follower_is_listed_too(delayed: DurableTasks) -> None:
    queue, loops = delayed.queue, (DispatchLoop(delayed.app), DispatchLoop(delayed.app))
    with running(*loops):
        wait_until(lambda: len(queue.dispatch_log.dispatchers()) == 2, description="both dispatchers to be listed")
        assert sorted(row.leads for row in queue.dispatch_log.dispatchers()) == [False, True]
    assert queue.dispatch_log.dispatchers() == []


@one_place
def test_redriven_entries_are_counted(delayed: DurableTasks) -> None:
    send_due(delayed)
    (entry,) = delayed.queue.claim()
    delayed.queue.nack(entry, dead=True)
    assert delayed.redrive() == 1
    assert delayed.queue.dispatch_log.totals().sent == 1
    assert delayed.queue.dispatch_log.dispatchers() == []


class TestTime:
    @pytest.fixture
    def now(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        """The monotonic clock of the report, set by the test."""
        now = [1000.0]
        monkeypatch.setattr("redis_queue.celery.dispatch.outcome.monotonic", lambda: now[0])
        return now

    def test_counts_are_written_at_most_once_a_second_and_a_heartbeat_every_ten(
        self, client: redis.Redis, now: list[float]
    ) -> None:
        queue = DelayQueue("scheduled", client)
        report = DispatchReport(queue, "me")
        one = Dispatched(1, 0, lateness=Histogram.of([7]))
        seconds = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 15.0, 25.0, 35.0, 45.0]
        written = []
        for step in range(400):
            now[0] = 1000 + step / 8
            if step < 40:
                report.add(one)
            before = queue.dispatch_log.dispatchers()
            assert (report.due_in() == 0) == (step / 8 in seconds)
            report.write(leads=bool(step % 16))
            if step == 0 or queue.dispatch_log.dispatchers() != before:
                written.append(step / 8)
        assert written == seconds
        totals = queue.dispatch_log.totals()
        assert (totals.sent, totals.failed, totals.lateness) == (40, 0, Histogram.of([7] * 40))


@one_place
def test_failed_write_stops_no_dispatch_and_is_logged_once(
    delayed: DurableTasks, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.set(KEYS.minutes, "not a hash")
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            send_due(delayed)
            assert dispatch_due(delayed.app) == {"sent": 1, "failed": 0}, number
    assert [vars(record)["action"] for record in caplog.records if "counts" in record.message] == ["note_failed"]
    client.delete(KEYS.minutes)
    send_due(delayed)
    dispatch_due(delayed.app)
    assert delayed.queue.dispatch_log.totals().sent == 4, "expected unwritten counts to be kept"


@pytest.mark.parametrize("broker", ["another redis"], indirect=True)
def test_dispatcher_reports_an_unavailable_broker(delayed: DurableTasks) -> None:
    send_due(delayed)
    delayed.app.conf.broker_url = delayed.app.conf.broker_write_url = "redis://127.0.0.1:1/0"
    with running(DispatchLoop(delayed.app)):
        wait_until(
            lambda: any(row.error for row in delayed.queue.dispatch_log.dispatchers()),
            description="the error to be listed",
        )
