"""The table of metrics."""

from __future__ import annotations

from typing import Final

from prometheus_client import Metric

from docs.generated.tables import code, table
from redis_queue.operate.metric_table import METRICS


def page() -> str:
    """Return the table of metrics."""
    rows = [
        (code(_name(family)), family.type, ", ".join(group.labels), family.documentation)
        for group in METRICS.values()
        for family in group.families()
    ]
    return table(("metric", "type", "labels", "meaning"), rows)


def _name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


MAKERS: Final = {"metrics": page}
