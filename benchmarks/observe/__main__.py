"""What the reports of a worker cost: CPU against the same worker without them, commands, and bytes in Redis.

Tasks are empty, have a 200-byte argument and are acknowledged late. CPU is that of all processes of a worker. Prints
progress, and as its last line one JSON object: ratios are medians of the rounds.
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
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds (default 5)")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"argument --rounds: {options.rounds}: must be >= 1")
    started = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  load {os.getloadavg()[0]:4.1f}  {line}", flush=True)

    figures: dict[str, float] = {}
    with private_redis(tcp=True) as url:
        for pool, tasks in TASKS.items():
            ratios = []
            for number in range(options.rounds):
                modes = (FETCH, UNOBSERVED) if number % 2 else (UNOBSERVED, FETCH)
                found = {mode: measure(url, mode, pool, tasks, seconds=SECONDS) for mode in modes}
                ratios.append(found[FETCH].cpu / found[UNOBSERVED].cpu)
                tell(f"{pool}: {found[FETCH].cpu:.1f} us each, without reports {found[UNOBSERVED].cpu:.1f} us")
            figures[f"cpu_ratio_{pool}"] = median(ratios)
        for busy in (False, True):
            figures[f"commands_per_worker_second_{'busy' if busy else 'idle'}"] = per_second(url, busy=busy)
        week = simulate(url, tell)
        figures |= {"bytes_after_week": week.bytes, "bytes_bound": week.bound}
    print(json.dumps({key: round(value, 4) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
