"""The cost of many waiting entries in one Redis, and a projection to more: ``python -m benchmarks.scaling``.

Fills a private Redis step by step with delayed tasks that have a 200-byte argument, and measures at each step the bytes
for each entry and the time of single operations; measures a Redis with a long round trip. From this it calculates and
simulates the cost of 100 million entries. docs/scaling.md shows a run. ``--shares`` measures tasks on 1, 2 and 4 Redis.
"""

from __future__ import annotations

import argparse
import sys
from typing import Final

from benchmarks.scaling.measuring import Step, steps
from benchmarks.scaling.regions import ROUND_TRIP, figures
from benchmarks.scaling.shares import COUNTS, Figures, balance, measure, medians
from benchmarks.scaling.simulating import WEEK, simulate
from benchmarks.server import private_redis

LARGEST: Final = 100_000_000
SHARDS: Final = (1, 16, 64)
RATES: Final = (250, 500, 1_000, 10_000, 24_000, 59_000)
"""Entries a second that are dispatched; the last three were measured for one dispatcher into each kind of broker."""


def table(found: list[Step]) -> str:
    """Return the measured steps as a table with one column each."""
    rows = [["bytes per entry", *(f"{step.size:,.0f}" for step in found)]]
    rows += [[f"{name}, ms", *(f"{step.times[name]:.2f}" for step in found)] for name in found[0].times]
    return _table(["waiting", *(f"{step.entries:,}" for step in found)], rows)


def reckoned(size: float) -> str:
    """Return the memory of *LARGEST* entries, by the number of shards."""
    total = size * LARGEST / 2**30
    rows = [[str(shards), f"{LARGEST // shards:,}", f"{total / shards:,.1f}"] for shards in SHARDS]
    return _table(["nodes", "entries per node", "GiB per node"], rows)


def simulated() -> str:
    """Return the lateness of *LARGEST* entries due within a week, by the dispatch rate per second."""
    rows = []
    for rate in RATES:
        week = simulate(LARGEST, rate)
        rows.append(
            [f"{rate:,}", f"{week.busy:.1%}", f"{week.median:,.1f}", f"{week.most_of_99:,.1f}", f"{week.longest:,.1f}"]
        )
    return _table(["dispatched per second, at most", "busy", "lateness, s: median", "99 %", "most"], rows)


def regions() -> str:
    """Return the figures of a Redis in another region."""
    return _table(["", f"{ROUND_TRIP * 1000:.0f} ms away"], [[name, f"{value:,.0f}"] for name, value in figures()])


def shares(tasks: int, rounds: int) -> str:
    """Return the cost of a task with several Redis, in alternating rounds; and how even the shares of keys are."""
    found = {count: list[Figures]() for count in COUNTS}
    for _ in range(rounds):
        for count, figures_of in found.items():
            figures_of.append(measure(count, tasks))
            print(f"{count} Redis: {figures_of[-1]}", file=sys.stderr)
    rows = [[name, *cells] for name, *cells in medians(found)]
    even = [[f"{keys:,}", f"{20 * equal:.1%}", f"{20 * skewed:.1%}"] for keys, equal, skewed in balance(20)]
    return (
        _table(["for each task, median of the rounds (ratio to 1 Redis, range)", *map(str, COUNTS)], rows)
        + "\n\nThe largest of 20 shares, compared with the mean:\n\n"
        + _table(["keys", "all equal", "Zipf"], even)
    )


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=1_000_000, help="entries of the last step (default: 1,000,000)")
    parser.add_argument("--shares", action="store_true", help="measure several Redis only")
    parser.add_argument("--tasks", type=int, default=12_000, help="tasks of a round with several Redis")
    parser.add_argument("--rounds", type=int, default=5, help="rounds with several Redis (default: 5)")
    options = parser.parse_args()
    if options.shares:
        print(shares(options.tasks, options.rounds))
        return
    most = options.most
    with private_redis() as url:
        found = list(steps(url, most))
    print(table(found))
    print(f"\nCalculated for {LARGEST:,} entries at {found[-1].size:,.0f} bytes each:\n\n{reckoned(found[-1].size)}")
    print(f"\nSimulated for {LARGEST:,} entries that fall due within {WEEK // 86400} days:\n\n{simulated()}")
    print(f"\nMeasured with the store in another region:\n\n{regions()}")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
