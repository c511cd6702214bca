"""The measures of flow control, on one Redis with one or two workers."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis

from benchmarks.children import child, wait_for_file
from benchmarks.flow import app as names
from benchmarks.flow.app import EVENTS, FAIR, KEYED, LIMITED, NOTHING, PLAIN, RATE, RATED, TELL, make_app
from benchmarks.worker.workers import POOLS, Worker
from redis_queue.admission.rules import burst_of

WITHIN: Final = 120.0
POLL: Final = 0.005
ARGUMENT: Final = "x" * 200
TOP_LEVEL: Final = ("evalsha", "eval", "mget", "client|tracking")
"""Commands of workers that no script calls; the other ones of an idle worker come with ``client|tracking``."""


@dataclass(frozen=True, slots=True)
class Run:
    """One backlog of empty tasks: tasks per second, CPU microseconds and commands per task."""

    rate: float
    cpu: float
    commands: float


class Site:
    """A Redis at *url*, and an app that sends."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = redis.Redis.from_url(url)
        self.app, self.delayed = make_app(url)

    @contextlib.contextmanager
    def workers(self, pool: str, count: int = 1) -> Iterator[list[Worker]]:
        """Start *count* workers for all queues."""
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            started = []
            for number in range(count):
                log, ready = folder / f"log{number}", folder / f"ready{number}"
                command = [sys.executable, "-m", "celery", "-A", "benchmarks.flow.app", "worker", *POOLS[pool]]
                command += ["--queues", ",".join((PLAIN, LIMITED, KEYED, RATED, FAIR)), "--loglevel", "WARNING"]
                command += ["--hostname", f"w{number}@localhost", "--without-mingle", "--without-gossip"]
                variables = {names.BROKER: self.url, names.READY: str(ready)}
                process = stack.enter_context(child(command, log, variables))
                wait_for_file(ready, process, log)
                started.append(Worker(process.pid, ready))
            yield started

    def backlog(self, worker: Worker, queue: str, tasks: int) -> Run:
        """Let *worker* run *tasks* empty tasks of 50 keys that wait in *queue*."""
        flow = f"queue:{queue}"
        self.delayed.flow.pause(flow)
        for number in range(tasks):
            self.app.send_task(NOTHING, kwargs={"key": f"k{number % 50}", "argument": ARGUMENT}, queue=queue)
        cpu, commands, began = worker.cpu_seconds(), self._commands(), time.monotonic()
        self.delayed.flow.resume(flow)
        self._wait_until_idle(queue)
        seconds = time.monotonic() - began
        used, sent = worker.cpu_seconds() - cpu, self._commands() - commands
        return Run(tasks / seconds, used / tasks * 1e6, sent / tasks)

    def events(self, queue: str, calls: Sequence[tuple[str, float]]) -> list[tuple[str, str, float]]:
        """Send *calls* (key, seconds) to *queue*, all at once; return what they told, in seconds."""
        self.client.delete(EVENTS)
        flow = f"queue:{queue}"
        self.delayed.flow.pause(flow)
        for key, seconds in calls:
            self.app.send_task(TELL, kwargs={"key": key, "seconds": seconds}, queue=queue)
        self.delayed.flow.resume(flow)
        deadline = time.monotonic() + WITHIN
        while int(self.client.llen(EVENTS)) < 2 * len(calls):
            _check(deadline)
        rows: Any = self.client.lrange(EVENTS, 0, -1)
        parts = [row.decode().split() for row in rows]
        return [(kind, key, int(at) / 1e6) for kind, key, at in parts]

    def close(self) -> None:
        """Close the connections."""
        self.client.close()
        self.app.close()

    def _wait_until_idle(self, queue: str) -> None:
        deadline = time.monotonic() + WITHIN
        while self.client.exists(queue, "unacked") or self.client.hexists(
            "{redis_queue:flow}:backlog", f"queue:{queue}"
        ):
            _check(deadline)

    def _commands(self) -> int:
        stats: Any = self.client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in TOP_LEVEL)


def next_start_ms(site: Site, tasks: int) -> float:
    """Return the median ms between the end of a task and the start of the next one of its key; four keys."""
    left: dict[str, float] = {}
    gaps = []
    for kind, key, at in site.events(KEYED, [(f"k{number % 4}", 0.005) for number in range(tasks)]):
        if kind == "leave":
            left[key] = at
        elif key in left:
            gaps.append(at - left[key])
    return 1000 * sorted(gaps)[len(gaps) // 2]


def rate_error_percent(site: Site, tasks: int) -> float:
    """Return by how many percent the starts per second, after those of the first burst, miss the rate."""
    starts = [at for kind, _, at in site.events(RATED, [("k", 0.0)] * tasks) if kind == "enter"]
    starts = starts[burst_of(f"{RATE}/s") or 0 :]
    rate = (len(starts) - 1) / (starts[-1] - starts[0])
    return abs(100 * (rate / RATE - 1))


def fair_worst_ratio(site: Site, tasks: int) -> float:
    """Return when the slowest of ten small tenants was done, beside a large one with *tasks*; 1 is in perfect turns."""
    small = 10
    calls = [("large", 0.0)] * tasks + [(f"t{number % small}", 0.0) for number in range(small * small)]
    order = [key for kind, key, _ in site.events(FAIR, calls) if kind == "enter"]
    last = max(place for place, key in enumerate(order, 1) if key != "large")
    return last / (small * (small + 1))


def _check(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise RuntimeError(f"the tasks did not end within {WITHIN:g} s")
    time.sleep(POLL)
