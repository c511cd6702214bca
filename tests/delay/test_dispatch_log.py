"""The dispatch log: stored in Redis, read and expired."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone

import pytest
import redis

from redis_queue import DelayQueue, InvalidValueError
from redis_queue.basics.histogram import LIMITS, NO_TIMES, Histogram
from redis_queue.delay.dispatch_log import DispatcherRow, DispatchLog, Minute
from redis_queue.delay.model import Dispatched, Push
from redis_queue.store.keys import Keys
from redis_queue.store.script_files import load
from tests.support.clock import START, Clock, when
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer, client_options

KEYS = Keys("redis_queue", "delay", "timed", 0)


@pytest.fixture
def timed(client: redis.Redis, clock: Clock) -> DelayQueue:
    """A queue on the manual clock."""
    return DelayQueue("timed", client, clock=clock)


def row(name: str = "me", *, seen_at: float = START / 1000, error: str = "") -> DispatcherRow:
    return DispatcherRow(name, datetime.fromtimestamp(seen_at, timezone.utc), True, "1.2", 3, 1, error)


def minute_at(ms: int, *counts: float) -> Minute:
    return Minute(datetime.fromtimestamp(ms // 60_000 * 60, timezone.utc), *counts)  # type: ignore[arg-type]


class TestMoves:
    def test_a_move_returns_the_lateness_of_each_entry(
        self, client: redis.Redis, timed: DelayQueue, clock: Clock
    ) -> None:
        late = [0, *(round(limit * 1000) + more for limit in LIMITS if limit < 1e6 for more in (0, 1))]
        timed.push_many([Push("x", destination="list", due_at=when(-ms / 1000)) for ms in late])
        timed.push("stays", due_at=when(-5))
        moved = timed.moves.move()
        assert (moved.sent, moved.lateness) == (len(late), Histogram.of(late))
        assert moved.lateness.most == max(late) / 1000

    def test_only_moved_entries_count(self, client: redis.Redis, timed: DelayQueue) -> None:
        client.set("string", "x")
        timed.push_many(
            [
                Push("dead", destination="string", due_at=when(-90)),
                Push("stays", due_at=when(-80)),
                Push("unreadable", id="bad", destination="list", due_at=when(-70)),
                Push("moves", destination="list", due_at=when(-2)),
            ]
        )
        client.hset(KEYS.records, "bad", "nonsense")
        moved = timed.moves.move()
        assert moved.lateness == Histogram.of([2000])

    def test_calls_and_shards_add_up(self, client: redis.Redis, clock: Clock) -> None:
        timed = DelayQueue("timed", client, clock=clock, shards=3)
        timed.push_many([Push(n, destination="list", due_at=when(-n)) for n in range(1200)])
        moved = timed.moves.move()
        assert moved.lateness == Histogram.of([n * 1000 for n in range(1200)])

    @pytest.mark.parametrize("score", ["-inf", "-1e300", "0"])
    def test_an_edited_due_time_does_not_break_the_counts(
        self, client: redis.Redis, timed: DelayQueue, score: str
    ) -> None:
        timed.push("x", id="x", destination="list")
        client.zadd(KEYS.waiting, {"x": score})
        moved = timed.moves.move()
        assert moved.lateness.total == 1
        assert 0 < moved.lateness.most <= 3653 * 86400

    def test_a_move_of_nothing_has_no_lateness(self, timed: DelayQueue) -> None:
        assert timed.moves.move().lateness == NO_TIMES


def totals_of(queue: DelayQueue) -> tuple[int, int, Histogram]:
    """Return the totals of *queue*: sent, failed, lateness."""
    totals = queue.dispatch_log.totals()
    return totals.sent, totals.failed, totals.lateness


class TestTotals:
    def test_a_queue_without_dispatches_has_none(self, timed: DelayQueue) -> None:
        assert totals_of(timed) == (0, 0, NO_TIMES)

    def test_they_add_up(self, timed: DelayQueue) -> None:
        timed.dispatch_log.note(Dispatched(2, 1, Histogram.of([7, 70_000])))
        timed.dispatch_log.note(Dispatched(1, 0, Histogram.of([7])))
        assert totals_of(timed) == (3, 1, Histogram.of([7, 7, 70_000]))

    def test_their_size_is_bounded(self, client: redis.Redis, timed: DelayQueue) -> None:
        all_buckets = Histogram.of([limit * 1000 for limit in LIMITS])
        for _ in range(50):
            timed.dispatch_log.note(Dispatched(len(LIMITS), 0, all_buckets))
        assert timed.dispatch_log.totals().lateness.counts == tuple(50 * count for count in all_buckets.counts)
        assert client.hlen(KEYS.lateness) == 3
        assert client.hstrlen(KEYS.lateness, "times") < 1200

    def test_a_call_whose_reply_is_lost_counts_once(self, redis_server: RedisServer, timed: DelayQueue) -> None:
        timed.dispatch_log.note(Dispatched())
        with FaultProxy(redis_server.address) as proxy, redis.Redis.from_url(proxy.url, **client_options()) as through:
            proxy.drop_next_reply(matching=load("delay/note").sha.encode())
            DelayQueue("timed", through, clock=Clock()).dispatch_log.note(Dispatched(1, 0, Histogram.of([7])))
            assert proxy.pending_drops == 0
        assert timed.dispatch_log.totals().sent == 1

    def test_invalid_fields_count_as_zero(self, client: redis.Redis, timed: DelayQueue) -> None:
        client.hset(
            KEYS.lateness,
            mapping={"sent": "many", "failed": "-1", "times": b"\xff" + Histogram.of([7]).text().encode()},
        )
        assert totals_of(timed) == (0, 0, Histogram.of([7]))

    def test_only_the_first_shard_has_them(self, client: redis.Redis) -> None:
        DelayQueue("timed", client, shards=4).dispatch_log.note(Dispatched(1, 0, Histogram.of([7])), dispatcher=row())
        kept = {key for key in client.scan_iter() if b":slot:" not in key}
        assert kept == {KEYS.lateness, KEYS.minutes, KEYS.dispatchers}


class TestMinutes:
    def test_each_minute_has_its_own_counts_and_missing_ones_are_zero(self, timed: DelayQueue, clock: Clock) -> None:
        timed.dispatch_log.note(Dispatched(2, 1, Histogram.of([7, 500])))
        timed.dispatch_log.note(Dispatched(1, 0, Histogram.of([30])))
        clock.now += 120_000
        timed.dispatch_log.note(Dispatched(0, 2))
        assert timed.dispatch_log.minutes(4) == [
            minute_at(START - 60_000),
            minute_at(START, 3, 1, 0.537, 0.5),
            minute_at(START + 60_000),
            minute_at(START + 120_000, 0, 2, 0.0, 0.0),
        ]

    @pytest.mark.parametrize("limit", [1, 60, 1440])
    def test_the_limit_is_the_number_of_minutes(self, timed: DelayQueue, limit: int) -> None:
        found = timed.dispatch_log.minutes(limit)
        assert len(found) == limit
        assert found[-1] == minute_at(START)
        assert found[0] == minute_at(START - (limit - 1) * 60_000)

    @pytest.mark.parametrize("limit", [0, 1441, True, 1.5])
    def test_other_limits_are_refused(self, timed: DelayQueue, limit: int) -> None:
        with pytest.raises(InvalidValueError, match="from 1 to 1,440"):
            timed.dispatch_log.minutes(limit)

    @pytest.mark.parametrize("step", [1440 * 60_000, -1440 * 60_000])
    def test_another_day_does_not_count(self, timed: DelayQueue, clock: Clock, step: int) -> None:
        timed.dispatch_log.note(Dispatched(5, 0, Histogram.of([7] * 5)))
        clock.now += step
        assert timed.dispatch_log.minutes(1) == [minute_at(clock.now)]
        timed.dispatch_log.note(Dispatched(1, 0, Histogram.of([7])))
        assert timed.dispatch_log.minutes(1) == [minute_at(clock.now, 1, 0, 0.007, 0.007)]

    def test_they_are_kept_for_a_day(self, client: redis.Redis, timed: DelayQueue, clock: Clock) -> None:
        for _ in range(1500):
            timed.dispatch_log.note(Dispatched(1, 0, Histogram.of([7])))
            clock.now += 60_000
        assert client.hlen(KEYS.minutes) == 1440

    def test_an_invalid_minute_is_zero(self, client: redis.Redis, timed: DelayQueue) -> None:
        client.hset(KEYS.minutes, str(START // 60_000 % 1440), "nonsense")
        assert timed.dispatch_log.minutes(1) == [minute_at(START)]


class TestDispatchers:
    def test_an_active_one_is_listed_with_the_time_of_the_server(self, timed: DelayQueue) -> None:
        timed.dispatch_log.note(Dispatched(), dispatcher=row("b", seen_at=5, error="away"))
        timed.dispatch_log.note(Dispatched(), dispatcher=row("a"))
        assert timed.dispatch_log.dispatchers() == [row("a"), row("b", error="away")]

    def test_one_not_seen_for_a_minute_is_left_out(self, timed: DelayQueue, clock: Clock) -> None:
        timed.dispatch_log.note(Dispatched(), dispatcher=row())
        clock.now += 60_000
        assert [found.name for found in timed.dispatch_log.dispatchers()] == ["me"]
        clock.now += 1
        assert timed.dispatch_log.dispatchers() == []
        timed.dispatch_log.note(Dispatched(), dispatcher=row())
        assert [found.name for found in timed.dispatch_log.dispatchers()] == ["me"]

    def test_one_that_left_is_removed_at_once_and_its_dispatches_count(self, timed: DelayQueue) -> None:
        timed.dispatch_log.note(Dispatched(), dispatcher=row())
        timed.dispatch_log.note(Dispatched(1, 0, Histogram.of([7])), dispatcher=row(), leaving=True)
        assert timed.dispatch_log.dispatchers() == []
        assert timed.dispatch_log.totals().sent == 1

    def test_those_not_seen_for_an_hour_are_deleted(self, client: redis.Redis, timed: DelayQueue, clock: Clock) -> None:
        for number in range(40):
            timed.dispatch_log.note(Dispatched(), dispatcher=row(f"old-{number}"))
        clock.now += 3_600_001
        calls = 0
        while client.hlen(KEYS.dispatchers) > 1:
            timed.dispatch_log.note(Dispatched(), dispatcher=row())
            calls += 1
            assert calls < 500, "each call must remove some of them"
        assert client.hkeys(KEYS.dispatchers) == [b"me"]

    @pytest.mark.parametrize(
        "value", ["", "x", f"{START} ", f"{START} [1]", f"{START} {{}}", f"{START} " + "[" * 100_000, "9" * 400 + " {}"]
    )
    def test_an_invalid_row_is_left_out(self, client: redis.Redis, timed: DelayQueue, value: str) -> None:
        client.hset(KEYS.dispatchers, "odd", value)
        timed.dispatch_log.note(Dispatched(), dispatcher=row())
        assert [found.name for found in timed.dispatch_log.dispatchers()] == ["me"]

    def test_a_name_may_be_any_bytes_and_a_long_error_is_cut(self, client: redis.Redis, timed: DelayQueue) -> None:
        timed.dispatch_log.note(Dispatched(), dispatcher=row("é\n{x}", error="e" * 9000))
        client.hset(KEYS.dispatchers, b"\xff", client.hget(KEYS.dispatchers, "é\n{x}"))
        found = {one.name: one.error for one in timed.dispatch_log.dispatchers()}
        assert found == {"é\n{x}": "e" * 500, "\ufffd": "e" * 500}


@pytest.mark.parametrize("read", [DispatchLog.totals, DispatchLog.minutes, DispatchLog.dispatchers])
def test_reads_change_nothing(client: redis.Redis, timed: DelayQueue, read: Callable[[DispatchLog], object]) -> None:
    read(timed.dispatch_log)
    assert client.dbsize() == 0
