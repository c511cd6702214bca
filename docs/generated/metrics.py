"""Reference of metrics, as the collector describes them."""

from __future__ import annotations

from typing import Any, Final, cast

from docs.generated.tables import code, table
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.metrics import Collector


def page() -> str:
    """Return the table of metrics."""
    # No Redis is needed to describe them.
    families: list[Any] = list(Collector(cast(Inspector, None)).describe())
    rows = [(code(_name(each)), each.type, code(", ".join(each._labelnames)), each.documentation) for each in families]
    return table(("metric", "type", "labels", "meaning"), rows)


def _name(family: Any) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


MAKERS: Final = {"metrics": page}
