"""Prometheus metrics of all queues under a prefix. Needs the extra ``metrics``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter
from typing import Final, Protocol

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from redis_queue.basics.histogram import BOUNDS
from redis_queue.basics.logs import logger_of
from redis_queue.delay.lateness import Dispatches
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import RedisQueueError
from redis_queue.operate.faults import BROKEN
from redis_queue.operate.flow_metrics import Flows, flow_metrics, read_flows
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.queue_row import Count, QueueRow
from redis_queue.operate.unique_metrics import unique_metric
from redis_queue.store.registry import Known

logger = logger_of(__name__)

OTHERS: Final = "(other)"
"""The queue label under which the smallest queues are added up."""

SIZES: Final[dict[Count, str]] = {
    "ready": "Messages that can be claimed now, or entries of a DelayQueue that are due.",
    "delayed": "Messages or entries whose time has not come.",
    "in_flight": "Claimed and not acknowledged.",
    "dead": "Dead letters: deliveries used up, kept for a person.",
    "quarantined": "Records that could not be read, kept for a person.",
}

TOTALS: Final[dict[Count, str]] = {
    "put": "Messages or entries that were put.",
    "acked": "Messages or entries that were finished, without those that a dispatcher moves within one Redis.",
    "redelivered": "Messages or entries that came back to be claimed again.",
    "put_back": "Leases that ran out: what they held came back, or became a dead letter.",
}

LEASES: Final = {
    "lost": ("leases_lost", "Leases that Celery workers lost while they held the message."),
    "restored": ("leases_restored", "Messages that went back into their Celery queues after their leases had run out."),
    "dead": ("tasks_dead", "Tasks that took their workers down too often and became dead letters."),
    "dropped": ("starts_dropped", "Tasks that a worker did not start because another one has them."),
}


class LeaseTotals(Protocol):
    """Counters of leases on a Redis broker (:class:`redis_queue.celery.consume.counters.LeaseCounters`)."""

    @property
    def lost(self) -> int: ...

    @property
    def restored(self) -> int: ...

    @property
    def dead(self) -> int: ...

    @property
    def dropped(self) -> int: ...


_NOTHING: Final = Dispatches()


@dataclass(frozen=True, slots=True)
class _Dispatching:
    """Dispatch counts of one DelayQueue, or of several."""

    queue: str
    done: Dispatches = _NOTHING
    dispatchers: int = 0


@dataclass(frozen=True, slots=True)
class _Look:
    """All values of one scrape."""

    at: datetime
    rows: Sequence[QueueRow]
    unreadable: int
    dispatching: Sequence[_Dispatching]
    left_out: int


class Collector:
    """Collector for a CollectorRegistry; each scrape reads the queues of *inspector* once, O(1) for each queue.

    It raises no errors: if Redis cannot be read, ``redis_queue_up`` is 0. Up to *most_queues* queues have a label of
    their own, the largest first, and keep it. The sizes of the others are added up under the queue "(other)", for each
    kind; these have no counters, which would go down as queues change places. At most *most_read* queues are read;
    ``redis_queue_left_out_queues`` counts the others. Of flows, those with most messages are exported.

    *leases* returns the lease counters of Celery workers, or None (:func:`redis_queue.celery.consume.counters.read`).
    """

    def __init__(
        self,
        inspector: Inspector,
        *,
        most_queues: int = 200,
        most_read: int = 1000,
        leases: Callable[[], LeaseTotals | None] | None = None,
    ) -> None:
        self._inspector = inspector
        self._most = most_queues
        self._most_read = max(most_queues, most_read)
        self._leases = leases
        self._kept: frozenset[tuple[str, str]] = frozenset()

    def describe(self) -> Iterator[Metric]:
        """Yield every metric without values, so that nothing is read when this is registered."""
        yield _up(None)
        yield from _queue_metrics(None)
        yield from _dispatch_metrics(())
        yield from flow_metrics(None)
        yield unique_metric(None)
        yield from _lease_metrics(None)

    def collect(self) -> Iterator[Metric]:
        """Read the queues and yield the metrics."""
        try:
            look: _Look | None = self._look()
        except RedisQueueError as error:
            logger.warning("cannot read metrics: %s", error, extra={"action": "metrics_away"})
            look = None
        yield _up(int(look is not None))
        if look is not None:
            yield from _queue_metrics(look)
            yield from _dispatch_metrics(look.dispatching)
            flows = self._flows(look.at)
            if flows is not None:
                yield from flow_metrics(flows)
            owned = self._owned()
            if owned is not None:
                yield unique_metric(owned)
        counted = self._counted()
        if counted is not None:
            yield from _lease_metrics(counted)

    def _look(self) -> _Look:
        known, left_out = self._inspector.catalog.first(self._most_read, self._kept)
        overview = self._inspector.overview(known)
        readable = [row for row in overview.queues if not row.error]
        kept = self._chosen(readable)
        dispatching, broken = self._dispatching(known, {row.name for row in kept if row.kind == "delay"})
        unreadable = len({(row.kind, row.name) for row in overview.queues if row.error} | broken)
        return _Look(overview.at, _with_others(readable, kept), unreadable, dispatching, left_out)

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

    def _dispatching(self, known: Iterable[Known], kept: set[str]) -> tuple[list[_Dispatching], set[tuple[str, str]]]:
        """Return the dispatch counts of the DelayQueues in *kept* and of all others together, and unreadable queues."""
        found: dict[str, _Dispatching] = {}
        broken: set[tuple[str, str]] = set()
        for one in known:
            if one.kind != "delay":
                continue
            name = one.name if one.name in kept else OTHERS
            before = found.get(name, _Dispatching(name))
            try:
                # The counts of dispatchers are stored with the first shard.
                queue = self._inspector.catalog.open(replace(one, shards=min(one.shards, 1)))
                assert isinstance(queue, DelayQueue)  # noqa: S101 - the kind says so
                done, dispatchers = (
                    before.done + queue.dispatch_log.totals(),
                    before.dispatchers + len(queue.dispatch_log.dispatchers()),
                )
            except BROKEN:
                broken.add((one.kind, one.name))
                continue
            found[name] = _Dispatching(name, done, dispatchers)
        return [found[name] for name in sorted(found)], broken

    def _flows(self, at: datetime) -> Flows | None:
        try:
            return read_flows(self._inspector, at)
        except (RedisQueueError, *BROKEN) as error:
            logger.warning("cannot read metrics of flows: %s", error, extra={"action": "metrics_away"})
            return None

    def _owned(self) -> int | None:
        try:
            return self._inspector.unique.count()
        except (RedisQueueError, *BROKEN) as error:
            logger.warning("cannot count the keys of unique tasks: %s", error, extra={"action": "metrics_away"})
            return None

    def _counted(self) -> LeaseTotals | None:
        try:
            return self._leases() if self._leases is not None else None
        except Exception as error:  # noqa: BLE001 - a broker may raise anything; a scrape must answer
            logger.warning("cannot read the counters of leases: %s", error, extra={"action": "metrics_away"})
            return None


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


def _up(value: int | None) -> Metric:
    text = "1 if Redis could be read for this scrape, 0 if not; then no other metric of queues is there."
    return GaugeMetricFamily("redis_queue_up", text, value=value)


def _queue_metrics(look: _Look | None) -> Iterator[Metric]:
    unreadable = "Queues that cannot be counted; redis-queue doctor says why."
    yield GaugeMetricFamily(
        "redis_queue_unreadable_queues", unreadable, value=None if look is None else look.unreadable
    )
    left_out = "Queues that were not read because there are too many; no other metric counts them."
    yield GaugeMetricFamily("redis_queue_left_out_queues", left_out, value=None if look is None else look.left_out)
    rows = () if look is None else look.rows
    for name, text in SIZES.items():
        yield _of_rows(GaugeMetricFamily, name, text, rows, attrgetter(name))
    paused = "1 if nobody can claim because the queue is paused."
    yield _of_rows(GaugeMetricFamily, "paused", paused, rows, lambda row: int(row.paused))
    oldest = "How long the oldest ready message waits, or how overdue the first entry is; 0 if there is none."
    yield _of_rows(
        GaugeMetricFamily,
        "oldest_due_age_seconds",
        oldest,
        rows,
        lambda row: max(0.0, (look.at - row.oldest_at).total_seconds()) if look and row.oldest_at else 0,
    )
    own = [row for row in rows if row.name != OTHERS]
    for name, text in TOTALS.items():
        yield _of_rows(CounterMetricFamily, name, text, own, attrgetter(name))


def _of_rows(
    kind: type[GaugeMetricFamily | CounterMetricFamily],
    name: str,
    text: str,
    rows: Iterable[QueueRow],
    value: Callable[[QueueRow], float],
) -> Metric:
    family = kind(f"redis_queue_{name}", text, labels=("kind", "queue"))
    for row in rows:
        family.add_metric((row.kind, row.name), value(row))
    return family


def _dispatch_metrics(found: Iterable[_Dispatching]) -> Iterator[Metric]:
    sent = CounterMetricFamily("redis_queue_dispatched", "Entries sent into Celery queues.", labels=("queue",))
    failed = CounterMetricFamily(
        "redis_queue_dispatch_failed", "Entries that could not be sent: given back, or dead letters.", labels=("queue",)
    )
    late = HistogramMetricFamily(
        "redis_queue_dispatch_lateness_seconds", "How long after its due time an entry was sent.", labels=("queue",)
    )
    alive = GaugeMetricFamily(
        "redis_queue_dispatchers", "Dispatchers that were seen within the last minute.", labels=("queue",)
    )
    for one in found:
        alive.add_metric((one.queue,), one.dispatchers)
        if one.queue == OTHERS:
            continue
        lateness = one.done.lateness
        sent.add_metric((one.queue,), one.done.sent)
        failed.add_metric((one.queue,), one.done.failed)
        bounds = [*(str(bound) for bound in BOUNDS), "+Inf"]
        buckets = list(zip(bounds, map(float, itertools.accumulate(lateness.counts)), strict=True))
        late.add_metric((one.queue,), buckets, lateness.seconds)
    yield from (sent, failed, late, alive)


def _lease_metrics(counted: LeaseTotals | None) -> Iterator[Metric]:
    for attribute, (name, text) in LEASES.items():
        value = None if counted is None else getattr(counted, attribute)
        yield CounterMetricFamily(f"redis_queue_{name}", text, value=value)
