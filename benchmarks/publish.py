"""Sending tasks: Celery alone, with DurableTasks, and potatoq, each in processes of its own that take turns.

CPU is that of the sending process for each call, in microseconds. A group has 10,000 tasks. The second Redis is behind
a proxy that answers 2 ms later. Prints progress, and as its last line one JSON object. Ratios are medians of the
ratios of all rounds: of CPU to stock and to the peer (less is better), of rates to stock (more is better).
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, Final

from celery import Celery, group

from benchmarks.server import private_redis
from benchmarks.worker.proxy import delayed, round_trip
from redis_queue import Flow
from redis_queue.celery import DurableTasks

STOCK, OURS, PEER = "stock", "ours", "potatoq"
MODES: Final = (STOCK, OURS, PEER)
DELAY: Final = 0.001
"""Seconds by which the proxy delays each direction."""

ARGUMENT: Final = "x" * 100
HOUR: Final = 3600


def _app(mode: str, url: str) -> Any:
    if mode == PEER:
        return importlib.import_module("potatoq").Potatoq("publish", broker_url=url)
    app = Celery("publish", broker=url, set_as_current=False)
    app.conf.task_ignore_result = True
    if mode == OURS:
        DurableTasks(app)
    return app


def _of_each(call: Callable[[int], Any], count: int) -> tuple[float, float]:
    """Return the CPU microseconds of one call, and calls per second."""
    for number in range(100):
        call(number)
    cpu, started = time.process_time(), time.perf_counter()
    for number in range(count):
        call(number)
    return (time.process_time() - cpu) / count * 1e6, count / (time.perf_counter() - started)


def _of_group(task: Any, group_of: Any, count: int) -> float:
    """Return the seconds in which a group of *count* tasks is sent, without making its signatures."""
    for _ in range(3):
        group_of([task.s(0, ARGUMENT)] * 2).apply_async()
    several = group_of([task.s(number, ARGUMENT) for number in range(count)])
    started = time.perf_counter()
    several.apply_async()
    return time.perf_counter() - started


def measure(mode: str, url: str, slow_url: str, count: int, size: int) -> dict[str, float]:
    """Return the figures of one process."""

    def send(number: int, text: str) -> None:
        """Do nothing."""

    app = _app(mode, url)
    task = app.task(name="send")(send)
    found: dict[str, float] = {}
    found["cpu"], found["rate"] = _of_each(lambda number: task.delay(number, ARGUMENT), count)
    found["delayed_cpu"], _ = _of_each(lambda number: task.apply_async((number, ARGUMENT), countdown=HOUR), count)
    if mode == OURS:
        limited = app.task(name="limited", flow=Flow(limit=100))(send)
        found["flow_cpu"], _ = _of_each(lambda number: limited.delay(number, ARGUMENT), count)
    if mode != PEER:
        found["group"] = _of_group(task, group, size)
        found["slow_group"] = _of_group(_app(mode, slow_url).task(name="send")(send), group, size)
    return found


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="rounds of all modes (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=5000, help="single calls of a round (default: %(default)s)")
    parser.add_argument("--group", type=int, default=10_000, help="tasks of a group (default: %(default)s)")
    parser.add_argument("--small", action="store_true", help="one round of a tenth")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        mode, url, slow_url = options.child
        print(json.dumps(measure(mode, url, slow_url, options.calls, options.group)))
        return
    if options.small:
        options.rounds, options.calls, options.group = 1, options.calls // 10, options.group // 10
    rows: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    with private_redis(tcp=True) as url, private_redis(tcp=True) as behind:
        port = int(behind.rpartition(":")[2].partition("/")[0])
        with delayed(port, DELAY) as proxy:
            print(f"round trip behind the proxy: {round_trip(proxy) * 1000:.2f} ms", flush=True)
            for number in range(options.rounds):
                for mode in MODES:
                    found = _child(mode, url, f"redis://127.0.0.1:{proxy}/0", options)
                    rows[mode].append(found)
                    shown = ", ".join(f"{name} {value:,.4g}" for name, value in found.items())
                    print(f"round {number + 1}, {mode}: {shown}", flush=True)

    def ratio(name: str, over: str = STOCK, of: str | None = None) -> float:
        pairs = zip(rows[OURS], rows[over], strict=True)
        return round(median(mine[name] / theirs[of or name] for mine, theirs in pairs), 3)

    print(
        json.dumps(
            {
                "cpu_ratio": ratio("cpu"),
                "rate_ratio": ratio("rate"),
                "group_10k_ratio": round(1 / ratio("group"), 2),
                "group_10k_rtt2ms_ratio": round(1 / ratio("slow_group"), 1),
                "peer_cpu_ratio": ratio("cpu", PEER),
                "delayed_cpu_ratio": ratio("delayed_cpu"),
                "flow_cpu_ratio": ratio("flow_cpu", of="cpu"),
            }
        )
    )


def _child(mode: str, url: str, slow_url: str, options: argparse.Namespace) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.publish", "--calls", str(options.calls), "--group", str(options.group)]
    done = subprocess.run(
        [*command, "--child", mode, url, slow_url], check=True, stdout=subprocess.PIPE, text=True, timeout=600
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
