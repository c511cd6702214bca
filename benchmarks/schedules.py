"""Periodic tasks from the store, sent by one dispatcher, beside stock beat with the same entries.

The worker is a stock one. Lateness is from the due time of a run to the start of its task, without that of an immediate
task (its median). Prints progress, and as its last line one JSON object; "beat" in a name is stock beat, and null a
burst that took too long.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from statistics import median
from subprocess import Popen
from typing import Any, Final

import redis

from benchmarks import recording
from benchmarks.children import child, wait_for_file
from benchmarks.schedules_app import ENTRIES, QUEUE, READY, STORE, TASK, URL, make_app, schedules_of
from benchmarks.server import private_redis
from benchmarks.worker.workers import Worker
from redis_queue.celery import DurableTasks

LEADER: Final = "{redis_queue:delay:scheduled:0}:leader"
NOTHING: Final[Mapping[str, str]] = {}
SETTLE: Final = 3.0
LIMIT: Final = 120.0
"""Seconds that a burst may take: stock beat compares all of its entries before each run."""

FAST: Final = 0.2
"""Seconds between two runs of the schedule that fails over."""

AHEAD: Final = 20.0
"""Seconds from the start of a process until 10,000 entries fall due at once, at least."""


class Site:
    """A private Redis, and the processes that use it."""

    def __init__(self, folder: Path, url: str, entries: int) -> None:
        self.client: Any = redis.Redis.from_url(url)
        self.entries = entries
        self._folder = folder
        self._url = url
        self._numbers = count(1)

    @contextlib.contextmanager
    def celery(
        self, *arguments: str, store: bool = False, environment: Mapping[str, str] = NOTHING
    ) -> Iterator[Popen[bytes]]:
        """Run `celery` with *arguments*."""
        log = self._folder / f"{next(self._numbers)}.log"
        variables = {URL: self._url, STORE: "1" if store else "", **environment}
        command = [sys.executable, "-m", "celery", "-A", "benchmarks.schedules_app", *arguments]
        with child(command, log, variables) as process:
            yield process

    @contextlib.contextmanager
    def worker(self) -> Iterator[Path]:
        """Run a stock worker; yield the file in which it records runs."""
        number = next(self._numbers)
        ready, record = (self._folder / f"{number}.{kind}" for kind in ("ready", "record"))
        options = ("--pool", "prefork", "--concurrency", "2", "--without-mingle", "--without-gossip")
        with self.celery(
            "worker", *options, environment={READY: str(ready), recording.VARIABLE: str(record)}
        ) as process:
            wait_for_file(ready, process, self._folder / "none.log")
            yield record

    def dispatcher(self) -> contextlib.AbstractContextManager[Popen[bytes]]:
        """Run a dispatcher."""
        return self.celery("redis-queue", "dispatch", store=True)

    def beat(self, kind: str) -> contextlib.AbstractContextManager[Popen[bytes]]:
        """Run stock beat with the entries *kind*."""
        schedule = str(self._folder / f"{next(self._numbers)}.schedule")
        options = ("-S", "benchmarks.schedules_app:MeasuredScheduler", "--schedule", schedule, "--pidfile", "")
        return self.celery("beat", *options, environment={ENTRIES: kind})

    def put(self, schedules: dict[str, Any]) -> float:
        """Store *schedules*; return the seconds that each took."""
        app = make_app(self._url, store=True)
        durable = DurableTasks(app)
        started = time.perf_counter()
        for name, schedule in schedules.items():
            durable.schedules.put(name, schedule, TASK)
        elapsed = time.perf_counter() - started
        app.close()
        return elapsed / len(schedules)

    def hop(self, seconds: float) -> list[float]:
        """Return the ms from sending immediate tasks to their start, in ascending order."""
        app = make_app(self._url, store=False)
        with self.worker() as record:
            time.sleep(1)
            for _ in range(int(seconds * 10)):
                app.send_task(TASK, (time.time(),))
                time.sleep(0.1)
            recording.wait_for(record, int(seconds * 10), within=60)
            app.close()
            return recording.latenesses(record)

    def lateness(self, seconds: float, sender: contextlib.AbstractContextManager[Any]) -> list[float]:
        """Return the ms from the due times of runs that *sender* sends to their start, in ascending order."""
        with self.worker() as record, sender:
            time.sleep(seconds)
            return recording.latenesses(record)

    def idle(self, seconds: float) -> float:
        """Return the commands per second, those in scripts among them, of an idle dispatcher that leads."""
        with self.dispatcher():
            self.wait_for_leader()
            time.sleep(SETTLE)
            before, started = self.commands(), time.monotonic()
            time.sleep(seconds)
            return (self.commands() - before) / (time.monotonic() - started)

    def commands(self) -> int:
        """Return how many commands Redis has processed, without this one."""
        rows = self.client.info("commandstats")
        return sum(row["calls"] for name, row in rows.items() if name != "cmdstat_info")

    def wait_for_leader(self, *, other_than: bytes | None = None) -> bytes:
        """Return the name of the dispatcher that leads, once there is one."""
        while (found := self.client.get(LEADER)) in (None, other_than):
            time.sleep(0.01)
        return bytes(found)

    def fire(self, due: datetime, sender: contextlib.AbstractContextManager[Popen[bytes]]) -> tuple[float, float, int]:
        """Return the seconds from *due* until *sender* has sent all entries, at most LIMIT, its CPU time, and how many.

        The CPU time begins a few seconds before *due*. Other programs on the machine change it less than the first.
        """
        with sender as process:
            assert time.time() + SETTLE < due.timestamp(), "the machine is too slow to start before the due time"
            time.sleep(max(0.0, due.timestamp() - SETTLE - time.time()))
            before = Worker(process.pid, self._folder).cpu_seconds()
            while (sent := self.client.llen(QUEUE)) < self.entries and time.time() < due.timestamp() + LIMIT:
                time.sleep(0.02)
            taken = time.time() - due.timestamp()
            return taken, Worker(process.pid, self._folder).cpu_seconds() - before, sent

    def fail_over(self) -> float:
        """Return the seconds from the kill of one of two dispatchers, which leads, to the next run."""
        with self.dispatcher() as one, self.dispatcher() as other:
            self.wait_for_leader()
            time.sleep(SETTLE)
            pid = int(self.wait_for_leader().split(b":")[-2])
            assert pid in (one.pid, other.pid)
            os.kill(pid, signal.SIGKILL)
            killed, sent = time.monotonic(), self.client.llen(QUEUE)
            while self.client.llen(QUEUE) <= sent:
                time.sleep(0.002)
            return time.monotonic() - killed


def next_minute(seconds: float) -> datetime:
    """Return the first whole minute that is at least *seconds* from now."""
    found = datetime.now(timezone.utc) + timedelta(seconds=seconds + 60)
    return found.replace(second=0, microsecond=0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a tenth of the entries, and shorter")
    options = parser.parse_args()
    entries, seconds, idle_seconds = (1000, 30.0, 10.0) if options.small else (10_000, 90.0, 30.0)
    started = time.monotonic()

    def tell(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  load {os.getloadavg()[0]:4.1f}  {line}", flush=True)

    figures: dict[str, float] = {}

    def add_lateness(name: str, late: list[float]) -> None:
        for part in (0.5, 0.99):
            key = f"{name}_p{round(part * 100)}_ms"
            figures[key] = recording.quantile(late, part) - recording.quantile(hop, 0.5)
        tell(
            f"{name}: {len(late)} runs, p50 {figures[f'{name}_p50_ms']:.1f} ms, p99 {figures[f'{name}_p99_ms']:.1f} ms"
        )

    with tempfile.TemporaryDirectory() as folder, private_redis() as url:
        site = Site(Path(folder), url, entries)
        hop = site.hop(seconds / 5)
        tell(f"an immediate task starts after p50 {recording.quantile(hop, 0.5):.1f} ms")

        figures["idle_commands"] = site.idle(idle_seconds)
        each = site.put({f"far{number}": timedelta(days=1) for number in range(entries)})
        tell(f"a schedule is stored in {each * 1000:.2f} ms")
        figures["idle_commands_extra"] = site.idle(idle_seconds) - figures["idle_commands"]
        tell(f"idle: {figures['idle_commands']:.2f} commands/s, {figures['idle_commands_extra']:+.2f} with schedules")

        site.client.flushall()
        site.put(schedules_of(f"spread {entries}"))
        add_lateness("lateness", site.lateness(seconds, site.dispatcher()))
        site.client.flushall()
        add_lateness("beat_lateness", site.lateness(seconds, site.beat(f"spread {entries}")))

        for name in ("fire_10k_s", "beat_fire_10k_s"):
            site.client.flushall()
            due = next_minute(AHEAD + entries / 500)
            kind = f"at {due.minute} {due.hour} {entries}"
            if name == "fire_10k_s":
                site.put(schedules_of(kind))
                sender = site.dispatcher()
            else:
                sender = site.beat(kind)
            taken, cpu, sent = site.fire(due, sender)
            figures[name] = taken if sent == entries else math.inf
            each = cpu / max(1, sent) * 1000
            figures[name.replace("10k_s", "cpu_ms")] = each if sent == entries else math.inf
            tell(f"{name}: {sent:,} of {entries:,} entries in {taken:.2f} s, {each:.2f} ms of CPU each")

        site.client.flushall()
        site.put({"fast": FAST})
        times = [site.fail_over() for _ in range(3)]
        figures["failover_s"] = median(times)
        tell("failover: " + ", ".join(f"{value:.2f} s" for value in times))
    print(json.dumps({name: round(value, 3) if value < math.inf else None for name, value in figures.items()}))


if __name__ == "__main__":
    main()
