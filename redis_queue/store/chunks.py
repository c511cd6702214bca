"""Cut work into calls that Redis answers quickly, and check limits, offsets and rates of callers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar

from redis_queue.errors import InvalidValueError

T = TypeVar("T")
Row = TypeVar("Row", bound=tuple[Any, ...])

CHUNK: Final = 500
"""Most ids of one script call, so that none runs longer than a few milliseconds."""

MANY: Final = 1_000_000_000
"""Largest limit of a call that works in chunks."""

MAX_CALL_BYTES: Final = 1024 * 1024
"""Size above which a call that stores records is cut."""

ANY_SIZE: Final = 2**53
"""Budget of a read without a limit on the size of records."""

MIN_RATE: Final = 0.001
MAX_RATE: Final = 1e6


def chunks(items: Iterable[T], size: int = CHUNK) -> Iterator[list[T]]:
    """Yield *items* in lists of at most *size*."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, size)):
        yield chunk


def check_limit(value: int, maximum: int, *, name: str = "limit") -> int:
    """Return *value* if it is a whole number from 1 to *maximum*. Raises InvalidValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
        raise InvalidValueError(f"{name}={value!r}: must be a whole number from 1 to {maximum}")
    return value


def check_many(values: Iterable[T], *, name: str) -> Iterable[T]:
    """Return *values*. Raises InvalidValueError for a single text or mapping, which iterates over its parts."""
    if isinstance(values, str | bytes | bytearray | Mapping):
        raise InvalidValueError(f"{name}: must be a list, got {type(values).__name__}")
    return values


def by_size(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield *rows* (last field: a record) in lists of at most MAX_CALL_BYTES, or of one larger row."""
    part: list[Row] = []
    size = 0
    for row in rows:
        if part and size + len(row[-1]) > MAX_CALL_BYTES:
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row[-1])
    if part:
        yield part


def check_offset(value: int) -> int:
    """Return *value* if it is a whole number >= 0. Raises InvalidValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MANY:
        raise InvalidValueError(f"offset={value!r}: must be a whole number from 0 to {MANY}")
    return value


def check_budget(value: int | None) -> int | None:
    """Return *value* if it is None or a whole number >= 0. Raises InvalidValueError."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= ANY_SIZE:
        raise InvalidValueError(f"max_bytes={value!r}: must be a whole number >= 0, or None")
    return value


def gap_ms(rate: float | None) -> float:
    """Return the milliseconds between two items at *rate* per second; 0 for None. Raises InvalidValueError."""
    if rate is None:
        return 0.0
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidValueError(f"rate={rate!r}: must be {MIN_RATE} to {MAX_RATE:.0f} per second")
    return 1000 / rate


class Pace:
    """Spread items over time, those of several calls too: the first one *first* ms from now, then one each *gap* ms."""

    def __init__(self, gap: float, first: float = 0.0) -> None:
        self._gap, self._before = gap, first
        self._started = 0.0

    def delay(self) -> float:
        """Return the milliseconds until the next item."""
        now = time.monotonic() * 1000
        self._started = self._started or now
        return max(0.0, self._before - (now - self._started))

    def add(self, count: int) -> None:
        """Count items; the next one comes after them."""
        self._before += count * self._gap
