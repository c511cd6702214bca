"""Charts: coordinates of SVG shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

WIDTH: Final = 720
HEIGHT: Final = 140
LEVELS: Final = 8


@dataclass(frozen=True, slots=True)
class Bar:
    """Position and size of a bar."""

    x: float
    y: float
    width: float
    height: float


def bars(values: Sequence[float], most: float | None = None) -> list[Bar]:
    """Return a bar for each of *values*; *most* is the value of a full-height bar, by default the largest."""
    top = max(most or max(values, default=0), 1e-9)
    step = WIDTH / max(len(values), 1)
    heights = [min(HEIGHT, HEIGHT * value / top) for value in values]
    # Small values stay visible.
    heights = [max(height, 1.5) if value else 0 for value, height in zip(values, heights, strict=True)]
    return [
        Bar(round(step * number, 2), round(HEIGHT - height, 2), round(step * 0.85, 2), round(height, 2))
        for number, height in enumerate(heights)
    ]


def nice(most: float) -> float:
    """Return a round end for an axis up to *most*: 1, 2 or 5 times a power of ten."""
    if most <= 0:
        return 1
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 2, 5, 10) if most <= step * power * (1 + 1e-9))


def level(count: int, most: int) -> int:
    """Return 0 for nothing, else 1 to :data:`LEVELS` by the logarithm of *count* against *most*."""
    if count <= 0:
        return 0
    if most <= 1:
        return LEVELS
    return min(LEVELS, 1 + int((LEVELS - 1) * math.log(count) / math.log(most) + 1e-9))
