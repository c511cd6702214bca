"""The parts of a run: each measures the modes in turn, and returns its figures and its rows of the table."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Final
from urllib.parse import urlsplit

from benchmarks import recording
from benchmarks.modes import FETCH, MODES, STOCK
from benchmarks.server import HOST
from benchmarks.worker import commands, latency, throughput, wakeups
from benchmarks.worker.proxy import delayed, round_trip
from benchmarks.worker.site import Row, Site
from benchmarks.worker.throughput import Throughput
from benchmarks.worker.workers import PREFORK, SOLO

ONE_WAY: Final = 0.001
IDLE_MODES: Final = (STOCK, FETCH)
"""Modes whose workers wait for messages in different ways; with leases alone they wait like stock workers."""

Figures = dict[str, float]
Rounds = dict[str, list[Throughput]]
Result = tuple[Figures, list[Row]]


def solo(site: Site) -> Result:
    """Measure a worker with the solo pool, and the commands that it sends."""
    found = _near(site, SOLO, site.scale.solo)
    sent = {mode: commands.per_task(site.url, mode, site.scale.counted) for mode in MODES}
    figures = {
        "solo_cpu_ratio": _cpu_ratio(found),
        "solo_rate_ratio": _rate_ratio(found),
        "commands_per_task": sent[FETCH],
    }
    return figures, [*_rows(SOLO, found), Row("solo: Redis commands per task", list(sent.values()), 2)]


def prefork(site: Site) -> Result:
    """Measure a worker with the prefork pool."""
    found = _near(site, PREFORK, site.scale.prefork)
    figures = {"prefork_cpu_ratio": _cpu_ratio(found), "prefork_rate_ratio": _rate_ratio(found)}
    return figures, _rows(PREFORK, found)


def rtt(site: Site) -> Result:
    """Measure both pools with a Redis that is 2 ms away."""
    scale = site.scale
    with delayed(urlsplit(site.url).port or 0, ONE_WAY) as port:
        broker = f"redis://{HOST}:{port}/0"
        site.tell(f"through the delaying proxy, PING takes {1000 * round_trip(port):.2f} ms")

        def far(pool: str, tasks: int) -> Rounds:
            return _rounds(
                site,
                f"2 ms, {pool}",
                lambda mode: throughput.measure(site.url, mode, pool, tasks, seconds=scale.far_seconds, broker=broker),
            )

        with_solo, with_prefork = far(SOLO, scale.solo), far(PREFORK, scale.prefork)
    figures = {"rtt2ms_rate_ratio": _rate_ratio(with_solo), "rtt2ms_prefork_rate_ratio": _rate_ratio(with_prefork)}
    return figures, [*_rows("2 ms, solo", with_solo), *_rows("2 ms, prefork", with_prefork)]


def wake(site: Site) -> Result:
    """Count the idle workers that one message wakes."""
    found: dict[str, wakeups.Wakeups] = {}
    workers = site.scale.idle_workers
    for mode in IDLE_MODES:
        found[mode] = wakeups.measure(site.url, mode, workers, site.scale.messages)
        site.tell(
            f"{workers} idle workers: {mode}: one message wakes {found[mode].woken:.2f} "
            f"(timers woke {found[mode].idle:.2f} in {wakeups.WINDOW:g} s, subtracted)"
        )
    latencies = {mode: one.latencies for mode, one in found.items()}
    rows = [
        Row(f"{workers} idle: workers woken by a message", _cells({mode: one.woken for mode, one in found.items()}), 2),
        *_latency_rows(f"{workers} idle", latencies),
    ]
    return {"wakeups_per_message_200_idle": found[FETCH].woken}, rows


def delay(site: Site) -> Result:
    """Measure the time from publish to start on one idle worker."""
    found = latency.latencies(site.url, IDLE_MODES, site.scale.single)
    site.tell("one idle worker: " + ", ".join(f"{mode} p50 {median(found[mode]):.2f} ms" for mode in found))
    figures = {"latency_p50_over_stock_ms": median(found[FETCH]) - median(found[STOCK])}
    return figures, _latency_rows("1 idle", found)


PARTS: Final[dict[str, Callable[[Site], Result]]] = {
    "solo": solo,
    "prefork": prefork,
    "rtt": rtt,
    "wakeups": wake,
    "latency": delay,
}


def _near(site: Site, pool: str, tasks: int) -> Rounds:
    seconds = site.scale.seconds
    return _rounds(site, pool, lambda mode: throughput.measure(site.url, mode, pool, tasks, seconds=seconds))


def _rounds(site: Site, text: str, measure: Callable[[str], Throughput]) -> Rounds:
    found: Rounds = {mode: [] for mode in MODES}
    for number in range(site.rounds):
        for mode in MODES:
            found[mode].append(measure(mode))
            one = found[mode][-1]
            line = f"{one.rate:,.0f} tasks/s, CPU {one.cpu:,.0f} us per task"
            site.tell(f"round {number + 1}/{site.rounds}: {text}: {mode}: {line}")
    return found


def _cpu_ratio(found: Rounds) -> float:
    return median(now.cpu / then.cpu for now, then in zip(found[FETCH], found[STOCK], strict=True))


def _rate_ratio(found: Rounds) -> float:
    return median(now.rate / then.rate for now, then in zip(found[FETCH], found[STOCK], strict=True))


def _rows(text: str, found: Rounds) -> list[Row]:
    return [
        Row(f"{text}: tasks/s", [median(one.rate for one in found[mode]) for mode in MODES]),
        Row(f"{text}: CPU per task, us", [median(one.cpu for one in found[mode]) for mode in MODES]),
    ]


def _latency_rows(text: str, found: dict[str, list[float]]) -> list[Row]:
    p50, p99 = ({mode: recording.quantile(ms, part) for mode, ms in found.items()} for part in (0.5, 0.99))
    return [
        Row(f"{text}: publish to start, p50, ms", _cells(p50), 2),
        Row(f"{text}: publish to start, p99, ms", _cells(p99), 2),
    ]


def _cells(found: dict[str, float]) -> list[float | None]:
    return [found.get(mode) for mode in MODES]
