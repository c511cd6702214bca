"""The doctor's checks of tasks: those that always fail or run too long, and messages and flows that nothing starts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import redis
from kombu.exceptions import OperationalError

from redis_queue.admission.backlog import Backlog
from redis_queue.admission.declarations import Declaration, Declarations
from redis_queue.admission.flows import OF_QUEUE
from redis_queue.admission.rules import FlowState
from redis_queue.basics.options import nearest, some_of
from redis_queue.basics.times import span_text
from redis_queue.celery.admission.admission import AdmissionKeys, places_without_message
from redis_queue.celery.brokers.redis import is_same_database
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.keys import InFlightKeys
from redis_queue.celery.queues.open import connected, on_redis
from redis_queue.celery.settings import CelerySettings
from redis_queue.celery.store import Store
from redis_queue.doctor import Finding
from redis_queue.doctor.finding import CHECK_BROKER, first, warning
from redis_queue.doctor.keyspace import foreign_keys
from redis_queue.errors import StoreError
from redis_queue.monitor.model import Tally, WorkerRow
from redis_queue.monitor.report import OTHER
from redis_queue.operate.access import Access
from redis_queue.operate.flows import KINDS, LimitsRow
from redis_queue.operate.items import MAX_READ, RunningRow, running
from redis_queue.operate.queue_row import BROKEN, CeleryQueueRow
from redis_queue.store.redis_errors import redact
from redis_queue.store.scripts import Scripts

MINUTES: Final = 60
"""Minutes of history in which failures count."""

MIN_ENDS: Final = 20
"""Minimum runs of a task, besides those that were retried, for a finding about failures."""

FAILING: Final = 0.9
"""Minimum share of failures."""

MIN_SECONDS: Final = 60.0
"""Minimum run time for a finding about a running task."""

FACTOR: Final = 500
"""Minimum multiple of the median of its run time in the last day."""

ANSWER_WITHIN: Final = 1.0
"""Seconds to wait for answers of workers."""

SIMILAR: Final = 0.7
"""Minimum similarity of a consumed queue that the advice names."""

MAX_APPS: Final = 5
"""Maximum number of apps that a finding names."""


def failing_tasks(access: Access) -> Iterator[Finding]:
    """No task fails nearly always."""
    tallies: dict[str, Tally] = {}
    for series, tally in access.monitor.history.totals(MINUTES).items():
        if series != OTHER:
            tallies[series.task] = tallies.get(series.task, Tally()) + tally
    # A retry is no end: a task that fails after three of them has failed once.
    ends = {task: (tally.failed, tally.executed - tally.retried) for task, tally in tallies.items()}
    failing = [
        (failed, count, task)
        for task, (failed, count) in ends.items()
        if count >= MIN_ENDS and failed >= FAILING * count
    ]

    def finding(row: tuple[int, int, str]) -> Finding:
        failed, count, task = row
        found = f"{task} failed {failed:,} of {count:,} times in the last hour"
        return warning(found, f"see why: redis-queue failures list --task {task}")

    return first(sorted(failing, reverse=True), finding, "tasks fail nearly always", "redis-queue history")


def slow_tasks(access: Access) -> Iterator[Finding]:
    """No running task takes far longer than usual."""
    slow: dict[str, list[RunningRow]] = {}
    for row in running(access, limit=MAX_READ):
        if row.seconds >= MIN_SECONDS and row.is_slow and row.p50 is not None and row.seconds >= FACTOR * row.p50:
            slow.setdefault(row.task.task, []).append(row)

    def finding(rows: list[RunningRow]) -> Finding:
        row, others, task = rows[0], len(rows) - 1, rows[0].task
        more = f"; {others:,} more runs of it take far too long" if others else ""
        return warning(
            f"{task.task} has run for {span_text(row.seconds)} on {task.worker} (task {task.id}), and half of its runs "
            f"take at most {span_text(row.p50)}{more}",
            f"find out what it waits for, and give it a time limit; to end it: redis-queue -A APP terminate {task.id}",
        )

    return first(list(slow.values()), finding, "tasks run for far longer than usual", "redis-queue running")


def unconsumed_queues(access: Access) -> Iterator[Finding]:
    """Every Celery queue with messages is consumed."""
    if access.celery_queues is None:
        return
    overview = access.celery_queues.overview()
    if overview.error:
        yield warning(f"could not be checked: {overview.error}", CHECK_BROKER)
        return
    # The check of workers of flows reports the messages that wait for a place.
    unread = [row for row in overview.rows if row.is_unconsumed and row.listed]
    if not unread:
        return
    # Workers without the extension do not report what they consume.
    consumed = _consumed(access.app) | {row.name for row in overview.rows if row.consumers}
    unread = [row for row in unread if row.name not in consumed]

    def finding(row: CeleryQueueRow) -> Finding:
        waits = "1 message waits" if row.listed == 1 else f"{row.listed:,} messages wait"
        near = nearest(row.name, consumed, similarity=SIMILAR)
        hint = f"; workers consume {near[0]}, which has a similar name" if near else ""
        return warning(
            f"Celery queue {row.name}: {waits}, and no worker consumes it{hint}",
            f"start a worker with -Q {row.name}, or move them: redis-queue -A APP celery-queue {row.name} move "
            f"--all --to {near[0] if near else 'QUEUE'}",
        )

    yield from first(unread, finding, "Celery queues are not consumed", "redis-queue queues")


def _consumed(app: Any) -> set[str]:
    # Errors of the broker, of any type, are not checked here.
    with contextlib.suppress(Exception):
        answers = app.control.inspect(timeout=ANSWER_WITHIN).active_queues() or {}
        return {str(queue.get("name")) for queues in answers.values() for queue in queues}
    return set()


def flow_limits(access: Access) -> Iterator[Finding]:
    """All apps declare the same limits for a flow."""
    catalog = access.catalog
    found = Declarations(Scripts(catalog.client), access.flows.redis_keys, catalog.clock).read()
    different = {name: apps for name, apps in found.items() if len({(app.limits, app.kind) for app in apps}) > 1}

    def finding(name: str) -> Finding:
        texts = some_of([f"{_text(app)} in {app.app}" for app in different[name]], MAX_APPS, " apps")
        return warning(
            f"flow {name} has {texts}: the worker that started last sets them for all",
            f"give all apps the same limits, or set them for all: redis-queue flow set {name}",
        )

    return first(sorted(different), finding, "flows have different limits in several apps", "redis-queue flow list")


def flow_workers(access: Access) -> Iterator[Finding]:
    """A worker with redis_queue consumes every queue in which tasks wait for a place."""
    backlog = Backlog(Scripts(access.catalog.client), access.flows.redis_keys).all()
    waiting = {flow.removeprefix(OF_QUEUE): count for flow, count in backlog.items() if flow.startswith(OF_QUEUE)}
    if not waiting:
        return
    workers = _leased(access)
    if workers is None:
        found = "could not be checked: the reports of workers cannot be read"
        yield warning(found, "find out which other program writes to their keys")
        return
    consumed = {queue for row in workers for queue in row.queues}

    def finding(queue: str) -> Finding:
        return warning(
            f"Celery queue {queue}: {_waits(waiting[queue])} for a place in a flow, and no worker that reports leases "
            "consumes it: other workers do not see them",
            f"start a worker of an app with DurableTasks(app) and -Q {queue}",
        )

    others = "queues with tasks that wait for a place are not consumed"
    yield from first(sorted(waiting.keys() - consumed), finding, others, "redis-queue flow list")


def flow_stops(access: Access) -> Iterator[Finding]:
    """No flow with waiting tasks is paused, or has a limit of 0."""
    stops = [state for state in access.flows.list() if _stop(state)]
    listed = _listed(access) if any(state.paused for state in stops) else {}
    waiting = {state: state.waiting + (listed.get(state.name, 0) if state.paused else 0) for state in stops}
    stopped = [state for state in stops if waiting[state]]

    def finding(state: FlowState) -> Finding:
        return warning(f"flow {state.name} {_stop(state)}, and {_waits(waiting[state])}", _advice(state))

    others = "flows with waiting tasks are paused or have a limit of 0"
    return first(stopped, finding, others, "redis-queue flow list")


def flow_places(access: Access) -> Iterator[Finding]:
    """The places of dead workers are freed."""
    catalog = access.catalog
    if _leased(access) != [] or not Scripts(catalog.client).command("HLEN", access.flows.redis_keys.held):
        # Workers with leases free them.
        return
    try:
        taken = _places_in_vain(access)
    except OperationalError as failure:
        yield warning(f"could not be checked: {redact(str(failure))}", CHECK_BROKER)
        return
    if taken:
        yield warning(
            f"{taken:,} places in flows belong to messages that are not in flight, and no worker frees them",
            "start a worker of an app with flows: it frees them within one and a half times the visibility timeout",
        )


def flow_keys(access: Access) -> Iterator[Finding]:
    """The keys of flows have the expected types."""
    return foreign_keys(Scripts(access.catalog.client), access.flows.redis_keys.types(), "flows do not work")


def _leased(access: Access) -> list[WorkerRow] | None:
    """Return the workers with leases, which alone take tasks of flows; None if reports cannot be read."""
    with contextlib.suppress(*BROKEN):
        return [row for row in access.monitor.workers.rows() if row.keeper is not None]
    return None


def _places_in_vain(access: Access) -> int:
    flows, client = access.flows.redis_keys, access.catalog.client
    if on_redis(access.app):
        with connected(access.app) as connection:
            channel = connection.default_channel
            if _shares_store(access.app, channel):
                keys = AdmissionKeys(InFlightKeys.of(channel), flows)
                return len(places_without_message(keys, client_of(channel)))
    keys = AdmissionKeys(InFlightKeys.under(flows.taken), flows)
    return len(places_without_message(keys, client)) if isinstance(client, redis.Redis) else 0


def _shares_store(app: Any, channel: Any) -> bool:
    """Return whether the Redis of kombu's *channel*, the broker of *app*, is its store; True if that is unknown."""
    found = True
    if CelerySettings.of(app).url is not None:
        store = Store.of(app)
        with contextlib.suppress(StoreError, redis.exceptions.NoPermissionError):
            found = is_same_database(client_of(channel), store.client, store.prefix)
    return found


def _listed(access: Access) -> dict[str, int]:
    """Return how many messages wait in each queue beside those of flows, by the name of its flow."""
    if access.celery_queues is None:
        return {}
    # A pause keeps back all messages of a queue. Without the broker, the check of its queues reports the error.
    return {f"{OF_QUEUE}{row.name}": row.listed for row in access.celery_queues.overview().rows}


def _text(declaration: Declaration) -> str:
    kind = KINDS.get(declaration.kind, "")
    return " and ".join(filter(None, [f'"{LimitsRow.of(declaration.limits).text}"', kind]))


def _waits(count: int) -> str:
    return "1 task waits" if count == 1 else f"{count:,} tasks wait"


def _stop(state: FlowState) -> str:
    if state.paused:
        return "is paused"
    return "has a limit of 0" if 0 in (state.limits.limit, state.limits.limit_each) else ""


def _advice(state: FlowState) -> str:
    if state.paused:
        return f"if the reason is gone: redis-queue flow resume {state.name}"
    option = "--limit-each" if state.limits.limit != 0 and state.kind == "fair" else "--limit"
    return f"if the reason is gone: redis-queue flow set {state.name} {option} N"


CHECKS: Final[dict[str, Callable[[Access], Iterator[Finding]]]] = {
    "flow limits": flow_limits,
    "flow workers": flow_workers,
    "flow stops": flow_stops,
    "flow keys": flow_keys,
    "failing tasks": failing_tasks,
    "slow tasks": slow_tasks,
}
"""Checks of any Redis by what workers and producers write into it; the others need an app."""
