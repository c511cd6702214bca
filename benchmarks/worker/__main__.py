"""A Celery worker with leases, and with atomic fetch, against a stock worker, on the same private Redis, in turn.

Tasks are empty, have a 200-byte argument and are acknowledged late. CPU is that of all processes of a worker: main
process, pool and keeper. Prints progress, a table, and as its last line one JSON object with the figures: ratios are
those of atomic fetch to stock, medians of the rounds. `--only` leaves the figures of other parts out.
"""

from __future__ import annotations

import argparse
import json
import os
import time

from benchmarks.modes import MODES
from benchmarks.server import private_redis
from benchmarks.worker.parts import PARTS
from benchmarks.worker.site import SMALL, Row, Scale, Site


def main() -> None:
    """Run the parts and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds (default 3)")
    parser.add_argument("--small", action="store_true", help="fewer tasks, and 50 idle workers instead of 200")
    parser.add_argument("--only", choices=PARTS, help="run one part alone")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"argument --rounds: {options.rounds}: must be >= 1")
    started = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  load {os.getloadavg()[0]:4.1f}  {line}", flush=True)

    figures: dict[str, float] = {}
    rows: list[Row] = []
    with private_redis(tcp=True) as url:
        site = Site(url, options.rounds, SMALL if options.small else Scale(), tell)
        for name in [options.only] if options.only else PARTS:
            found, lines = PARTS[name](site)
            figures.update(found)
            rows += lines
    print(f"\n{'':44}" + "".join(f"{mode:>10}" for mode in MODES))
    for row in rows:
        print(row.line())
    print(json.dumps({key: round(value, 3) for key, value in figures.items()}))


if __name__ == "__main__":
    main()
