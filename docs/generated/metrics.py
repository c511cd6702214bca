"""Reference of metrics, as the collector describes them."""

from __future__ import annotations

from typing import Any, Final, cast

from docs.generated.tables import code, table
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.metrics import Collector
from redis_queue.operate.worker_metrics import WorkerCollector
from redis_queue.store.connection import Client


def page() -> str:
    """Return the table of metrics."""
    # No Redis is needed to describe them.
    collectors = (Collector(cast(Inspector, None)), WorkerCollector(cast(Client, None), ""))
    families: list[Any] = [family for collector in collectors for family in collector.describe()]
    rows = [(code(_name(each)), each.type, code(", ".join(each._labelnames)), each.documentation) for each in families]
    return table(("metric", "type", "labels", "meaning"), rows)


def _name(family: Any) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


MAKERS: Final = {"metrics": page}
