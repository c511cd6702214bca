"""Histograms of durations: buckets, sums and quantiles."""

from __future__ import annotations

import math

import pytest

from redis_queue import InvalidValueError
from redis_queue.basics.histogram import BOUNDS, NO_TIMES, Histogram


def test_each_bound_belongs_to_the_bucket_below_it() -> None:
    for number, bound in enumerate(BOUNDS):
        on, above = Histogram.of([bound * 1000]), Histogram.of([bound * 1000 + 1])
        assert (on.counts[number], above.counts[number + 1]) == (1, 1)


def test_they_can_be_added() -> None:
    added = Histogram.of([3, 4000]) + Histogram.of([7])
    assert (added.total, added.seconds) == (3, 4.01)
    assert added.counts == Histogram.of([3, 7, 4000]).counts


@pytest.mark.parametrize(
    ("late", "q", "expected"),
    [
        ([1, 1], 0.5, 0.0025),
        ([1, 1], 1, 0.005),
        ([1] * 99 + [400], 0.99, 0.005),
        ([1] * 98 + [400] * 2, 0.99, 0.375),
        ([5000_000], 0.5, 3600),
        ([400], 0, 0.25),
    ],
)
def test_a_quantile_is_that_of_prometheus(late: list[float], q: float, expected: float) -> None:
    assert Histogram.of(late).quantile(q) == pytest.approx(expected)


def test_an_empty_one_has_no_quantile() -> None:
    assert math.isnan(NO_TIMES.quantile(0.5))


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan, True, "0.5", None])
def test_an_invalid_quantile_is_refused(q: float) -> None:
    with pytest.raises(InvalidValueError, match="from 0 to 1"):
        NO_TIMES.quantile(q)
