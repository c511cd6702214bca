"""A simulation of many entries that become due over a week, second by second, and of their dispatchers.

Lateness is the waiting time in a fluid queue: due entries join a backlog, which dispatchers process at the measured
rate of one dispatcher, limited by the measured rate of the store. Entries are dispatched in the order of their due
times.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

WEEK: Final = 7 * 86400
HOUR: Final = 3600
BY_DAY: Final = 0.8
"""Amplitude of the daily cycle: noon is busier than the mean by this share, midnight quieter."""

ON_THE_HOUR: Final = 0.2
"""Share of entries whose due time is a full hour, as people often choose."""


@dataclass(frozen=True)
class Week:
    """The result of a simulated week: seconds of lateness, and the load of the dispatchers."""

    median: float
    most_of_99: float
    longest: float
    busy: float


def due_in_each_second(entries: int) -> Iterator[float]:
    """Yield the number of *entries* due in each second of a week: busy days, quiet nights, and peaks at full hours."""
    each = entries / WEEK
    for second in range(WEEK):
        daily = 1 - BY_DAY * math.cos(2 * math.pi * second / 86400)
        spread = each * daily * (1 - ON_THE_HOUR)
        yield spread + (each * daily * ON_THE_HOUR * HOUR if second % HOUR == 0 else 0)


def simulate(entries: int, rate: float) -> Week:
    """Simulate *entries* due within a week with a dispatch rate of *rate* per second."""
    waiting: deque[list[float]] = deque()
    late: dict[int, float] = {}
    sent = 0.0
    for second, due in enumerate(due_in_each_second(entries)):
        waiting.append([second, due])
        left = rate
        while waiting and left > 0:
            since, amount = waiting[0]
            now = min(amount, left)
            # The rate is constant within a second, so its middle represents the whole second.
            passed = second - since + (rate - left + now / 2) / rate
            late[round(passed * 10)] = late.get(round(passed * 10), 0) + now
            left -= now
            sent += now
            waiting[0][1] -= now
            if waiting[0][1] <= 0:
                waiting.popleft()
    median, most_of_99, longest = _quantiles(late, sent, (0.5, 0.99, 1.0))
    return Week(median, most_of_99, longest, busy=sent / rate / WEEK)


def _quantiles(late: dict[int, float], total: float, parts: tuple[float, ...]) -> list[float]:
    found, seen, asked = [], 0.0, list(parts)
    for tenths in sorted(late):
        seen += late[tenths]
        while asked and seen >= asked[0] * total * (1 - 1e-9):
            found.append(tenths / 10)
            asked.pop(0)
    return found
