"""Reports of counts: what is stored, for how long, in how many bytes, and how it is read."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import redis

from redis_queue import InvalidValueError
from redis_queue.basics.histogram import LIMITS, NO_TIMES, Histogram
from redis_queue.monitor.history import RunHistory
from redis_queue.monitor.model import Series, Tally
from redis_queue.monitor.report import MAX_SERIES as IN_A_REPORT
from redis_queue.monitor.report import OTHER, Reports
from redis_queue.monitor.rows import read_tally, write_tally
from redis_queue.store.keys import MonitorKeys
from redis_queue.store.scripts import NumberedCalls, Scripts
from tests.support.clock import Clock, when
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer, client_options

NONE = Tally()
MAIL, BILL = Series("shop.mail", "mail"), Series("shop.bill", "default")
KEYS = MonitorKeys("redis_queue")
MINUTE, HOUR, DAY = 60, 3600, 86400

MAX_SERIES = 200
"""Series that are counted apart."""


@pytest.fixture
def clock() -> Clock:
    """A clock that stands at the beginning of a day."""
    return Clock(1_700_006_400_000)


@pytest.fixture
def history(client: redis.Redis, clock: Clock) -> RunHistory:
    return RunHistory(client, "redis_queue", clock)


def tally(executed: int, *, failed: int = 0, took_ms: float = 30) -> Tally:
    return Tally(executed, failed, duration=Histogram.of([took_ms] * executed))


def executed(periods: Any) -> list[int]:
    return [period.tally.executed for period in periods]


class TestCounts:
    def test_they_are_read_as_they_were_written(self) -> None:
        full = Tally(5, 1, 2, 3, Histogram.of([1, 70, 9e9]), Histogram.of([3]), Histogram.of([400, 500]))
        assert read_tally([write_tally(full).encode()]) == full

    def test_several_texts_are_added_up(self) -> None:
        texts = [write_tally(tally(2)).encode(), write_tally(tally(3, failed=1)).encode()]
        assert read_tally(texts) == tally(5, failed=1)

    def test_an_empty_tally_is_an_empty_text(self) -> None:
        assert (write_tally(Tally()), read_tally([b""])) == ("", Tally())

    @pytest.mark.parametrize("text", [b"\xff\xfe", b"a" * 100, b"A-1", b"a99999999999999999999999", b"{}", b"Z"])
    def test_other_bytes_are_ignored(self, text: bytes) -> None:
        assert read_tally([text, write_tally(tally(2)).encode()]).duration == tally(2).duration


class TestMinutes:
    def test_the_current_minute_is_the_last_one(self, reports: Reports, history: RunHistory, clock: Clock) -> None:
        reports.write(tallies={MAIL: tally(2)})
        reports.write(tallies={MAIL: tally(1), BILL: tally(4, failed=1)})
        assert executed(history.minutes(3)) == [0, 0, 7]
        assert executed(history.minutes(3, [MAIL])) == [0, 0, 3]
        assert history.minutes(1, [BILL])[0].tally == tally(4, failed=1)
        assert history.minutes(1)[0].at == when((clock.now - Clock().now) / 1000)

    def test_each_minute_keeps_its_counts(self, reports: Reports, history: RunHistory, clock: Clock) -> None:
        for number in range(1, 131):
            reports.write(tallies={MAIL: tally(number)})
            clock.forward(MINUTE)
        assert executed(history.minutes(131)) == [*range(1, 131), 0]

    def test_two_days_are_kept(self, reports: Reports, history: RunHistory, clock: Clock) -> None:
        reports.write(tallies={MAIL: tally(1)})
        clock.forward(2 * DAY - MINUTE)
        reports.write(tallies={MAIL: tally(2)})
        assert executed(history.minutes(2880)) == [1, *[0] * 2878, 2]

    def test_a_day_takes_the_place_of_one_three_days_before(
        self, reports: Reports, history: RunHistory, clock: Clock, client: redis.Redis
    ) -> None:
        for _ in range(8):
            reports.write(tallies={MAIL: tally(1)})
            clock.forward(DAY)
        reports.write(tallies={MAIL: tally(1)})
        assert sum(executed(history.minutes(2880))) == 2
        assert [client.hlen(key) for key in KEYS.minutes] == [3, 3, 3]

    def test_nothing_is_counted_before_the_first_report(self, history: RunHistory) -> None:
        assert executed(history.minutes(2)) == [0, 0]
        assert executed(history.minutes(2, [MAIL])) == [0, 0]

    def test_an_unknown_series_has_no_counts(self, reports: Reports, history: RunHistory) -> None:
        reports.write(tallies={MAIL: tally(1)})
        assert executed(history.minutes(1, [Series("nobody", "mail")])) == [0]

    @pytest.mark.parametrize("limit", [0, 2881, -1, True, 1.5])
    def test_an_invalid_limit_is_refused(self, history: RunHistory, limit: Any) -> None:
        with pytest.raises(InvalidValueError, match=r"limit=.*: must be"):
            history.minutes(limit)

    def test_a_clock_that_goes_back_loses_nothing(self, reports: Reports, history: RunHistory, clock: Clock) -> None:
        reports.write(tallies={MAIL: tally(1)})
        clock.forward(-90)
        reports.write(tallies={MAIL: tally(2)})
        clock.forward(90 + MINUTE)
        reports.write(tallies={MAIL: tally(4)})
        assert executed(history.minutes(3)) == [0, 3, 4]

    def test_a_clock_that_was_wrong_for_years_is_overcome(
        self, reports: Reports, history: RunHistory, clock: Clock
    ) -> None:
        clock.forward(3 * 365 * DAY)
        reports.write(tallies={MAIL: tally(1)})
        clock.forward(-3 * 365 * DAY)
        for number in range(2, 5):
            reports.write(tallies={MAIL: tally(number)})
            clock.forward(MINUTE)
        assert executed(history.minutes(4)) == [2, 3, 4, 0]
        assert executed(history.hours(1)) == [9]


class TestHours:
    def test_minutes_are_added_up(self, reports: Reports, history: RunHistory, clock: Clock) -> None:
        for _ in range(6):
            reports.write(tallies={MAIL: tally(5, failed=1)})
            clock.forward(HOUR / 2)
        assert executed(history.hours(4)) == [10, 10, 10, 0]
        assert history.hours(4, [MAIL])[0].tally == tally(10, failed=2)

    def test_the_current_hour_has_closed_minutes_and_the_open_one(
        self, reports: Reports, history: RunHistory, clock: Clock
    ) -> None:
        for _ in range(3):
            reports.write(tallies={MAIL: tally(1)})
            clock.forward(MINUTE)
        reports.write(tallies={MAIL: tally(1)})
        assert executed(history.hours(1)) == [4]

    def test_ninety_days_are_kept(self, reports: Reports, history: RunHistory, clock: Clock) -> None:
        reports.write(tallies={MAIL: tally(1)})
        clock.forward(90 * DAY - HOUR)
        reports.write(tallies={MAIL: tally(2)})
        assert executed(history.hours(2160)) == [1, *[0] * 2158, 2]


class TestTotals:
    @pytest.mark.parametrize("minutes", [60, 120, 600, 2880, 20_000, 129_600])
    def test_every_span_adds_up_what_is_in_it(
        self, reports: Reports, history: RunHistory, clock: Clock, minutes: int
    ) -> None:
        for _ in range(4):
            reports.write(tallies={MAIL: tally(1), BILL: tally(2, failed=1)})
            clock.forward(10)
        assert history.totals(minutes) == {MAIL: tally(4), BILL: tally(8, failed=4)}

    def test_older_runs_are_left_out(self, reports: Reports, history: RunHistory, clock: Clock) -> None:
        reports.write(tallies={BILL: tally(3)})
        clock.forward(30 * MINUTE)
        reports.write(tallies={MAIL: tally(1)})
        assert history.totals(10) == {MAIL: tally(1)}
        assert history.totals(10, before=25) == {BILL: tally(3)}

    def test_all_time_counts_do_not_decrease_when_a_minute_is_closed(
        self, reports: Reports, history: RunHistory, clock: Clock
    ) -> None:
        seen = []
        for _ in range(4):
            reports.write(tallies={MAIL: tally(1)})
            seen.append(history.all_time()[MAIL].executed)
            clock.forward(40)
        clock.forward(100 * DAY)
        reports.write(tallies={MAIL: tally(1)})
        assert [*seen, history.all_time()[MAIL].executed] == [1, 2, 3, 4, 5]

    @pytest.mark.parametrize("minutes", [0, -1, 129_601, True, 1.0])
    def test_an_invalid_span_is_refused(self, history: RunHistory, minutes: Any) -> None:
        with pytest.raises(InvalidValueError, match=r"minutes=.*: must be 1 to 129600"):
            history.totals(minutes)


class TestCountsByMinute:
    def test_each_series_has_a_count_for_each_minute(self, reports: Reports, history: RunHistory, clock: Clock) -> None:
        reports.write(tallies={MAIL: tally(2)})
        clock.forward(2 * MINUTE)
        reports.write(tallies={MAIL: tally(1), BILL: tally(4, failed=1)})
        assert history.counts(4) == {MAIL: [NONE, Tally(2), NONE, Tally(1)], BILL: [NONE, NONE, NONE, Tally(4, 1)]}

    def test_across_hours(self, reports: Reports, history: RunHistory, clock: Clock) -> None:
        clock.forward(HOUR - MINUTE)
        reports.write(tallies={MAIL: tally(2)})
        clock.forward(MINUTE)
        reports.write(tallies={MAIL: tally(3)})
        assert history.counts(2) == {MAIL: [Tally(2), Tally(3)]}

    def test_series_without_runs_in_this_time_are_left_out(
        self, reports: Reports, history: RunHistory, clock: Clock
    ) -> None:
        reports.write(tallies={MAIL: tally(2)})
        clock.forward(10 * MINUTE)
        reports.write(tallies={BILL: tally(1)})
        assert history.counts(10) == {BILL: [*[NONE] * 9, Tally(1)]}

    @pytest.mark.parametrize("minutes", [0, 121, -1, True, 1.5, "60"])
    def test_an_invalid_number_of_minutes_is_refused(self, history: RunHistory, minutes: Any) -> None:
        with pytest.raises(InvalidValueError, match="minutes="):
            history.counts(minutes)


class TestSeries:
    def test_they_are_listed_by_name(self, reports: Reports, history: RunHistory) -> None:
        reports.write(tallies={MAIL: tally(1), BILL: tally(1)})
        assert history.series() == [BILL, MAIL]

    def test_beyond_the_limit_they_are_counted_together(self, reports: Reports, history: RunHistory) -> None:
        for start in range(0, MAX_SERIES, IN_A_REPORT):
            reports.write(tallies={Series(f"t{start + number}", "q"): tally(1) for number in range(IN_A_REPORT)})
        reports.write(tallies={Series(f"u{number}", "q"): tally(2) for number in range(3)})
        reports.write(tallies={Series("t7", "q"): tally(10)})
        assert len(history.series()) == MAX_SERIES
        assert history.totals(1)[OTHER] == tally(6)
        assert history.totals(1)[Series("t7", "q")] == tally(11)
        assert executed(history.minutes(1)) == [MAX_SERIES + 16]
        assert executed(history.minutes(1, [OTHER])) == [6]

    def test_a_report_may_have_more_series_than_one_call(self, reports: Reports, history: RunHistory) -> None:
        many = {Series(f"t{number}{'名' * 240}", "名" * 240): tally(1) for number in range(IN_A_REPORT + 5)}
        reports.write(tallies=many)
        assert history.totals(1) == many

    def test_one_that_was_not_used_for_90_days_makes_room(
        self, reports: Reports, history: RunHistory, clock: Clock
    ) -> None:
        for start in range(0, MAX_SERIES, IN_A_REPORT):
            reports.write(tallies={Series(f"t{start + number}", "q"): tally(1) for number in range(IN_A_REPORT)})
        clock.forward(91 * DAY)
        reports.write(tallies={MAIL: tally(1)})
        assert history.series() == [MAIL]
        assert history.totals(1) == {MAIL: tally(1)}
        assert history.totals(129_600) == {MAIL: tally(1)}

    def test_one_that_made_room_leaves_nothing_in_the_totals(
        self, reports: Reports, history: RunHistory, clock: Clock, client: redis.Redis
    ) -> None:
        for part in range(3):
            reports.write(tallies={Series(f"t{part}.{number}", "q"): tally(1) for number in range(MAX_SERIES)})
            clock.forward(91 * DAY)
        reports.write(tallies={MAIL: tally(1)})
        assert history.all_time() == {MAIL: tally(1)}
        # Those of all series together.
        assert client.hkeys(KEYS.totals) == [b"0"]

    def test_their_size_does_not_grow_with_the_load(self, reports: Reports, clock: Clock, client: redis.Redis) -> None:
        sizes = []
        for load in (100, 10_000):
            client.flushdb()
            for _ in range(180):
                reports.write(tallies={MAIL: Tally(2 * load, duration=Histogram.of([7, 40] * load))})
                clock.forward(MINUTE)
            sizes.append(sum(client.memory_usage(key) or 0 for key in KEYS.all()))
        assert sizes[1] < 2 * sizes[0]
        assert sizes[1] < 180 * 200


class TestTimes:
    def test_quantiles_are_true_however_they_were_added_up(
        self, reports: Reports, history: RunHistory, clock: Clock
    ) -> None:
        chance, truth = random.Random(7), []
        for _ in range(40):
            times = [round(1000 * chance.lognormvariate(-1, 2), 3) for _ in range(chance.randint(1, 200))]
            reports.write(tallies={MAIL: Tally(len(times), duration=Histogram.of(times), lateness=Histogram.of(times))})
            truth += times
            clock.forward(20)
        truth.sort()
        expected = Histogram.of(truth)
        for minutes in (60, 600, 20_000):
            found = history.totals(minutes)[MAIL]
            assert (found.duration.counts, found.waiting) == (expected.counts, NO_TIMES)
            for q in (0.5, 0.95, 0.99, 1):
                assert found.duration.quantile(q) == pytest.approx(truth[math.ceil(q * len(truth)) - 1] / 1000, rel=0.1)
            assert found.duration.most == truth[-1] / 1000
            assert (found.duration.least, found.lateness) == (truth[0] / 1000, found.duration)
        assert history.all_time()[MAIL].duration == history.totals(60)[MAIL].duration
        assert history.totals(60, times=False)[MAIL] == Tally(len(truth))

    def test_counts_of_another_version_are_kept_and_its_histograms_dropped(
        self, reports: Reports, history: RunHistory, clock: Clock, client: redis.Redis
    ) -> None:
        reports.write(tallies={MAIL: tally(1)})
        clock.forward(MINUTE)
        for field in set(client.hkeys(KEYS.current)) - {b"minute"}:
            client.hset(KEYS.current, field, "a4b1e700g2x5Z9")
        reports.write(tallies={MAIL: tally(2)})
        assert history.totals(10) == {MAIL: tally(2) + Tally(4, 1)}
        assert history.all_time() == {MAIL: tally(2) + Tally(4, 1)}
        assert client.hvals(KEYS.totals) == [b"a4b1"] * 2

    def test_the_script_has_as_many_buckets(self, reports: Reports, history: RunHistory, clock: Clock) -> None:
        longest = Tally(2, duration=Histogram.of([9e12, 0]))
        for _ in range(3):
            reports.write(tallies={MAIL: longest})
            clock.forward(MINUTE)
        assert history.totals(600)[MAIL].duration.counts == (3, *[0] * (len(LIMITS) - 1), 3)


def test_a_report_whose_reply_was_lost_counts_once(redis_server: RedisServer, client: redis.Redis) -> None:
    with FaultProxy(redis_server.address) as proxy, redis.Redis.from_url(proxy.url, **client_options()) as through:
        proxy.cut_next_reply()
        Reports(through, "redis_queue").write(tallies={MAIL: tally(3)})
    assert sum(executed(RunHistory(client, "redis_queue").minutes(2))) == 3


def test_a_count_that_is_repeated_counts_once(reports: Reports, history: RunHistory) -> None:
    (count,) = reports.count_calls({MAIL: tally(3)})
    count()
    reports.write()
    count()
    assert executed(history.minutes(1)) == [3]


def test_a_count_can_be_repeated_after_a_long_outage(client: redis.Redis, reports: Reports) -> None:
    reports.write(tallies={MAIL: tally(3)})
    assert max(client.pttl(slot) for slot in client.keys("*slot*")) > 3_600_000


def test_a_minute_with_many_series_is_closed_in_short_steps(
    client: redis.Redis, reports: Reports, history: RunHistory, clock: Clock
) -> None:
    many = [Series("shop.mail", f"queue{number:03}") for number in range(IN_A_REPORT)]
    reports.write(tallies={series: tally(1) for series in many})
    clock.forward(MINUTE)
    before = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    reports.write(tallies={MAIL: tally(5)})
    # Each closes five, or six if it does not come upon the field of the minute.
    assert 17 <= client.info("commandstats")["cmdstat_evalsha"]["calls"] - before <= 22
    assert executed(history.minutes(2)) == [IN_A_REPORT, 5]
    assert executed(history.minutes(2, [many[7]])) == [1, 0]
    assert sum(of.executed for of in history.all_time().values()) == IN_A_REPORT + 5


def test_a_minute_that_is_closed_in_part_is_read_in_full(
    client: redis.Redis, history: RunHistory, clock: Clock
) -> None:
    many = [Series("shop.mail", f"queue{number:03}") for number in range(IN_A_REPORT)]
    Reports(client, "redis_queue", clock).write(tallies={series: tally(1) for series in many})
    clock.forward(MINUTE)
    NumberedCalls(Scripts(client), KEYS).prepare("monitor/count", now=clock(), more=[])()
    assert client.hlen(KEYS.current) < IN_A_REPORT
    assert executed(history.minutes(2)) == [IN_A_REPORT, 0]
    assert executed(history.hours(1)) == [IN_A_REPORT]
    assert sum(of.executed for of in history.totals(10).values()) == IN_A_REPORT
    assert sum(of.executed for of in history.all_time().values()) == IN_A_REPORT


@pytest.mark.parametrize("key", [KEYS.workers, *KEYS.all()[2:]][:13], ids=lambda key: key.decode())
def test_a_key_of_another_type_is_named(client: redis.Redis, reports: Reports, key: bytes) -> None:
    client.set(key, "something else")
    with pytest.raises(Exception, match="monitor"):
        reports.write(tallies={MAIL: tally(1)})


def test_hostile_counts_are_ignored(reports: Reports, history: RunHistory, client: redis.Redis, clock: Clock) -> None:
    reports.write(tallies={MAIL: tally(1)})
    clock.forward(MINUTE)
    reports.write(tallies={MAIL: tally(1)})
    client.hset(KEYS.series, mapping={b"\xff\0x": b"17 99999999999999", b"no separator": "18 1", "": "x"})
    client.hset(KEYS.current, mapping={"minute": "9" * 40, "0": b"\xff" * 1000})
    client.hset(KEYS.totals, "2", b"\0\xffa5")
    for key in (*KEYS.minutes, *KEYS.hours):
        for field in client.hkeys(key):
            if b":" in field:
                client.hset(key, field, b"99=a1;x=;=;" + b"\xff" * 100)
    assert executed(history.minutes(2)) == [0, 0]
    assert executed(history.hours(2)) == [0, 0]
    assert history.totals(60) == {MAIL: tally(1)}
    history.all_time()
    assert history.series() == [MAIL]
