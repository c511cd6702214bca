"""Prometheus metric of unique tasks. Needs the extra ``metrics``."""

from __future__ import annotations

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily


def unique_metric(count: int | None) -> Metric:
    """Return the metric of owned keys; without a value for None."""
    return GaugeMetricFamily("redis_queue_unique_keys", "Keys that unique tasks own.", value=count)
