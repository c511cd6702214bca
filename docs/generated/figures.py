"""The tables of docs/figures.md, and the run that measures them (`make figures`).

The run starts the benchmarks one after the other and keeps the last line of each, one JSON object, in figures.json.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from docs.generated.tables import table

FILE: Final = Path(__file__).with_suffix(".json")


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A command with its short settings, and the text of each of its figures."""

    command: str
    texts: dict[str, str]


MODES: Final = {"stock": "stock", "leases": "leases without atomic fetch", "fetch": "leases"}

BENCHMARKS: Final[dict[str, Benchmark]] = {
    "publish": Benchmark(
        "make bench-publish",
        {
            "cpu_ratio": "CPU time of a call of `delay()`: ratio to stock",
            "rate_ratio": "calls of `delay()` per second: ratio to stock",
            "group_10k_ratio": "a group of 10,000: ratio of the rates",
            "group_10k_rtt2ms_ratio": "a group of 10,000, Redis 2 ms away: ratio of the rates",
            "peer_cpu_ratio": "CPU time of a call: ratio to potatoq",
            "delayed_cpu_ratio": "`apply_async(countdown=…)`: CPU of the sender, ratio to stock",
            "flow_cpu_ratio": "`delay()` of a task with a limit: CPU of the sender, ratio to stock without one",
        },
    ),
    "worker": Benchmark(
        "make bench-worker ARGS=--small",
        {
            "solo_rate_ratio": "solo: tasks per second, ratio to stock",
            "solo_cpu_ratio": "solo: CPU time per task, ratio to stock",
            "commands_per_task": "solo: Redis commands per task",
            "rtt2ms_rate_ratio": "solo, Redis 2 ms away: tasks per second, ratio to stock",
            "prefork_rate_ratio": "prefork with two children: tasks per second, ratio to stock",
            "prefork_cpu_ratio": "prefork: CPU time per task, ratio to stock",
            "rtt2ms_prefork_rate_ratio": "prefork, Redis 2 ms away: tasks per second, ratio to stock",
            "wakeups_per_message_200_idle": "50 idle workers: workers woken by a message",
            "latency_p50_over_stock_ms": "one idle worker: publish to start, p50, ms more than stock",
        },
    ),
    "delay": Benchmark(
        "make bench-delay ARGS=--small",
        {
            "schedule_ratio": "`apply_async(countdown=3600)`, one by one: rate, ratio to stock",
            "bulk_ratio": "`send_many`: rate, ratio to stock, one by one",
            "lateness_p50_ms": "lateness at 200/s, p50, ms, the worse of 0 and 100,000 other tasks waiting",
            "lateness_p99_ms": "the same, p99, ms",
            "native_p50_ms": "lateness of stock, p50, ms",
            "native_p99_ms": "the same, p99, ms",
            "lateness_p50_1m_ms": "lateness with 1,000,000 other tasks waiting, p50, ms (without `--small`)",
            "move_20k_s": "20,000 due tasks are moved into queues of the same Redis, s",
            "dispatch_redis_per_s": "due tasks sent to another Redis, per second",
            "dispatch_rabbitmq_per_s": "due tasks sent to RabbitMQ with confirms, per second",
            "dispatch_rabbitmq_ratio": "the same: ratio to py-amqp alone",
            "burst_ratio": "4,000 due at once, until all are executed, no leases: rate, ratio to as many undelayed",
            "burst_atomic_fetch_ratio": "the same with leases",
            "worker_rss_growth_100k_mb": "memory of a worker: growth for 100,000 waiting tasks, MB",
            "idle_commands_per_s_1m": "round trips of an idle worker, more than stock, per second, 1,000,000 waiting",
            "bytes_per_entry": "Redis bytes for each waiting task, 200-byte argument",
            "bytes_per_undelayed": "Redis bytes for each task in Celery's list",
        },
    ),
    "peers": Benchmark(
        "make bench-peers ARGS='--seconds 5 --rounds 1'",
        {
            "ratio": "ratio to stock",
            "per_second": "delayed per second",
            "bytes_each": "bytes each",
            "ran": "ran, of 1,000",
            "early": "too early",
            "p50": "lateness p50, ms",
            "p99": "p99, ms",
        },
    ),
    "queue": Benchmark(
        "make bench-queue ARGS='--rounds 3'",
        {
            "ratio_batch_1": "`for message in queue.consume()`: ratio to kombu's `SimpleQueue`",
            "ratio_batch_1_two_calls": "`get` and `ack`",
            "ratio_batch_100": "`get_many(100)` and `ack_many`",
        },
    ),
    "leases": Benchmark(
        "make bench-leases",
        {"lost_per_100_kills": "messages lost in 100 kills", "doubled_per_100_kills": "delivered twice", **MODES},
    ),
    "kills": Benchmark(
        ".venv-bench/bin/python -m benchmarks.kills celery redis_queue dramatiq --tasks 2000 --chance 0.003",
        {
            "sent": "sent",
            "kills": "kills",
            "executed": "executed",
            "lost": "lost",
            "stuck": "stuck",
            "doubled": "doubled",
            "early": "early",
            "again_p50_s": "redelivered after, s, median",
            "again_max_s": "most",
            "crashed": "crashed",
        },
    ),
    "flow": Benchmark(
        "make bench-flow ARGS=--small",
        {
            "limited_rate_ratio": "tasks of a flow with a limit: rate, ratio to others",
            "extra_commands_per_task": "the same: more commands for each task",
            "next_start_p50_ms": "limit 1: from the end of a task to the start of the next of its key, p50, ms",
            "rate_error_percent": "a rate is missed by, %",
            "fair_worst_ratio": "the slowest small tenant is done after, ratio to perfect turns",
        },
    ),
    "scaling": Benchmark("make bench-scaling", {}),
    "shares": Benchmark("make bench-scaling ARGS='--shares --tasks 16000 --rounds 3'", {}),
    "regions": Benchmark("make bench-scaling ARGS=--regions", {}),
    "schedules": Benchmark(
        "make bench-schedules ARGS=--small",
        {
            "lateness_p50_ms": "lateness of runs at different times, p50, ms",
            "lateness_p99_ms": "the same, p99, ms",
            "beat_lateness_p50_ms": "stock beat, p50, ms",
            "beat_lateness_p99_ms": "stock beat, p99, ms",
            "fire_10k_s": "1,000 due in one second, until all are in their queue, s",
            "beat_fire_10k_s": "stock beat, s",
            "fire_cpu_ms": "CPU time of the dispatcher for each of them, ms",
            "beat_fire_cpu_ms": "stock beat, ms",
            "idle_commands": "commands of the leading dispatcher per second, nothing due",
            "idle_commands_extra": "the same: more for 1,000 schedules",
            "failover_s": "the leader is killed, until another one sends, s",
        },
    ),
}


def _page(name: str) -> str:
    benchmark, found = BENCHMARKS[name], json.loads(FILE.read_text("utf-8")).get(name)
    measured = _table(found, benchmark.texts) if found else "Not measured yet.\n"
    return f"```sh\n{benchmark.command}\n```\n\n{measured}"


def _table(found: dict[str, Any], texts: dict[str, str]) -> str:
    nested = [key for key, value in found.items() if isinstance(value, dict)]
    if not nested:
        return table(("", "measured"), [(texts.get(key, key), _number(value)) for key, value in found.items()])
    columns = list(found[nested[0]])
    rows = [(texts.get(key, key), *(_number(found[key][column]) for column in columns)) for key in nested]
    return table(("", *(texts.get(column, column) for column in columns)), rows)


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:,}"


def _site() -> str:
    found = json.loads(FILE.read_text("utf-8"))["site"]
    return ", ".join(f"{name} {value}" for name, value in found.items()) + ".\n"


MAKERS: Final[dict[str, Callable[[], str]]] = {
    "figures-site": _site,
    **{f"figures-{name}": partial(_page, name) for name in BENCHMARKS},
}


def measure(names: list[str]) -> int:
    """Run the benchmarks with these names, or all, and keep their figures; return the number of failed ones."""
    # Variables of `make figures` would be those of each benchmark, too.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "ARGS"))}
    failed = 0
    for name in names or BENCHMARKS:
        command = shlex.split(BENCHMARKS[name].command)
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
        if done.returncode:
            failed += 1
            sys.stdout.write(f"{name}: exit code {done.returncode}, its figures stay as they were\n")
            continue
        last = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{"))
        sys.stdout.write(f"{name}: {last}\n")
        sys.stdout.flush()
        _keep(name, json.loads(last))
    return failed


def _keep(name: str, figures: dict[str, Any]) -> None:
    server = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True).stdout
    site = {
        "redis_queue": version("celery-redis-queue"),
        "Python": platform.python_version(),
        **{package: version(package) for package in ("celery", "kombu", "redis")},
        "Redis": server.partition("v=")[2].split()[0],
        "cores": os.cpu_count(),
    }
    found = json.loads(FILE.read_text("utf-8"))
    FILE.write_text(json.dumps({**found, name: figures, "site": site}, indent=1) + "\n", "utf-8")
