"""Prometheus metrics of workers, their tasks, and Celery's queues. Needs the extra ``metrics``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from redis_queue.basics.histogram import BOUNDS, Histogram
from redis_queue.basics.logs import logger_of
from redis_queue.monitor.model import Series, Tally, WorkerRow
from redis_queue.monitor.monitor import Monitor
from redis_queue.operate.celery_queue_row import CeleryQueueRow
from redis_queue.operate.liveness import state_of
from redis_queue.store.connection import Client

logger = logger_of(__name__)

SOON: Final = 300
"""Seconds for which due tasks are counted for each queue."""

MOST_QUEUES: Final = 200

_TASK_COUNTS: Final = {
    "executed": "Runs of a task that ended, by the reports of workers.",
    "failed": "Runs that failed.",
    "retried": "Runs that ended with a retry.",
    "revoked": "Tasks that were revoked, terminated or expired.",
}

_TASK_TIMES: Final = {
    "duration": "Run time of a task.",
    "waiting": "Time from when the message was sent until the task started.",
    "lateness": "Time from when a delayed task was due until it started.",
}

T = TypeVar("T")

QueueRows = Callable[[], Sequence[CeleryQueueRow]]
DueSoon = Callable[[], Mapping[str, int]]


class WorkerCollector:
    """Collector for a CollectorRegistry: each scrape reads the reports of workers under *prefix* once.

    *queues* returns the rows of Celery's queues, *due* how many tasks fall due for each within :data:`SOON` seconds;
    None without a Celery app. Series are limited by the history: 200 pairs of task and queue. It raises no errors: what
    cannot be read is left out.
    """

    def __init__(
        self, client: Client, prefix: str, *, queues: QueueRows | None = None, due: DueSoon | None = None
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._queues = queues
        self._due = due

    def describe(self) -> Iterator[Metric]:
        """Yield every metric without values, so that nothing is read when this is registered."""
        yield from _of_workers(None)
        yield from _of_failures(None)
        yield from _of_tasks({})
        yield from _of_queues((), {})

    def collect(self) -> Iterator[Metric]:
        """Read the reports and yield the metrics."""
        monitor = Monitor(self._client, self._prefix)
        yield from _tried(lambda: list(_of_workers(monitor.workers.rows()))) or ()
        yield from _tried(lambda: list(_of_failures(monitor.failures.count()))) or ()
        yield from _tried(lambda: list(_of_tasks(monitor.history.all_time()))) or ()
        queues, due = self._queues, self._due
        if queues is not None:
            # Delayed tasks that cannot be read must not hide the queues, which alerts watch.
            soon = {} if due is None else _tried(due)
            yield from _tried(lambda: list(_of_queues(queues()[:MOST_QUEUES], soon))) or ()


def _tried(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - a broker may raise anything; a scrape must answer
        logger.warning("cannot read metrics of workers or queues: %s", error, extra={"action": "metrics_away"})
        return None


def _of_workers(rows: Sequence[WorkerRow] | None) -> Iterator[Metric]:
    for name, text, value in (
        ("workers", "Workers that reported within the last minute.", len),
        ("running_tasks", "Tasks that workers run.", lambda rows: sum(row.busy for row in rows)),
        ("prefetched_tasks", "Tasks that workers hold and have not started.", lambda rows: _sum(rows, "prefetched")),
        ("workers_stuck", "Workers that report but work no longer.", lambda rows: sum(map(_is_stuck, rows))),
        ("keepers_dead", "Workers whose keeper does not run.", lambda rows: sum(row.keeper is False for row in rows)),
    ):
        yield GaugeMetricFamily(f"redis_queue_{name}", text, value=None if rows is None else value(rows))


def _of_failures(count: int | None) -> Iterator[Metric]:
    yield GaugeMetricFamily("redis_queue_failures_kept", "Failed tasks that are kept.", value=count)


def _is_stuck(row: WorkerRow) -> bool:
    return state_of(row, 0.0)[0] == "stuck"


def _sum(rows: Sequence[WorkerRow], name: str) -> int:
    return sum(getattr(row, name) for row in rows)


def _of_tasks(found: Mapping[Series, Tally]) -> Iterator[Metric]:
    for name, text in _TASK_COUNTS.items():
        counter = CounterMetricFamily(f"redis_queue_task_{name}", text, labels=("task", "queue"))
        for series, tally in found.items():
            counter.add_metric(series, getattr(tally, name))
        yield counter
    for name, text in _TASK_TIMES.items():
        times = HistogramMetricFamily(f"redis_queue_task_{name}_seconds", text, labels=("task", "queue"))
        for series, tally in found.items():
            histogram: Histogram = getattr(tally, name)
            if histogram.total:
                times.add_metric(series, _buckets(histogram), histogram.seconds)
        yield times


def _buckets(histogram: Histogram) -> list[Any]:
    bounds = [*(str(bound) for bound in BOUNDS), "+Inf"]
    return list(zip(bounds, map(float, itertools.accumulate(histogram.counts)), strict=True))


def _of_queues(rows: Sequence[CeleryQueueRow], due: Mapping[str, int] | None) -> Iterator[Metric]:
    for name, text, value in (
        ("ready", "Messages that wait in a Celery queue, also for a place in a flow.", lambda row: row.ready),
        ("in_flight", "Messages of a Celery queue that workers hold.", lambda row: row.in_flight),
        ("consumers", "Workers that consume a Celery queue.", lambda row: row.consumers),
        ("oldest_age_seconds", "How long the oldest message of a Celery queue waits.", lambda row: row.oldest_age),
        (
            "due_within_300s",
            "Delayed tasks for a Celery queue that fall due soon.",
            lambda row: None if due is None else due.get(row.name, 0),
        ),
    ):
        gauge = GaugeMetricFamily(f"redis_queue_celery_{name}", text, labels=("queue",))
        for row in rows:
            found = value(row)
            if not row.error and found is not None:
                gauge.add_metric((row.name,), found)
        yield gauge
