"""The geometry of the charts."""

from __future__ import annotations

import itertools

import pytest

from redis_queue.web.charts import HEIGHT, LEVELS, WIDTH, bars, level, nice


class TestBars:
    def test_have_the_height_of_their_values(self) -> None:
        assert [bar.height for bar in bars([0, 5, 10], 10)] == [0, HEIGHT / 2, HEIGHT]
        assert all(bar.y + bar.height == HEIGHT for bar in bars([0, 5, 10], 10))

    def test_fill_the_width_side_by_side(self) -> None:
        found = bars(list(range(60)))
        assert all(a.x + a.width <= b.x for a, b in itertools.pairwise(found))
        assert found[-1].x + found[-1].width <= WIDTH < found[-1].x + found[-1].width + WIDTH / 60

    def test_small_values_are_visible(self) -> None:
        assert bars([1, 1_000_000])[0].height > 1

    def test_values_above_the_maximum_are_cut(self) -> None:
        assert bars([30], 10)[0].height == HEIGHT

    def test_no_values(self) -> None:
        assert bars([]) == []
        assert [bar.height for bar in bars([0, 0])] == [0, 0]


@pytest.mark.parametrize(
    ("most", "end"), [(0, 1), (-1, 1), (0.3, 0.5), (1, 1), (1.1, 2), (20, 20), (51, 100), (1e9, 1e9), (7e-5, 1e-4)]
)
def test_an_axis_ends_at_a_round_number(most: float, end: float) -> None:
    assert nice(most) == pytest.approx(end)


class TestLevel:
    def test_goes_up_with_the_count(self) -> None:
        levels = [level(count, 1000) for count in (0, 1, 2, 10, 100, 999, 1000)]
        assert levels == sorted(levels)
        assert (levels[0], levels[1], levels[-1]) == (0, 1, LEVELS)

    def test_of_a_single_one(self) -> None:
        assert (level(1, 1), level(0, 0)) == (LEVELS, 0)
