"""The history of tasks: tables, curves, and what a deploy broke."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from redis_queue.basics.histogram import Histogram
from redis_queue.errors import InvalidValueError
from redis_queue.monitor.model import Series, Tally
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import Access
from redis_queue.operate.history import SPANS, curves, table
from redis_queue.operate.inspector import Inspector
from tests.support.clock import Clock

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
