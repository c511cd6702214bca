"""What the doctor looks at: the Redis, what is kept in it, and, of a Celery app, who is to work on it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from redis_queue.celery.consume.safe_settings import ATTRIBUTE, disabled_settings
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.delay.queue import DelayQueue
from redis_queue.doctor import Finding
from redis_queue.doctor import examine as examine_redis
from redis_queue.doctor.finding import error, run, warning
from redis_queue.operate.access import Access
from redis_queue.operate.pages import LOOK_BYTES
from redis_queue.store.chunks import CHUNK

ANSWER_WITHIN: Final = 1.0
"""Seconds for the workers."""

NAMED: Final = 5
"""Tasks that a finding names."""


def examine(access: Access, *, ask: bool) -> list[Finding]:
    """Return what each check found. With *ask* the workers of the app are asked, which writes into its broker.

    Raises StoreUnavailableError if Redis cannot be reached.
    """
    found = examine_redis(access.inspector.client, access.inspector.prefix)
    if access.app is None:
        return found
    workers = _workers(access.app) if ask else {}
    subject = Subject(access.delay_queue(), workers, _known(access.app, workers))
    checks = {"dispatchers": _dispatchers, "tasks": _unknown_tasks}
    of_queue = (finding for name, check in checks.items() for finding in run(name, check, [subject]))
    return [*found, *of_queue, *run("lease settings", _lease_settings, [access.app])]


@dataclass(frozen=True, slots=True)
class Subject:
    """The DelayQueue of an app, the workers that answered with their tasks, and all known tasks."""

    queue: DelayQueue
    workers: Mapping[str, frozenset[str]]
    known: frozenset[str]


def _dispatchers(subject: Subject) -> Iterator[Finding]:
    """A dispatcher sends what falls due."""
    queue = subject.queue
    if queue.dispatch_log.dispatchers():
        return
    say, what = (error, "entries wait, and") if queue.count() else (warning, "nothing waits yet, but")
    names = sorted(subject.workers)
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
    """With leases, the tasks of a killed worker come back."""
    for name in disabled_settings(app) if ATTRIBUTE in vars(app) else ():
        yield warning(f"{name} is off: a task whose worker is killed is lost", f"leave {name} out, or set it to True")


def _unknown_tasks(subject: Subject) -> Iterator[Finding]:
    """The tasks that wait are known."""
    queue = subject.queue
    # The next ones: a look at all would take long.
    entries = queue.list(limit=CHUNK, max_bytes=LOOK_BYTES)
    tasks = Counter(TaskEntry.of(entry).task for entry in entries)
    strange = [(name, count) for name, count in tasks.most_common() if name and name not in subject.known]
    if strange:
        named = ", ".join(f"{name} ({count:,})" for name, count in strange[:NAMED])
        more = f" and {len(strange) - NAMED:,} more" if len(strange) > NAMED else ""
        yield warning(
            f"delay {queue.name}: of the next {len(entries):,}, some are calls of what no worker knows: {named}{more}",
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
    # A broker that is away, whichever it is, is not what is examined here.
    with contextlib.suppress(Exception):
        answers = app.control.inspect(timeout=ANSWER_WITHIN).registered() or {}
        # As "name [rate_limit=10/m]" where a task has one.
        return {str(name): frozenset(str(row).partition(" ")[0] for row in rows) for name, rows in answers.items()}
    return {}
