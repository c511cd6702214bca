"""Cut work into calls that Redis answers quickly, and check limits, offsets and rates of callers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from redis_queue.basics.times import monotonic
from redis_queue.errors import InvalidValueError

T = TypeVar("T")
Row = TypeVar("Row", bound=tuple[Any, ...])

CHUNK: Final = 500
"""Maximum number of ids of one script call, so that none runs longer than a few milliseconds."""

MANY: Final = 1_000_000_000
"""Largest limit of a call that works in chunks."""

MAX_CALL_BYTES: Final = 1024 * 1024
"""Size above which a call that stores records is cut."""

ANY_SIZE: Final = 2**53
"""Budget of a read without a limit on the size of records."""

MIN_RATE: Final = 0.001
MAX_RATE: Final = 1e6


def rows_of(reply: Iterable[Any], width: int) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a flat reply, *width* values each. Raises ValueError at an incomplete one."""
    # Each row takes the next values of one iterator.
    return zip(*[iter(reply)] * width, strict=True)


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Yield *items* in lists of at most *size*."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def check_limit(
    value: int, maximum: int, *, name: str = "limit", least: int = 1, error: type[Exception] = InvalidValueError
) -> int:
    """Return *value*. Raises *error* unless it is a whole number from *least* to *maximum*."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= maximum:
        raise error(f"{name}={value!r}: must be a whole number from {least:,} to {maximum:,}")
    return value


def check_many(values: Iterable[T], *, name: str) -> Iterable[T]:
    """Return *values*. Raises InvalidValueError for a single text or mapping, which iterates over its parts."""
    if isinstance(values, str | bytes | bytearray | Mapping):
        raise InvalidValueError(f"{name}: must be a list, got {type(values).__name__}")
    return values


def by_size(
    rows: Iterable[Row], size_of: Callable[[Row], int] = lambda row: len(row[-1]), most: int = MAX_CALL_BYTES
) -> Iterator[list[Row]]:
    """Yield *rows* in lists of at most *most* bytes, or of one larger row; the last field is a record by default."""
    part: list[Row] = []
    total = 0
    for row in rows:
        size = size_of(row)
        if part and total + size > most:
            yield part
            part, total = [], 0
        part.append(row)
        total += size
    if part:
        yield part


def check_offset(value: int) -> int:
    """Return *value* if it is a whole number >= 0. Raises InvalidValueError."""
    return check_limit(value, MANY, name="offset", least=0)


def check_budget(value: int | None) -> int:
    """Return *value*, or ANY_SIZE for None. Raises InvalidValueError unless it is a whole number >= 0."""
    return ANY_SIZE if value is None else check_limit(value, ANY_SIZE, name="max_bytes", least=0)


def gap_ms(rate: float | None) -> float:
    """Return the milliseconds between two items at *rate* per second; 0 for None. Raises InvalidValueError."""
    if rate is None:
        return 0.0
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidValueError(f"rate={rate!r}: must be {MIN_RATE} to {MAX_RATE:.0f} per second")
    return 1000 / rate


class Pace:
    """Spread items over time, those of several calls too: the first one now, then one each *gap* ms."""

    def __init__(self, gap: float) -> None:
        self.gap, self._before, self._started = gap, 0.0, 0.0

    def delay(self) -> float:
        """Return the milliseconds until the next item."""
        now = monotonic() * 1000
        self._started = self._started or now
        return max(0.0, self._before - (now - self._started))

    def add(self, count: int) -> None:
        """Count items; the next one comes after them."""
        self._before += count * self.gap
