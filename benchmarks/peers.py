"""Delayed tasks of other libraries against Celery's native countdown, on the same Redis, in alternating rounds.

Each delays tasks one by one, then executes tasks at a steady rate. Prints progress, a table that also lists the
peers that cannot be imported or failed, and as its last line one JSON object with the figures of each.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import redis

from benchmarks import recording
from benchmarks.children import child
from benchmarks.server import private_redis

NATIVE = "Celery countdown"
PEERS = {
    NATIVE: "celery_app",
    "Celery with DurableTasks": "delayed_app",
    "RQ": "rq_app",
    "Huey": "huey_app",
    "Dramatiq": "dramatiq_app",
    "ARQ": "arq_app",
    "SAQ": "saq_app",
    "Taskiq": "taskiq_app",
    "celery_longterm_scheduler": "longterm_app",
}
RATE = 200
START = 10.0
"""Seconds in which the processes of a peer must start."""
LATE = 30.0
"""Seconds after the last due time in which runs still count."""


@dataclass(frozen=True, slots=True)
class Round:
    """The results of one round of one peer; lateness in ms."""

    per_second: float
    bytes_each: float
    ran: int
    early: int
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Site:
    """The Redis and the size of the rounds."""

    folder: Path
    url: str
    sent: int
    seconds: float


def measure(site: Site, module: ModuleType, number: int) -> Round:
    """Run one round of the peer in *module*."""
    client: Any = redis.Redis.from_url(site.url)
    client.flushall()
    far = time.time() + 3600
    module.schedule([far])
    used = client.info("memory")["used_memory"]
    started = time.perf_counter()
    module.schedule([far + number for number in range(site.sent)])
    per_second = site.sent / (time.perf_counter() - started)
    bytes_each = (client.info("memory")["used_memory"] - used) / site.sent
    client.flushall()
    tasks = int(RATE * site.seconds)
    first = time.time() + START + 1.5 * tasks / per_second
    record = site.folder / f"{module.__name__}-{number}.record"
    log = record.with_suffix(".log")
    module.schedule([first + number / RATE for number in range(tasks)])
    with contextlib.ExitStack() as processes:
        for command in module.commands():
            processes.enter_context(child(_found(command), log, {recording.VARIABLE: str(record)}))
        deadline = first + site.seconds + LATE
        while recording.count(record) < tasks and time.time() < deadline:
            time.sleep(0.1)
    late = recording.latenesses(record) if record.exists() else []
    if not late:
        said = log.read_text(errors="replace").split("\n")
        raise RuntimeError(f"no task ran; last error: {next(filter(_is_error, reversed(said)), 'none')}")
    early = sum(value < 0 for value in late)
    p50, p99 = (recording.quantile(late, part) for part in (0.5, 0.99))
    return Round(per_second, bytes_each, len(late), early, p50, p99)


def _is_error(line: str) -> bool:
    return "Error" in line or "Exception" in line


def _found(command: Sequence[str]) -> list[str]:
    # Programs of the same environment take precedence.
    folder = Path(sys.executable).parent
    program = shutil.which(command[0], path=f"{folder}{os.pathsep}{os.environ.get('PATH', '')}")
    return [program or command[0], *command[1:]]


def load() -> tuple[dict[str, ModuleType], dict[str, str]]:
    """Return the modules of the peers that can be imported, and the errors of the others."""
    modules: dict[str, ModuleType] = {}
    missing: dict[str, str] = {}
    for name, module in PEERS.items():
        try:
            modules[name] = importlib.import_module(f"benchmarks.peer_apps.{module}")
        except Exception as error:  # noqa: BLE001 - whatever a library raises at its import, the others are measured
            missing[name] = f"cannot be imported: {type(error).__name__}: {error}"
    return modules, missing


def rounds(site: Site, count: int) -> tuple[dict[str, list[Round]], dict[str, str]]:
    """Run *count* alternating rounds; return the results and the errors."""
    modules, problems = load()
    found: dict[str, list[Round]] = {name: [] for name in modules}
    for number in range(count):
        for name, module in modules.items():
            try:
                done = measure(site, module, number)
            except Exception as error:  # noqa: BLE001 - one that fails is named, the others are measured
                problems[name] = f"did not work: {type(error).__name__}: {error}"
                print(f"round {number + 1}/{count}: {name}: {problems[name]}", flush=True)
                continue
            found[name].append(done)
            late = f"{done.ran} ran, {done.early} early, p50 {done.p50:.1f} ms, p99 {done.p99:.1f} ms"
            print(f"round {number + 1}/{count}: {name}: {done.per_second:,.0f}/s, {late}", flush=True)
    return {name: several for name, several in found.items() if several}, problems


def main() -> None:
    """Run the rounds and print table and figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="alternating rounds (default 3)")
    parser.add_argument("--sent", type=int, default=3000, help="tasks to delay one by one (default 3000)")
    parser.add_argument("--seconds", type=float, default=10, help=f"of {RATE} tasks each (default 10)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, private_redis(tcp=True) as url:  # some peers cannot use a unix socket
        os.environ["BENCHMARK_BROKER"] = url
        found, problems = rounds(Site(Path(name), url, options.sent, options.seconds), options.rounds)
    native = median(done.per_second for done in found[NATIVE])
    tasks = int(RATE * options.seconds)
    print(f"\n{'':28}{'delayed/s':>10}{'ratio':>7}{'bytes':>8}{'ran':>12}{'early':>7}{'p50 ms':>11}{'p99 ms':>11}")
    figures: dict[str, dict[str, float]] = {}
    for peer, several in found.items():
        middle = {name: median(getattr(done, name) for done in several) for name in Round.__slots__}
        ratio = middle["per_second"] / native
        figures[peer] = {"ratio": round(ratio, 2), **{name: round(value, 1) for name, value in middle.items()}}
        ran = f"{middle['ran']:,.0f}/{tasks:,}"
        print(
            f"{peer:28}{middle['per_second']:10,.0f}{ratio:7.2f}{middle['bytes_each']:8,.0f}{ran:>12}"
            f"{middle['early']:7,.0f}{middle['p50']:11,.1f}{middle['p99']:11,.1f}"
        )
    for peer, problem in problems.items():
        print(f"{peer:28}{problem}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
