"""Prometheus metrics of flows. Needs the extra ``metrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from redis_queue.flow.backlog import Backlog
from redis_queue.flow.model import FlowState
from redis_queue.operate.inspector import Inspector
from redis_queue.store.scripts import Scripts

UNGATED: Final = "Messages that passed a flow uncounted, because their producers do not know it."

MOST_FLOWS: Final = 200
"""Most flows that are exported."""


@dataclass(frozen=True, slots=True)
class Flows:
    """The exported flows: *states*, by name, and when the oldest waiting message of each was sent."""

    at: datetime
    states: Sequence[FlowState] = ()
    oldest: Mapping[str, float] | None = None

    def age(self, state: FlowState) -> float | None:
        """Return how many seconds the oldest message waits: 0 if none waits, None if unknown."""
        if not state.waiting:
            return 0.0
        sent = (self.oldest or {}).get(state.name)
        return None if sent is None else max(0.0, self.at.timestamp() - sent)


def read_flows(inspector: Inspector, at: datetime, most: int = MOST_FLOWS) -> Flows:
    """Read up to *most* flows: those first of which most messages run or wait. Raises StoreError."""
    states = sorted(
        inspector.flows.list(), key=lambda state: (-state.running - state.waiting, not state.paused, state.name)
    )[:most]
    waits = any(state.waiting for state in states)
    oldest = Backlog(Scripts(inspector.catalog.client), inspector.flows.redis_keys).oldest() if waits else None
    return Flows(at, sorted(states, key=lambda state: state.name), oldest)


def flow_metrics(found: Flows | None) -> Iterator[Metric]:
    """Yield the metrics of flows; without values for None."""
    values: Sequence[tuple[str, str, Callable[[FlowState], float | None]]] = (
        ("running", "Messages of a flow that are in flight: they have a place.", lambda state: state.running),
        ("waiting", "Messages of a flow that wait for a place.", lambda state: state.waiting),
        (
            "limit",
            "Most messages of a flow that run at once; only if it has a limit.",
            lambda state: state.limits.limit,
        ),
        ("paused", "1 if a flow is paused.", lambda state: int(state.paused)),
        (
            "oldest_age_seconds",
            "How long the oldest message of a flow waits for a place; 0 if none waits.",
            lambda state: found.age(state) if found else None,
        ),
    )
    for name, text, value in values:
        gauge = GaugeMetricFamily(f"redis_queue_flow_{name}", text, labels=("flow",))
        for state in found.states if found else ():
            number = value(state)
            if number is not None:
                gauge.add_metric((state.name,), number)
        yield gauge
    counter = CounterMetricFamily("redis_queue_flow_ungated", UNGATED, labels=("flow",))
    for state in found.states if found else ():
        counter.add_metric((state.name,), state.ungated)
    yield counter
