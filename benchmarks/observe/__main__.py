"""What the reports of a worker cost: CPU against the same worker without them, commands, and bytes in Redis.

Tasks are empty, have a 200-byte argument and are acknowledged late. CPU is that of all processes of a worker. Prints
progress, and as its last line one JSON object. A ratio compares the cheapest rounds of both, since whatever else runs
on the machine only adds to the CPU seconds of a round; the medians of the pairs stand beside.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from statistics import median

from benchmarks.modes import FETCH, UNOBSERVED
from benchmarks.observe.reports import per_second
from benchmarks.observe.week import simulate
from benchmarks.server import private_redis
from benchmarks.worker.throughput import measure
from benchmarks.worker.workers import PREFORK, SOLO

TASKS = {SOLO: 30_000, PREFORK: 12_000}
SECONDS = 30.0


def main() -> None:
    """Run the parts and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="alternating rounds (default 10)")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"argument --rounds: {options.rounds}: must be >= 1")
    started = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  load {os.getloadavg()[0]:4.1f}  {line}", flush=True)

    figures: dict[str, float] = {}
    with private_redis(tcp=True) as url:
        for pool, tasks in TASKS.items():
            costs: dict[str, list[float]] = {FETCH: [], UNOBSERVED: []}
            for number in range(options.rounds):
                for mode in (FETCH, UNOBSERVED) if number % 2 else (UNOBSERVED, FETCH):
                    costs[mode].append(measure(url, mode, pool, tasks, seconds=SECONDS).cpu)
                tell(f"{pool}: {costs[FETCH][-1]:.1f} us each, without reports {costs[UNOBSERVED][-1]:.1f} us")
            pairs = zip(costs[FETCH], costs[UNOBSERVED], strict=True)
            figures[f"cpu_ratio_{pool}"] = min(costs[FETCH]) / min(costs[UNOBSERVED])
            figures[f"cpu_ratio_{pool}_median"] = median(observed / without for observed, without in pairs)
        for busy in (False, True):
            figures[f"commands_per_worker_second_{'busy' if busy else 'idle'}"] = per_second(url, busy=busy)
        week = simulate(url, tell)
        figures |= {"bytes_after_week": week.bytes, "bytes_bound": week.bound}
    print(json.dumps({key: round(value, 4) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
