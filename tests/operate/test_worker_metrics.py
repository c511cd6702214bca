"""Metrics of workers, tasks and Celery's queues."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest

from redis_queue.basics.histogram import Histogram
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure, Series, Tally, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.celery_queue_row import CeleryQueueRow
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.metrics import Collector


def text_of(collector: Collector) -> str:
    """Return a scrape."""
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


def test_workers_and_tasks_are_counted(client: redis.Redis) -> None:
    now = datetime.now(timezone.utc)
    tally = Tally(10, 2, 1, 3, Histogram.of([30] * 10))
    row = WorkerRow("one@host", now, now, busy=2, prefetched=3, keeper=False)
    Reports(client, "p").write(row, tallies={Series("shop.mail", "mail"): tally})
    Reports(client, "p").write(WorkerRow("two@host", now, now, loop_age=61.0))
    Reports(client, "p").write(WorkerRow("three@host", now, now, loop_age=59.0, keeper=True))
    Failures(client, "p").keep([Failure("id", "shop.mail", "mail", "one@host", now)], 10, 7)
    text = text_of(Collector(Inspector(client, prefix="p")))
    for line in (
        "redis_queue_workers 3.0",
        "redis_queue_workers_stuck 2.0",
        "redis_queue_failures_kept 1.0",
        "redis_queue_running_tasks 2.0",
        "redis_queue_prefetched_tasks 3.0",
        "redis_queue_keepers_dead 1.0",
        'redis_queue_task_executed_total{queue="mail",task="shop.mail"} 10.0',
        'redis_queue_task_failed_total{queue="mail",task="shop.mail"} 2.0',
        'redis_queue_task_revoked_total{queue="mail",task="shop.mail"} 3.0',
        'redis_queue_task_duration_seconds_bucket{le="0.05",queue="mail",task="shop.mail"} 10.0',
        'redis_queue_task_duration_seconds_sum{queue="mail",task="shop.mail"} 0.3',
    ):
        assert f"{line}\n" in text, text


def test_queues_are_counted(client: redis.Redis) -> None:
    rows = [
        CeleryQueueRow("mail", ready=5, in_flight=2, consumers=0, oldest_age=12.5),
        CeleryQueueRow("far", ready=None, consumers=3),
        CeleryQueueRow("broken", ready=1, error="not a list"),
    ]
    text = text_of(Collector(Inspector(client, prefix="p"), celery_queues=lambda: rows, due=lambda: {"mail": 7}))
    for line in (
        'redis_queue_celery_ready{queue="mail"} 5.0',
        'redis_queue_celery_in_flight{queue="mail"} 2.0',
        'redis_queue_celery_consumers{queue="far"} 3.0',
        'redis_queue_celery_oldest_age_seconds{queue="mail"} 12.5',
        'redis_queue_celery_due_within_300s{queue="mail"} 7.0',
    ):
        assert f"{line}\n" in text, text
    assert 'queue="broken"' not in text
    assert 'redis_queue_celery_ready{queue="far"}' not in text


def _raise() -> Any:
    raise OSError("away")


@pytest.mark.parametrize("queues", [tuple, _raise])
def test_what_cannot_be_read_is_left_out(queues: Any) -> None:
    with redis.Redis(port=1, socket_timeout=0.1) as away:
        assert "redis_queue_workers" not in text_of(Collector(Inspector(away, prefix="p"), celery_queues=queues))


def test_queues_are_counted_even_if_delayed_tasks_cannot_be_read(client: redis.Redis) -> None:
    rows = [CeleryQueueRow("mail", ready=5, consumers=0)]
    text = text_of(Collector(Inspector(client, prefix="p"), celery_queues=lambda: rows, due=_raise))
    assert 'redis_queue_celery_ready{queue="mail"} 5.0\n' in text
    assert "redis_queue_celery_due_within_300s{" not in text
