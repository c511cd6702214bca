"""Tasks of flows against others, on the same private Redis and worker, in turn; and how exact limits and rates are.

Tasks are empty and have a 200-byte argument; the limits of the compared flow are never reached, so the ratio is what
counting costs. Prints progress, and as its last line one JSON object: `limited_rate_ratio`, `extra_commands_per_task`
are those of the prefork pool, medians of the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from statistics import median

from benchmarks.flow.app import LIMITED, PLAIN
from benchmarks.flow.measures import Run, Site, fair_worst_ratio, next_start_ms, rate_error_percent
from benchmarks.server import private_redis
from benchmarks.worker.workers import PREFORK, SOLO


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds (default 5)")
    parser.add_argument("--small", action="store_true", help="fewer tasks")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"argument --rounds: {options.rounds}: must be >= 1")
    started = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  load {os.getloadavg()[0]:4.1f}  {line}", flush=True)

    tasks = 1000 if options.small else 4000
    found: dict[str, dict[str, list[Run]]] = {}
    with private_redis(tcp=True) as url:
        site = Site(url)
        for pool in (SOLO, PREFORK):
            with site.workers(pool) as (worker,):
                for queue in (PLAIN, LIMITED):
                    site.backlog(worker, queue, tasks // 4)
                runs = found[pool] = {PLAIN: [], LIMITED: []}
                for number in range(options.rounds):
                    for queue in (PLAIN, LIMITED) if number % 2 else (LIMITED, PLAIN):
                        run = site.backlog(worker, queue, tasks)
                        runs[queue].append(run)
                        tell(
                            f"{pool:8} {queue:6} {run.rate:7,.0f} tasks/s {run.cpu:6.0f} us CPU "
                            f"{run.commands:6.3f} commands for each task"
                        )
        with site.workers(PREFORK, 2):
            next_ms = next_start_ms(site, tasks // 10)
            tell(f"the next task of a key starts after {next_ms:.2f} ms")
            error = rate_error_percent(site, tasks // 8)
            tell(f"the rate is missed by {error:.2f} %")
            worst = fair_worst_ratio(site, tasks)
            tell(f"the slowest small tenant was done after {worst:.2f} of the tasks of perfect turns")
        site.close()
    for pool, runs in found.items():
        cpu = median(limited.cpu / plain.cpu for limited, plain in zip(runs[LIMITED], runs[PLAIN], strict=True))
        tell(f"{pool}: rate {_ratio(runs):.3f}, CPU {cpu:.3f}, {_extra(runs):.3f} more commands for each task")
    figures = {
        "limited_rate_ratio": _ratio(found[PREFORK]),
        "extra_commands_per_task": _extra(found[PREFORK]),
        "next_start_p50_ms": next_ms,
        "rate_error_percent": error,
        "fair_worst_ratio": worst,
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def _ratio(runs: dict[str, list[Run]]) -> float:
    return median(limited.rate / plain.rate for limited, plain in zip(runs[LIMITED], runs[PLAIN], strict=True))


def _extra(runs: dict[str, list[Run]]) -> float:
    return median(limited.commands - plain.commands for limited, plain in zip(runs[LIMITED], runs[PLAIN], strict=True))


if __name__ == "__main__":
    main()
