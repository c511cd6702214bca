"""DurableTasks against Celery's native countdown, on the same private Redis, in alternating rounds.

Prints progress, a table with the target values, and as its last line one JSON object with the figures.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from benchmarks.delay import plot, rounds
from benchmarks.delay.site import SMALL, Scale, Site
from benchmarks.server import private_redis

PLOT = Path("build/lateness.png")
RABBITMQ = "amqp://guest:guest@127.0.0.1:5672//"


def main() -> None:
    """Run the rounds, write the plot, print the table and the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds (default 3)")
    parser.add_argument("--small", action="store_true", help="shorter, and without a million entries")
    parser.add_argument("--plot", type=Path, default=PLOT, help=f"file for the plot (default {PLOT})")
    parser.add_argument("--rabbitmq", default=RABBITMQ, metavar="URL", help=f"RabbitMQ to use (default {RABBITMQ})")
    options = parser.parse_args()
    started = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {line}", flush=True)

    with tempfile.TemporaryDirectory() as folder, private_redis() as url, private_redis() as other_url:
        site = Site(Path(folder), url, other_url, options.rabbitmq, SMALL if options.small else Scale())
        results = rounds.run(site, options.rounds, tell)
    plot.save(options.plot, results.native, results.delayed)
    figures = results.figures()
    print(f"\n{'':58}{'measured':>12}  {'wanted':14}")
    for figure in figures:
        print(figure.row())
    print(f"\nplot: {options.plot}")
    print(
        json.dumps(
            {
                figure.key: None if figure.value is None else round(figure.value, figure.digits or None)
                for figure in figures
                if figure.key
            }
        )
    )


if __name__ == "__main__":
    main()
