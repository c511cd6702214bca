"""A day of a moderate app in minutes: immediate tasks, delays, retries, failures, flows, unique tasks, schedules.

Two workers (prefork and threads) report as often, and in as many minutes of their history, as in a day. Then all
connections are cut, many times. Prints the sizes of their processes and of Redis after each tenth of the day, and of
the cuts, and how much they grow: the slope of the second half, for a whole day or all cuts. In the first half caches,
kept runs, the lists of idle connections and the memory of the allocator fill. Exit code 1 if something grew by more
than its bound. The last line is one JSON object.

All processes collect their garbage before each sample, and in one of ten tasks that fail: Celery and billiard leave
the copy of the traceback of each failed task in a circle of objects, which Python collects rarely, so memory would go
up and down by tens of MB.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import redis

from benchmarks.children import child
from benchmarks.server import private_redis
from benchmarks.soak.app import PREFIX, QUEUE, RUNS, SCHEDULES, SPEED, START, URL
from benchmarks.soak.sizes import BOUNDS, CUT_BOUNDS, Sizes, rows, sizes, slope
from redis_queue.basics.histogram import Histogram
from redis_queue.monitor.history import MAX_HOURS, MAX_MINUTES
from redis_queue.monitor.model import Series, Tally
from redis_queue.monitor.report import Reports

DAY: Final = 86400
TENTHS: Final = 10
WARM: Final = 5
"""Tenths that the slopes leave out."""

POOLS: Final = {"prefork": "2", "threads": "4"}
TASKS: Final = ("quick", "again", "failing", "limited", "unique")
WITHIN: Final = 120.0


class Soak:
    """The processes of a run; *folder* gets their logs and the file of the runs."""

    def __init__(self, url: str, minutes: float, folder: Path) -> None:
        self.client: Any = redis.Redis.from_url(url)
        self.speed = DAY / (60 * minutes)
        self._folder = folder
        self._runs = folder / "runs"
        self._runs.touch()
        self._environment = {
            "PYTHONFAULTHANDLER": "1",
            URL: url,
            RUNS: str(self._runs),
            START: str(time.time()),
            SPEED: str(self.speed),
        }
        self._workers: list[int] = []
        self._sender: Any = None

    def fill_history(self) -> None:
        """Write ninety days of history, so that a further day replaces the oldest."""
        start, clock, dice = round(1000 * float(self._environment[START])), [0], random.Random(1)
        reports = Reports(self.client, PREFIX, lambda: clock[0])
        minutes = [*range(-60 * MAX_HOURS, -MAX_MINUTES, 60), *range(-MAX_MINUTES, 0)]
        for minute in minutes:
            clock[0] = start + 60_000 * minute
            times = [Histogram.of(dice.lognormvariate(1, 1) for _ in range(60)) for _ in range(3)]
            reports.write(tallies={Series(f"soak.{name}", QUEUE): Tally(60, 1, 1, 0, *times) for name in TASKS})

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the workers, and the sender, which waits for numbers of calls."""
        with contextlib.ExitStack() as stack:
            for pool, size in POOLS.items():
                command = ["-m", "celery", "-A", "benchmarks.soak.app", "worker", "--pool", pool, "--concurrency", size]
                command += ["--hostname", f"{pool}@soak", "--loglevel", "ERROR"]
                self._workers.append(self._start(stack, pool, command).pid)
            self._sender = self._start(stack, "sender", ["-m", "benchmarks.soak.sender", str(self._folder)])
            try:
                yield
            except RuntimeError as error:
                logs = [(self._folder / name).read_text()[-5000:] for name in (*POOLS, "sender")]
                raise RuntimeError("\n".join([str(error), *logs])) from error

    def _start(self, stack: contextlib.ExitStack, name: str, command: list[str]) -> Any:
        return stack.enter_context(child([sys.executable, *command], self._folder / name, self._environment))

    def load(self, tasks: int, rate: float) -> None:
        """Let the sender make *tasks* calls, at most *rate* in a second, and wait until as many have run."""
        before, order, done = self._executed(), self._folder / "order", self._folder / "done"
        done.unlink(missing_ok=True)
        order.with_suffix(".new").write_text(json.dumps([tasks, rate]))
        order.with_suffix(".new").replace(order)
        moved, seen = time.monotonic(), before
        # Schedules run as well, so that the end of the sender is the end.
        while not done.exists() or self._executed() < before + tasks:
            if self._executed() > seen:
                moved, seen = time.monotonic(), self._executed()
            if time.monotonic() > moved + WITHIN or self._sender.poll() is not None:
                raise RuntimeError(f"nothing ran for {WITHIN:g} s")
            time.sleep(0.02)

    def cut(self) -> None:
        """Cut all connections but our own."""
        for kind in ("normal", "pubsub"):
            self.client.client_kill_filter(_type=kind, skipme=True)

    def sizes(self) -> Sizes:
        """Return the sizes now."""
        return sizes(self._workers, self._sender.pid, self.client, self._folder)

    def _executed(self) -> int:
        return self._runs.stat().st_size


def main() -> int:
    """Run the day and the cuts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="that the day takes, or more (default 10)")
    parser.add_argument("--rate", type=int, default=5, help="calls per second of the day (default 5)")
    parser.add_argument("--reconnects", type=int, default=100, help="cuts of all connections (default 100)")
    options = parser.parse_args()
    if not options.minutes > 0 or options.rate < 1 or options.reconnects < TENTHS:
        parser.error(f"--minutes must be > 0, --rate >= 1 and --reconnects >= {TENTHS}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started, calls = time.monotonic(), options.rate * DAY

    def tell(line: str) -> None:
        sys.stderr.write(f"{time.monotonic() - started:6.0f} s  {line}\n")

    with tempfile.TemporaryDirectory() as name, private_redis(tcp=True) as url:
        soak = Soak(url, options.minutes, Path(name))
        soak.fill_history()
        tell("filled the history")
        with soak.running():
            soak.load(100, options.rate * soak.speed)
            day, cuts = [], []
            for tenth in range(TENTHS):
                soak.load(calls // TENTHS, options.rate * soak.speed)
                day.append(soak.sizes())
                tell(f"tenth {tenth + 1} of the day: {day[-1]}")
            seconds = time.monotonic() - started
            for number in range(options.reconnects):
                soak.cut()
                soak.load(20, 1000)
                if (number + 1) % (options.reconnects // TENTHS) == 0:
                    cuts.append(soak.sizes())
                    tell(f"{number + 1} cuts: {cuts[-1]}")
    growth = {
        part: {name: slope([sample[name] for sample in found[WARM:]]) * TENTHS / (TENTHS - WARM) for name in BOUNDS}
        for part, found in (("day", day), ("cuts", cuts))
    }
    print(f"A day in {seconds:.0f} s: {calls:,} calls and {SCHEDULES} schedules; after each tenth, and in a day:\n")
    print("\n".join(rows(day, growth["day"], BOUNDS)))
    print(f"\n{options.reconnects} cuts of all connections: after each tenth, and in as many cuts:\n")
    print("\n".join(rows(cuts, growth["cuts"], CUT_BOUNDS)))
    bounds = {"day": BOUNDS, "cuts": CUT_BOUNDS}
    broken = [
        f"{part}: {name}" for part in bounds for name, bound in bounds[part].items() if growth[part][name] > bound
    ]
    print(f"\nabove the bound: {', '.join(broken) or 'nothing'}")
    print(
        json.dumps({part: {name: round(value, 2) for name, value in found.items()} for part, found in growth.items()})
    )
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
