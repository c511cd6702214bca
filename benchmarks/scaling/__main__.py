"""The cost of many waiting entries in one Redis, and a projection to more: ``python -m benchmarks.scaling``.

Fills a private Redis step by step with delayed tasks that have a 200-byte argument, and measures at each step the bytes
for each entry and the time of single operations. From this it calculates and simulates the cost of 100 million entries.
``--shares`` measures tasks on 1, 2 and 4 Redis, ``--regions`` a Redis with a long round trip. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from typing import Final

from benchmarks.scaling.measuring import Step, steps
from benchmarks.scaling.regions import figures
from benchmarks.scaling.shares import COUNTS, Figures, balance, measure, medians
from benchmarks.scaling.simulating import WEEK, simulate
from benchmarks.server import private_redis

LARGEST: Final = 100_000_000
SHARDS: Final = (1, 16, 64)
RATES: Final = (250, 500, 1_000, 5_000, 20_000, 40_000)
"""Entries a second that are dispatched."""


def measured(found: list[Step]) -> dict[str, dict[str, float]]:
    """Return each figure of the measured steps, by the number of waiting entries."""
    columns = [f"{step.entries:,}" for step in found]
    rows: dict[str, list[float]] = {"bytes per entry": [round(step.size) for step in found]}
    rows |= {f"{name}, ms": [round(step.times[name], 2) for step in found] for name in found[0].times}
    return {name: dict(zip(columns, values, strict=True)) for name, values in rows.items()}


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


def shares(tasks: int, rounds: int) -> dict[str, dict[str, float]]:
    """Print the cost of a task with several Redis, and how even the shares of keys are; return the median costs."""
    found = {count: list[Figures]() for count in COUNTS}
    for _ in range(rounds):
        for count, figures_of in found.items():
            figures_of.append(measure(count, tasks))
            print(f"{count} Redis: {figures_of[-1]}", file=sys.stderr)
    rows = [[name, *cells] for name, *cells in medians(found)]
    even = [[f"{keys:,}", f"{20 * equal:.1%}", f"{20 * skewed:.1%}"] for keys, equal, skewed in balance(20)]
    print(_table(["for each task, median of the rounds (ratio to 1 Redis, range)", *map(str, COUNTS)], rows))
    print("\nThe largest of 20 shares, compared with the mean:\n\n" + _table(["keys", "all equal", "Zipf"], even))
    return {
        name: {f"{count} Redis": round(statistics.median(one[name] for one in found[count]), 2) for count in COUNTS}
        for name in found[COUNTS[0]][0]
    }


def main() -> None:
    """Measure and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=1_000_000, help="entries of the last step (default: 1,000,000)")
    parser.add_argument("--shares", action="store_true", help="measure several Redis only")
    parser.add_argument("--regions", action="store_true", help="measure a Redis with a long round trip only")
    parser.add_argument("--tasks", type=int, default=12_000, help="tasks of a round with several Redis")
    parser.add_argument("--rounds", type=int, default=5, help="rounds with several Redis (default: 5)")
    options = parser.parse_args()
    if options.shares:
        print(json.dumps(shares(options.tasks, options.rounds)))
        return
    if options.regions:
        print(json.dumps({name: round(value) for name, value in figures()}))
        return
    with private_redis() as url:
        found = list(steps(url, options.most))
    print(f"Calculated for {LARGEST:,} entries at {found[-1].size:,.0f} bytes each:\n\n{reckoned(found[-1].size)}")
    print(f"\nSimulated for {LARGEST:,} entries that fall due within {WEEK // 86400} days:\n\n{simulated()}")
    print(json.dumps(measured(found)))


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
