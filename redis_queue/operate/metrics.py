"""Prometheus metrics of queues, flows, workers and tasks. Needs the extra ``metrics``."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeVar

from prometheus_client import Metric

from redis_queue.admission.backlog import Backlog
from redis_queue.admission.rules import FlowState
from redis_queue.basics.logs import logger_of
from redis_queue.catalog import open_as
from redis_queue.delay.model import Dispatched
from redis_queue.delay.queue import DelayQueue
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.liveness import LISTED, WorkerState, worker_states
from redis_queue.operate.metric_table import METRICS, Samples
from redis_queue.operate.queue_row import BROKEN, SIZES, CeleryQueueRow, QueueRow
from redis_queue.store.registry import RegistryRow
from redis_queue.store.scripts import Scripts

logger = logger_of(__name__)

T = TypeVar("T")

OTHERS: Final = "(other)"
"""The queue label under which the smallest queues are added up."""

MAX_FLOWS: Final = 200
"""Maximum number of flows that are exported."""

MAX_CELERY_QUEUES: Final = 200


@dataclass(frozen=True, slots=True)
class _Scrape:
    """What one scrape read of the queues; *dispatching*: what each DelayQueue has sent, and its dispatchers."""

    at: datetime
    rows: Sequence[QueueRow]
    unreadable: int
    dispatching: Mapping[str, tuple[Dispatched, int]]
    left_out: int


class Collector:
    """Collector for a CollectorRegistry; each scrape reads the queues of *inspector* once, O(1) for each queue.

    It raises no errors: if Redis cannot be read, ``redis_queue_up`` is 0, and what else cannot be read is left out. Up
    to *most_queues* queues have a label of their own, the largest first, and keep it. The sizes of the others are added
    up under the queue "(other)", for each kind; these have no counters, which would go down as queues change places. At
    most *most_read* queues are read; ``redis_queue_left_out_queues`` counts the others. Of flows, those with most
    messages are exported. Series of tasks are limited by the history: 200 pairs of task and queue.

    *leases* returns the lease counters of Celery workers, or None, *celery_queues* the rows of Celery's queues, and
    *due* how many tasks fall due for each of them within 300 seconds,
    *incidents* what is wrong now, and *schedules* the counts of schedules, or None.
    """

    def __init__(
        self,
        inspector: Inspector,
        *,
        most_queues: int = 200,
        most_read: int = 1000,
        leases: Callable[[], Any] = lambda: None,
        celery_queues: Callable[[], Sequence[CeleryQueueRow]] = tuple,
        due: Callable[[], Mapping[str, int]] = dict,
        incidents: Callable[[], Sequence[Any]] = tuple,
        schedules: Callable[[], Any] = lambda: None,
    ) -> None:
        self._inspector = inspector
        self._most = most_queues
        self._most_read = max(most_queues, most_read)
        self._leases = leases
        self._celery_queues = celery_queues
        self._due = due
        self._incidents = incidents
        self._schedules = schedules
        self._kept: frozenset[tuple[str, str]] = frozenset()

    def describe(self) -> Iterator[Metric]:
        """Yield every metric without values, so that nothing is read when this is registered."""
        for group in METRICS.values():
            yield from group.families()

    def collect(self) -> Iterator[Metric]:
        """Read everything and yield the metrics."""
        for name, read in self._readers(_tried("queues", self._look)).items():
            samples = _tried(name, read)
            if samples is not None:
                yield from METRICS[name].families(samples)

    def _readers(self, look: _Scrape | None) -> dict[str, Callable[[], Samples | None]]:
        inspector, monitor = self._inspector, self._inspector.monitor
        states = functools.cache(lambda: worker_states(monitor.workers))
        schedules = functools.cache(self._schedules)
        readers: dict[str, Callable[[], Samples | None]] = {
            "scrape": lambda: [((), (look,))],
            "leases": lambda: _single(self._leases()),
            "workers": lambda: _single([one for one in states() if one.state != "lost"]),
            "states of workers": lambda: _by_state(states()),
            "failures": lambda: _single(monitor.failures.count()),
            "tasks": lambda: [(series, (tally,)) for series, tally in monitor.history.all_time().items()],
            "Celery's queues": self._of_celery_queues,
        }
        if look is not None:
            rows = [((row.kind, row.name), (row, look.at)) for row in look.rows]
            sent = look.dispatching.items()
            readers |= {
                "queues": lambda: rows,
                "totals": lambda: [(labels, read) for labels, read in rows if read[0].name != OTHERS],
                "dispatches": lambda: [((name,), (total,)) for name, (total, _) in sent if name != OTHERS],
                "dispatchers": lambda: [((name,), (dispatchers,)) for name, (_, dispatchers) in sent],
                "flows": lambda: flow_samples(inspector, look.at),
                # Of several with the same labels, such as dead letters of queues with one name, Prometheus takes one.
                "incidents": lambda: [
                    (labels, (True,))
                    for labels in dict.fromkeys((one.kind, one.subject, one.severity) for one in self._incidents())
                ],
                "schedules": lambda: _single(schedules()),
                "states of schedules": lambda: _by_label(schedules() and schedules().states),
                "skips of schedules": lambda: _by_label(schedules() and schedules().skipped),
                "unique tasks": lambda: _single(inspector.unique.count()),
            }
        return readers

    def _of_celery_queues(self) -> Samples:
        rows = [row for row in self._celery_queues()[:MAX_CELERY_QUEUES] if not row.error]
        # Delayed tasks that cannot be read must not hide the queues, which alerts watch.
        due = _tried("delayed tasks", self._due) if rows else None
        return [((row.name,), (row, None if due is None else due.get(row.name, 0))) for row in rows]

    def _look(self) -> _Scrape:
        known, left_out = self._inspector.catalog.first(self._most_read, self._kept)
        overview = self._inspector.overview(known)
        readable = [row for row in overview.queues if not row.error]
        kept = self._chosen(readable)
        dispatching, broken = self._dispatching(known, {row.name for row in kept if row.kind == "delay"})
        unreadable = len({(row.kind, row.name) for row in overview.queues if row.error} | broken)
        return _Scrape(overview.at, _with_others(readable, kept), unreadable, dispatching, left_out)

    def _chosen(self, rows: Sequence[QueueRow]) -> list[QueueRow]:
        """Return the rows with a label of their own: those that had one before, then the largest.

        A queue with the name "(other)" gets none.
        """
        named = [row for row in rows if row.name != OTHERS]
        named.sort(
            key=lambda row: (
                (row.kind, row.name) not in self._kept,
                -sum(getattr(row, size) for size in SIZES),
                row.kind,
                row.name,
            )
        )
        kept = named[: self._most]
        self._kept = frozenset((row.kind, row.name) for row in kept)
        return kept

    def _dispatching(
        self, known: Iterable[RegistryRow], kept: set[str]
    ) -> tuple[dict[str, tuple[Dispatched, int]], set[tuple[str, str]]]:
        """Return the dispatch counts of the DelayQueues in *kept* and of all others together, and unreadable queues."""
        found: dict[str, tuple[Dispatched, int]] = {}
        broken: set[tuple[str, str]] = set()
        for one in known:
            if one.kind != "delay":
                continue
            name = one.name if one.name in kept else OTHERS
            done, dispatchers = found.get(name, (Dispatched(), 0))
            try:
                # The counts of dispatchers are stored with the first shard.
                queue = open_as(DelayQueue, replace(one, shards=min(one.shards, 1)), self._inspector.catalog)
                log = queue.dispatch_log
                found[name] = done + log.totals(), dispatchers + len(log.dispatchers())
            except BROKEN:
                broken.add((one.kind, one.name))
        return dict(sorted(found.items())), broken


def _tried(name: str, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - a broker may raise anything; a scrape must answer
        logger.warning("cannot read metrics of %s: %s", name, error, extra={"action": "metrics_away"})
        return None


def _single(read: Any) -> Samples | None:
    """Return the sample of metrics without labels; None if there is none."""
    return None if read is None else [((), (read,))]


def _by_label(counts: Mapping[str, int] | None) -> Samples:
    return [((label,), (number,)) for label, number in (counts or {}).items()]


def _by_state(states: Iterable[WorkerState]) -> Samples:
    counts = Counter(one.state for one in states)
    return [((state,), (counts[state],)) for state in LISTED]


def flow_samples(inspector: Inspector, at: datetime, most: int = MAX_FLOWS) -> list[tuple[tuple[str], Any]]:
    """Read up to *most* flows, those with most running or waiting messages first. Raises StoreError.

    Each is its name, its state, and how many seconds its oldest message waits: 0 if none waits, None if unknown.
    """
    states = sorted(
        inspector.flows.list(), key=lambda state: (-state.running - state.waiting, not state.paused, state.name)
    )[:most]
    waits = any(state.waiting for state in states)
    oldest = Backlog(Scripts(inspector.catalog.client), inspector.flows.redis_keys).oldest() if waits else {}

    def age(state: FlowState) -> float | None:
        if not state.waiting:
            return 0.0
        sent = oldest.get(state.name)
        return None if sent is None else max(0.0, at.timestamp() - sent)

    return [((state.name,), (state, age(state))) for state in sorted(states, key=lambda state: state.name)]


def _with_others(rows: Sequence[QueueRow], kept: Sequence[QueueRow]) -> list[QueueRow]:
    chosen = {(row.kind, row.name) for row in kept}
    left = sorted((row for row in rows if (row.kind, row.name) not in chosen), key=lambda row: row.kind)
    groups = [list(group) for _, group in itertools.groupby(left, key=lambda row: row.kind)]
    return sorted([*kept, *map(_sum, groups)], key=lambda row: (row.kind, row.name))


def _sum(rows: Sequence[QueueRow]) -> QueueRow:
    counts = {name: sum(getattr(row, name) for row in rows) for name in SIZES}
    oldest = min((row.oldest_at for row in rows if row.oldest_at), default=None)
    paused = any(row.paused for row in rows)
    return replace(rows[0], name=OTHERS, oldest_at=oldest, paused=paused, **counts)
