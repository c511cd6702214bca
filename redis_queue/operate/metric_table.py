"""Every metric: its kind, name, labels, help and value; one loop makes the families of Prometheus from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from redis_queue.basics.histogram import Histogram

BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 3600.0)
"""Upper bounds of the exported buckets in seconds: some of the limits of a Histogram, so their counts are exact."""

SOON: Final = 300
"""Seconds for which due tasks are counted for each of Celery's queues."""

Samples = Iterable[tuple[Sequence[str], tuple[Any, ...]]]
"""The values of the labels, and the arguments for the values of a group of metrics."""

Value = Callable[..., float | Histogram | None]


@dataclass(frozen=True, slots=True)
class Definition:
    """One metric. *value* takes what was read for its group, and returns None if there is no value."""

    family: type[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily]
    name: str
    text: str
    value: Value


class MetricGroup:
    """Metrics with the same *labels*, whose values come from the same reads."""

    def __init__(self, *metrics: Definition, labels: Sequence[str] = ()) -> None:
        self.metrics = metrics
        self.labels = labels

    def families(self, samples: Samples = ()) -> Iterator[Metric]:
        """Yield the metrics with the values of *samples*."""
        for metric in self.metrics:
            family: Any = metric.family(f"redis_queue_{metric.name}", metric.text, labels=self.labels)
            for names, read in samples:
                # Names of other programs need not be UTF-8.
                labels, value = [name.encode(errors="replace").decode() for name in names], metric.value(*read)
                if isinstance(value, Histogram):
                    counts = [(str(bound), float(value.count(bound))) for bound in BOUNDS]
                    family.add_metric(labels, [*counts, ("+Inf", float(value.total))], value.seconds)
                elif value is not None:
                    family.add_metric(labels, value)
            yield family


def _gauge(name: str, text: str, value: str | Value = "") -> Definition:
    """Return a gauge; a *value* of text is the attribute that has it, by default the one with the same name."""
    return Definition(GaugeMetricFamily, name, text, _of_first(value or name) if isinstance(value, str) else value)


def _counter(name: str, text: str, attribute: str = "", value: Value | None = None) -> Definition:
    return Definition(CounterMetricFamily, name, text, value or _of_first(attribute or name))


def _times(name: str, text: str, value: Value) -> Definition:
    return Definition(HistogramMetricFamily, f"{name}_seconds", text, value)


def _of_first(attribute: str) -> Value:
    read = attrgetter(attribute)
    return lambda first, *_: read(first)


def _if_any(attribute: str) -> Value:
    """Return the value of a histogram that has none without durations: most series of tasks have no delay."""
    read = attrgetter(attribute)
    return lambda first: read(first) if read(first).total else None


def _itself(value: int) -> int:
    return value


METRICS: Final[Mapping[str, MetricGroup]] = {
    "scrape": MetricGroup(
        _gauge(
            "up",
            "1 if this scrape could read Redis; if 0, no other metrics of queues are exported.",
            lambda look: int(look is not None),
        ),
        _gauge(
            "unreadable_queues",
            "Queues that cannot be counted: redis-queue doctor says why.",
            lambda look: look and look.unreadable,
        ),
        _gauge(
            "left_out_queues",
            "Queues beyond the first 1,000, which are not read; 0 unless a prefix has so many.",
            lambda look: look and look.left_out,
        ),
    ),
    "queues": MetricGroup(
        _gauge("ready", "Messages that can be claimed now; of a DelayQueue, entries that are due."),
        _gauge("delayed", "Messages or entries that are not due yet."),
        _gauge("in_flight", "Messages or entries that are claimed and not acknowledged."),
        _gauge("dead", "Dead letters: deliveries used up, kept for a person."),
        _gauge("quarantined", "Records that could not be read, kept for a person."),
        _gauge("paused", "1 if nobody can claim because the queue is paused."),
        _gauge(
            "oldest_due_age_seconds",
            "Age of the oldest ready message; of a DelayQueue, how overdue the first entry is; 0 if there is none.",
            lambda row, at: max(0.0, (at - row.oldest_at).total_seconds()) if row.oldest_at else 0,
        ),
        labels=("kind", "queue"),
    ),
    "totals": MetricGroup(
        _counter("put", "Messages or entries that were put."),
        _counter(
            "acked",
            "Acked messages or entries; entries that a dispatcher moves within one Redis are counted only by "
            "redis_queue_dispatched_total.",
        ),
        _counter("redelivered", "Messages or entries that can be claimed again after a nack or a put-back."),
        _counter("put_back", "Expired leases: a consumer or dispatcher died, or was slower than its lease."),
        labels=("kind", "queue"),
    ),
    "dispatches": MetricGroup(
        _counter("dispatched", "Entries sent into Celery queues.", "sent"),
        _counter("dispatch_failed", "Entries that could not be sent: given back, or dead letters.", "failed"),
        _times("dispatch_lateness", "How long after its due time an entry was sent.", attrgetter("lateness")),
        labels=("queue",),
    ),
    "dispatchers": MetricGroup(
        _gauge(
            "dispatchers",
            "Dispatchers seen within the last minute, including the periodic task in each process.",
            _itself,
        ),
        labels=("queue",),
    ),
    "flows": MetricGroup(
        _gauge("flow_running", "Messages of a flow that are in flight: they have a place.", "running"),
        _gauge("flow_waiting", "Messages of a flow that wait for a place.", "waiting"),
        _gauge(
            "flow_limit",
            "Most messages of a flow that run at once; only if it has a limit for all keys together.",
            "limits.limit",
        ),
        _gauge("flow_paused", "1 if a flow is paused.", "paused"),
        _counter(
            "flow_uncounted",
            "Messages that passed a flow uncounted, because their producers do not know it.",
            "uncounted",
        ),
        _gauge(
            "flow_oldest_age_seconds",
            "How long the oldest message of a flow waits for a place, since it was sent, or since it was due if it was "
            "delayed; 0 if none waits.",
            lambda _, age: age,
        ),
        labels=("flow",),
    ),
    "states of schedules": MetricGroup(
        _gauge(
            "schedules", "Schedules by state. All metrics of schedules are of the 1,000 that are sent next.", _itself
        ),
        labels=("state",),
    ),
    "schedules": MetricGroup(
        _counter("schedule_runs", "Runs of schedules that were sent. Deleting a schedule subtracts its runs.", "runs"),
        _counter("schedule_failed", "Runs of schedules that failed. Deleting a schedule subtracts its runs.", "failed"),
        _gauge("schedule_lateness", "By how many seconds the most overdue schedule is late; 0 if none is.", "lateness"),
    ),
    "skips of schedules": MetricGroup(
        _counter(
            "schedule_skipped",
            "Runs of schedules that were not sent, by reason: late, overlap, paused, taken (the key of a unique task).",
            value=_itself,
        ),
        labels=("reason",),
    ),
    "unique tasks": MetricGroup(_gauge("unique_keys", "Keys that unique tasks own.", _itself)),
    "leases": MetricGroup(
        _counter("leases_lost", "Leases that Celery workers lost while they held the message.", "lost"),
        _counter(
            "leases_restored", "Messages that went back into their queues after their leases had expired.", "restored"
        ),
        _counter("tasks_dead", "Tasks that became dead letters: started too often without an outcome.", "dead"),
        _counter("starts_dropped", "Tasks that a worker did not start because another worker has them.", "dropped"),
    ),
    "workers": MetricGroup(
        _gauge("workers", "Workers that reported within the last minute.", len),
        _gauge("running_tasks", "Tasks that workers run.", lambda states: sum(one.row.busy for one in states)),
        _gauge(
            "prefetched_tasks",
            "Tasks that workers hold and have not started.",
            lambda states: sum(one.row.prefetched for one in states),
        ),
        _gauge(
            "workers_stuck",
            "Workers that report but work no longer: their event loop has not turned for a minute, or their keeper "
            "does not run.",
            lambda states: sum(one.state == "stuck" for one in states),
        ),
        _gauge(
            "keepers_dead",
            "Workers whose keeper does not run: other workers will take their tasks.",
            lambda states: sum(one.row.keeper is False for one in states),
        ),
    ),
    "incidents": MetricGroup(
        _gauge(
            "incident",
            "1 for each incident: something that is wrong now; at most 21 of a kind. `redis-queue incidents` says why.",
            lambda _: 1,
        ),
        labels=("kind", "subject", "severity"),
    ),
    "states of workers": MetricGroup(
        _gauge(
            "workers_in_state",
            "Workers by state: silent ones have not reported for 5 s, lost ones for a minute. Lost ones count for an "
            "hour, or until somebody clears them.",
            _itself,
        ),
        labels=("state",),
    ),
    "failures": MetricGroup(_gauge("failures_kept", "Failed tasks that are kept.", _itself)),
    "tasks": MetricGroup(
        _counter("task_executed", "Runs that ended, whatever their outcome.", "executed"),
        _counter("task_failed", "Runs that failed.", "failed"),
        _counter("task_retried", "Runs that ended with a retry.", "retried"),
        _counter("task_revoked", "Tasks that were revoked, terminated or expired.", "revoked"),
        _times("task_duration", "Run time.", _if_any("duration")),
        _times(
            "task_waiting",
            "Time from when the message was sent until the task started; needs a producer with the extension.",
            _if_any("waiting"),
        ),
        _times("task_lateness", "Time from when a delayed task was due until it started.", _if_any("lateness")),
        labels=("task", "queue"),
    ),
    "Celery's queues": MetricGroup(
        _gauge("celery_ready", "Messages that wait in a Celery queue, also for a place in a flow.", "ready"),
        _gauge("celery_in_flight", "Messages of a Celery queue that workers hold.", "in_flight"),
        _gauge("celery_consumers", "Workers that consume a Celery queue.", "consumers"),
        _gauge(
            "celery_oldest_age_seconds",
            "How long the oldest message of a Celery queue waits; needs a producer with the extension.",
            "oldest_age",
        ),
        _gauge(
            f"celery_due_within_{SOON}s",
            "Delayed tasks for a Celery queue that fall due within five minutes.",
            lambda _, due: due,
        ),
        labels=("queue",),
    ),
}
"""Every metric, by what is read for it."""
