"""Histograms of durations: buckets, sums, quantiles, and their stored form."""

import itertools
import math
import random
from collections.abc import Callable, Sequence

import pytest

from redis_queue import InvalidValueError
from redis_queue.basics.histogram import BUCKETS, LIMITS, NO_TIMES, Durations, Histogram, read_histograms

SHAPES: dict[str, Callable[[random.Random], float]] = {
    "constant": lambda _: 0.73,
    "narrow": lambda chance: chance.uniform(0.70, 0.75),
    "uniform": lambda chance: chance.uniform(0.001, 600),
    "lognormal": lambda chance: chance.lognormvariate(-2, 1.5),
    "bimodal": lambda chance: chance.gauss(*chance.choice([(0.02, 0.001), (400, 5)])),
    "heavy tail": lambda chance: 0.05 * chance.paretovariate(0.7),
    "tiny": lambda chance: chance.uniform(0.000001, 0.004),
    "weeks": lambda chance: chance.uniform(600_000, 6_000_000),
    "none": lambda _: 0.0,
}


def samples(shape: str, count: int = 1000) -> list[float]:
    """Return durations in seconds of whole microseconds."""
    chance = random.Random(f"{shape} {count}")
    return [round(max(0.0, SHAPES[shape](chance)), 6) for _ in range(count)]


def histogram(seconds: Sequence[float]) -> Histogram:
    durations = Durations()
    for one in seconds:
        durations.add(one)
    return durations.sum()


def stored(*parts: Histogram) -> Histogram:
    return read_histograms([part.text().encode() for part in parts])[0]


@pytest.mark.parametrize("count", [1, 2, 7, 20, 1000])
@pytest.mark.parametrize("shape", SHAPES)
class TestQuantiles:
    def check(self, found: Histogram, truth: Sequence[float]) -> None:
        ordered = sorted(truth)
        for q in (0, 0.01, 0.5, 0.95, 0.99, 1):
            true, estimated = ordered[max(0, math.ceil(q * len(ordered)) - 1)], found.quantile(q)
            assert ordered[0] <= estimated <= ordered[-1], q
            assert estimated == pytest.approx(true, rel=0.1, abs=0.001), q
        assert (found.total, found.seconds) == (len(truth), pytest.approx(sum(truth), abs=0.002))

    def test_are_within_ten_percent_of_the_truth(self, shape: str, count: int) -> None:
        self.check(histogram(samples(shape, count)), samples(shape, count))

    def test_do_not_depend_on_the_order_of_additions(self, shape: str, count: int) -> None:
        truth = [*samples(shape, count), *samples("lognormal", count)]
        parts = [histogram(truth[start::3]) for start in range(3)]
        self.check(parts[0] + parts[1] + parts[2], truth)
        assert (parts[2] + (parts[1] + parts[0])).counts == (parts[0] + parts[1] + parts[2]).counts

    def test_survive_being_stored(self, shape: str, count: int) -> None:
        truth = samples(shape, count)
        self.check(stored(histogram(truth[::2]), histogram(truth[1::2])), truth)


def test_no_bucket_is_wider_than_ten_percent_around_its_middle() -> None:
    assert LIMITS[0] == 0.001
    assert all(high <= low * 1.1 / 0.9 for low, high in itertools.pairwise(LIMITS))


def test_each_limit_belongs_to_the_bucket_below_it() -> None:
    for number, limit in enumerate(LIMITS):
        on, above = histogram([limit]), histogram([limit * 1.000001])
        assert (on.counts[number], above.counts[number + 1]) == (1, 1)
        assert (on.count(limit), above.count(limit)) == (1, 0)


def test_they_can_be_added() -> None:
    added = Histogram.of([3, 4000]) + Histogram.of([7])
    assert (added.total, added.seconds, added.least, added.most) == (3, 4.01, 0.003, 4.0)
    assert added.counts == Histogram.of([3, 7, 4000]).counts
    assert NO_TIMES + added == added + NO_TIMES == added


def test_a_negative_duration_is_zero() -> None:
    assert Histogram.of([-5, 10]) == Histogram.of([0, 10])


def test_the_text_is_short_and_bounded() -> None:
    assert Histogram.of([750.0] * 10).text() == "!7500<750000>750000@38,10"
    assert NO_TIMES.text() == ""
    most = Histogram((10**6,) * BUCKETS, 1e9, 0.0, 9e8)
    assert len(most.text()) < 1400
    assert stored(most) == most


@pytest.mark.parametrize(
    "text",
    [
        *("!1<1>1", "!1<1>1@158,1", "!1<1>1@999,1", "!<1>1@1,1", "!1<1>1@,1", "!1<1>1@150" + ",1" * 9),
        *("?1<1>1@1,1", "\xff", "e5f7g3", "!" * 1000, "!" + "9" * 19 + "<1>1@1,1"),
    ],
)
def test_other_bytes_are_ignored(text: str) -> None:
    thirty = Histogram.of([30])
    assert read_histograms([text.encode("latin-1"), thirty.text().encode()])[0] == thirty


def test_an_empty_one_has_no_quantile() -> None:
    assert math.isnan(NO_TIMES.quantile(0.5))


@pytest.mark.parametrize("q", [-0.1, 1.1, math.nan, True, "0.5", None])
def test_an_invalid_quantile_is_refused(q: float) -> None:
    with pytest.raises(InvalidValueError, match="from 0 to 1"):
        NO_TIMES.quantile(q)
