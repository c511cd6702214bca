"""What the reports of a worker cost: CPU against the same worker without them, commands, and bytes in Redis.

Tasks are empty, have a 200-byte argument and are acknowledged late. CPU is that of all processes of a worker. Prints
progress, and as its last line one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import time

from benchmarks.observe.pairs import cpu
from benchmarks.observe.reports import per_second
from benchmarks.observe.week import simulate
from benchmarks.server import private_redis
from benchmarks.worker.workers import PREFORK, SOLO

TASKS = {SOLO: 6_000, PREFORK: 2_500}
"""Tasks of one turn: about a second."""


def main() -> None:
    """Run the parts and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="turns of each worker (default 20)")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"argument --rounds: {options.rounds}: must be >= 1")
    started = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  load {os.getloadavg()[0]:4.1f}  {line}", flush=True)

    figures: dict[str, float] = {}
    for pool, tasks in TASKS.items():
        observed, without = cpu(pool, tasks, options.rounds, tell)
        figures[f"cpu_ratio_{pool}"] = observed / without
    with private_redis(tcp=True) as url:
        for busy in (False, True):
            figures[f"commands_per_worker_second_{'busy' if busy else 'idle'}"] = per_second(url, busy=busy)
        week = simulate(url, tell)
        figures |= {"bytes_after_week": week.bytes, "bytes_bound": week.bound}
    print(json.dumps({key: round(value, 4) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
