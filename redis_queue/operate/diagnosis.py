"""Diagnosis: the doctor's findings of a Redis and, for a Celery app, of its workers and dispatchers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis_queue.celery.leases.connections import ATTRIBUTE, disabled_settings, low_visibility_timeout
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.delay.queue import DelayQueue
from redis_queue.doctor import Finding
from redis_queue.doctor import examine as examine_redis
from redis_queue.doctor import repair as repair_redis
from redis_queue.doctor.finding import error, run, warning
from redis_queue.operate import flow_checks, in_flight_checks, work_checks
from redis_queue.operate.access import Access
from redis_queue.operate.pages import LOOK_BYTES
from redis_queue.operate.unread_queues import unread_queues
from redis_queue.store.chunks import CHUNK

ANSWER_WITHIN: Final = 1.0
"""Seconds to wait for answers of workers."""

CHECKS: Final = flow_checks.CHECKS | work_checks.CHECKS
"""Checks of any Redis by what workers and producers write into it."""

NAMED: Final = 5
"""Most names in a finding."""


def examine(access: Access, *, ask: bool) -> list[Finding]:
    """Return the findings of all checks. With *ask* the workers of the app are asked, which writes to its broker.

    Raises StoreUnavailableError if Redis cannot be reached.
    """
    found = examine_redis(access.catalog.client, access.catalog.prefix)
    found += (finding for name, check in CHECKS.items() for finding in run(name, check, [access]))
    workers = _workers(access.app) if ask and access.app is not None else {}
    in_flight = in_flight_checks.InFlight(access, workers)
    found += (f for name, check in in_flight_checks.CHECKS.items() for f in run(name, check, [in_flight]))
    if access.app is None:
        return found
    state = AppState(access.delay_queue(), workers, _known(access.app, workers))
    checks = {"dispatchers": _dispatchers, "tasks": _unknown_tasks}
    of_queue = (finding for name, check in checks.items() for finding in run(name, check, [state]))
    of_app = run("lease settings", _lease_settings, [access.app])
    # Without an answer of the workers, nobody knows what those without the extension consume.
    unread = run("queue_unread", unread_queues, [access]) if ask else ()
    return [*found, *of_queue, *of_app, *unread, *run("flow places", flow_checks.flow_places, [access])]


def repair(access: Access, *, dry_run: bool) -> list[Finding]:
    """Make all possible repairs, as :func:`redis_queue.doctor.repair`, also of the messages in flight at the broker.

    Raises StoreUnavailableError if Redis cannot be reached, and StoreRefusedError if nothing can be read.
    """
    client, prefix = access.catalog.client, access.catalog.prefix
    return [*repair_redis(client, prefix, dry_run=dry_run), *in_flight_checks.repair(access, dry_run=dry_run)]


@dataclass(frozen=True, slots=True)
class AppState:
    """The DelayQueue of an app, the workers that answered with their tasks, and all known tasks."""

    queue: DelayQueue
    workers: Mapping[str, frozenset[str]]
    known: frozenset[str]


def _dispatchers(state: AppState) -> Iterator[Finding]:
    """Check that a dispatcher sends due entries."""
    queue = state.queue
    if queue.dispatch_log.dispatchers():
        return
    say, what = (error, "entries wait, and") if queue.count() else (warning, "no entries wait yet, but")
    names = sorted(state.workers)
    if names:
        more = f" and {len(names) - NAMED:,} more" if names[NAMED:] else ""
        found = f"{what} none of the running workers dispatches: {', '.join(names[:NAMED])}{more}"
        advice = (
            "put DelayedTasks(app) into the module that the workers load, or remove --without-dispatch or "
            "redis_queue_dispatch=False, and restart them; or run celery -A app redis-queue dispatch"
        )
    else:
        found = f"{what} no dispatcher was seen within the last minute"
        advice = "start a worker whose app has DelayedTasks(app), or run celery -A app redis-queue dispatch"
    yield say(f"delay {queue.name}: {found}", advice)


def _lease_settings(app: Any) -> Iterator[Finding]:
    """Check that with leases, tasks of a killed worker are redelivered."""
    if low := low_visibility_timeout(app):
        yield warning(*low)
    for name in disabled_settings(app) if ATTRIBUTE in vars(app) else ():
        yield warning(f"{name} is off: a task whose worker is killed is lost", f"leave {name} out, or set it to True")


def _unknown_tasks(state: AppState) -> Iterator[Finding]:
    """Check that waiting tasks are known to the workers."""
    queue = state.queue
    # Only the next ones: reading all would take long.
    entries = queue.list(limit=CHUNK, max_bytes=LOOK_BYTES)
    tasks = Counter(TaskEntry.of(entry).task for entry in entries)
    strange = [(name, count) for name, count in tasks.most_common() if name and name not in state.known]
    if strange:
        named = ", ".join(f"{name} ({count:,})" for name, count in strange[:NAMED])
        more = f" and {len(strange) - NAMED:,} more" if len(strange) > NAMED else ""
        yield warning(
            f"delay {queue.name}: of the next {len(entries):,}, some call tasks that no worker knows: {named}{more}",
            "deploy workers that have these tasks, or redis-queue scheduled cancel --task NAME",
        )


def _known(app: Any, workers: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the tasks of the workers that answered; those of the app if none did."""
    names = frozenset[str]().union(*workers.values())
    if names:
        return names
    app.loader.import_default_modules()
    return frozenset(app.tasks)


def _workers(app: Any) -> dict[str, frozenset[str]]:
    # Errors of the broker, of any type, are not checked here.
    with contextlib.suppress(Exception):
        answers = app.control.inspect(timeout=ANSWER_WITHIN).registered() or {}
        # As "name [rate_limit=10/m]" where a task has one.
        return {str(name): frozenset(str(row).partition(" ")[0] for row in rows) for name, rows in answers.items()}
    return {}
