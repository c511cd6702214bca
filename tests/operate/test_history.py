"""The history of tasks: tables, curves, and what a deploy broke."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from redis_queue.basics.histogram import Histogram
from redis_queue.errors import InvalidValueError
from redis_queue.monitor.model import Series, Tally, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import Access
from redis_queue.operate.history import MAX_MARKS, SPANS, Comparison, compare, curves, table
from redis_queue.operate.inspector import Inspector
from redis_queue.store.keys import MonitorKeys
from tests.support.clock import Clock, when

MAIL, BILL = Series("shop.mail", "mail"), Series("shop.bill", "default")


@pytest.fixture
def access(client: redis.Redis, clock: Clock) -> Access:
    return Access(Inspector(client, prefix="redis_queue", clock=clock))


def tally(executed: int, failed: int = 0) -> Tally:
    return Tally(executed, failed, duration=Histogram.of([30] * executed))


@pytest.mark.parametrize("span", SPANS)
def test_each_span_has_a_table_and_curves(access: Access, reports: Reports, span: str) -> None:
    reports.write(tallies={MAIL: tally(5, 1), BILL: tally(9)})
    rows = table(access, span)
    assert [(row.series, row.tally.executed) for row in rows] == [(BILL, 9), (MAIL, 5)]
    found = curves(access, span)
    assert len(found.times) == SPANS[span].points
    sums = {name: sum(values) for name, values in found.counts}
    assert sums == {"succeeded": 13, "failed": 1, "retried": 0, "revoked": 0}
    assert [of.name for of in found.duration] == ["p50", "p95", "p99"]
    assert (found.duration[0].values[-1], found.duration[0].whole) == (0.03, 0.03)
    assert {*found.waiting[0].values, found.waiting[0].whole} == {None}
    assert sum(dict(curves(access, span, [MAIL]).counts)["succeeded"]) == 4


def test_a_quantile_of_the_whole_span_is_that_of_all_its_runs(access: Access, reports: Reports, clock: Clock) -> None:
    reports.write(tallies={MAIL: tally(90)})
    clock.forward(60)
    reports.write(tallies={MAIL: Tally(10, duration=Histogram.of([4000] * 10))})
    p50, p95, _ = curves(access, "15m").duration
    assert (p50.values[-2:], p50.whole) == ([0.03, 4.0], pytest.approx(0.03, rel=0.1))
    assert p95.whole == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("span", ["1h", "2d"])
def test_curves_of_some_series_are_added_up(access: Access, reports: Reports, span: str) -> None:
    reports.write(tallies={MAIL: tally(5, 1), BILL: tally(9), Series("shop.other", "mail"): tally(70)})
    found = curves(access, span, [MAIL, BILL, Series("nobody", "mail")])
    assert sum(dict(found.counts)["succeeded"]) == 13
    assert sum(dict(curves(access, span, []).counts)["succeeded"]) == 0


def test_names_are_searched_by_part(access: Access, reports: Reports) -> None:
    reports.write(tallies={MAIL: tally(5), BILL: tally(9)})
    assert [row.series for row in table(access, "1h", task="mail")] == [MAIL]
    assert [row.series for row in table(access, "1h", queue="def")] == [BILL]


def test_a_task_that_fails_more_often_than_before_is_marked(access: Access, reports: Reports, clock: Clock) -> None:
    reports.write(tallies={MAIL: tally(100, 1), BILL: tally(100, 20)})
    clock.forward(3600)
    reports.write(tallies={MAIL: tally(100, 20), BILL: tally(100, 21)})
    assert {row.series: row.rose for row in table(access, "1h")} == {MAIL: True, BILL: False}


def test_a_task_without_runs_before_is_not_marked(access: Access, reports: Reports, clock: Clock) -> None:
    reports.write(tallies={BILL: tally(1)})
    clock.forward(3600)
    reports.write(tallies={MAIL: tally(100, 20), BILL: tally(100, 21)})
    assert {row.series: row.rose for row in table(access, "1h")} == {MAIL: False, BILL: True}


@pytest.mark.parametrize("span", ["", "2h", "1H", "x" * 500])
def test_an_unknown_span_is_refused(access: Access, span: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"span=.*: must be one of 15m, 1h, 6h, 2d, 30d, 90d"):
        table(access, span)
    with pytest.raises(InvalidValueError, match="must be one of"):
        curves(access, span)


PACK, SHIP = Series("shop.pack", "default"), Series("shop.ship", "default")


def deploy(reports: Reports, release: str, tallies: dict[Series, Tally] | None = None) -> None:
    reports.write(WorkerRow("w", when(0), when(0), release=release), tallies=tallies)


def timed(ms: int, failed: int = 0) -> Tally:
    return Tally(100, failed, duration=Histogram.of([ms] * 100))


def changes(found: Comparison) -> list[tuple[str, int, int, str]]:
    rows = found.rows
    return [(row.series.task, (row.before or Tally()).executed, row.tally.executed, row.verdict) for row in rows]


def test_what_got_worse_with_a_release_comes_first(access: Access, reports: Reports, clock: Clock) -> None:
    old = {MAIL: timed(30, 1), BILL: timed(30), PACK: timed(30), SHIP: timed(30)}
    deploy(reports, "v1", old)
    clock.forward(600)
    new = {MAIL: timed(30, 20), BILL: timed(60), PACK: timed(31), Series("shop.new", "default"): timed(5)}
    deploy(reports, "v2", new)
    clock.forward(570)
    found = compare(access, "1h", "v2")
    assert changes(found) == [
        ("shop.mail", 100, 100, "fails more often"),
        ("shop.bill", 100, 100, "slower"),
        ("shop.new", 0, 100, "new"),
        ("shop.pack", 100, 100, ""),
        ("shop.ship", 100, 0, "no runs"),
    ]
    assert (found.minutes, found.known_before, found.release.release) == (10, True, "v2")
    assert changes(compare(access, "1h", "v2", task="mail")) == [("shop.mail", 100, 100, "fails more often")]
    assert changes(compare(access, "1h", "v2", queue="mail")) == [("shop.mail", 100, 100, "fails more often")]


@pytest.mark.parametrize(
    ("span", "later", "minutes"),
    [("15m", 3600, 15), ("1h", 3600, 60), ("6h", 5 * 3600, 300), ("2d", 30 * 3600, 1800), ("30d", 5 * 86400, 5 * 1440)],
)
def test_both_sides_of_a_release_have_one_length(  # noqa: PLR0917 - fixtures and parameters
    access: Access, reports: Reports, clock: Clock, span: str, later: int, minutes: int
) -> None:
    # Each side has its runs near the deploy, and others beyond the span or in the hour or day of the deploy.
    step = 60 if minutes <= 120 else 3600 if minutes <= 2880 else 86400
    deploy(reports, "v1", {MAIL: tally(7)})
    clock.forward(minutes * 60 + step)
    reports.write(tallies={MAIL: tally(30)})
    clock.forward(step)
    deploy(reports, "v2", {} if step > 60 else {MAIL: tally(5)})
    if step > 60:
        reports.write(tallies={MAIL: tally(1000)})
        clock.forward(step)
        reports.write(tallies={MAIL: tally(5)})
    clock.forward(later)
    found = compare(access, span, "v2")
    assert changes(found) == [("shop.mail", 30, 5, "")]
    assert found.minutes in (minutes, minutes + step // 60)


def test_a_release_without_data_from_before_says_so(access: Access, reports: Reports, clock: Clock) -> None:
    deploy(reports, "v1", {MAIL: tally(100, 50)})
    clock.forward(60)
    found = compare(access, "1h", "v1")
    assert (found.known_before, changes(found)) == (False, [("shop.mail", 0, 100, "")])
    assert found.rows[0].before is None


def test_a_release_of_the_future_and_one_of_long_ago_are_compared(
    access: Access, reports: Reports, clock: Clock, client: redis.Redis
) -> None:
    reports.write(tallies={MAIL: tally(3)})
    keys = MonitorKeys("redis_queue")
    for name, at in (
        ("future", clock.now + 10**9),
        ("far", 10**15 - 1),
        ("old", clock.now - 100 * 86_400_000),
        ("zero", 0),
    ):
        client.hset(keys.releases, name, f"{at} {at}")
    for span in SPANS:
        assert {len(compare(access, span, name).rows) for name in ("future", "far")} == {1}
        assert {len(compare(access, span, name).rows) for name in ("old", "zero")} == {0}


@pytest.mark.parametrize("release", ["", "v3", "x" * 10_000, "\x1b[2J", "<b>"])
def test_an_unknown_release_is_refused(access: Access, reports: Reports, release: str) -> None:
    with pytest.raises(InvalidValueError, match=r"release=.*: no worker has reported one"):
        compare(access, "1h", release)
    deploy(reports, "v2")
    with pytest.raises(InvalidValueError, match=r"release=.*: (did you mean|known are) 'v2'") as caught:
        compare(access, "1h", release)
    assert len(str(caught.value)) < 400


def test_curves_mark_the_last_releases_of_their_span(access: Access, reports: Reports, clock: Clock) -> None:
    deploy(reports, "long ago")
    clock.forward(7200)
    for number in range(MAX_MARKS + 5):
        deploy(reports, f"v{number}")
        clock.forward(1)
    marks = [row.release for row in curves(access, "1h").marks]
    assert marks == [f"v{number}" for number in reversed(range(5, MAX_MARKS + 5))]
    assert "long ago" not in [row.release for row in curves(access, "15m").marks]
