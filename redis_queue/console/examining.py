"""What the doctor looks at: the Redis, what is kept in it, and, of a Celery app, who is to work on it."""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from redis_queue.batches import CHUNK
from redis_queue.celery.entry import TaskEntry
from redis_queue.console.access import Access
from redis_queue.delay import DelayQueue
from redis_queue.doctor import Finding
from redis_queue.doctor import examine as examine_redis
from redis_queue.doctor.finding import error, run, warning

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
    queue = access.delay_queue()
    unknown = functools.partial(_unknown_tasks, _known(access.app, ask=ask))
    unknown.__doc__ = _unknown_tasks.__doc__
    return [*found, *run("dispatchers", _dispatchers, [queue]), *run("tasks", unknown, [queue])]


def _dispatchers(queue: DelayQueue) -> Iterator[Finding]:
    """Somebody sends what falls due."""
    if queue.count() and not queue.dispatchers():
        yield error(
            f"delay {queue.name}: entries wait, and no dispatcher was seen within the last minute",
            "start a worker, or celery -A app redis-queue dispatch",
        )


def _unknown_tasks(known: frozenset[str], queue: DelayQueue) -> Iterator[Finding]:
    """The tasks that wait are known."""
    # The next ones: a look at all would take long.
    entries = queue.list(limit=CHUNK)
    tasks = Counter(TaskEntry.of(entry).task for entry in entries)
    strange = [(name, count) for name, count in tasks.most_common() if name and name not in known]
    if strange:
        named = ", ".join(f"{name} ({count:,})" for name, count in strange[:NAMED])
        more = f" and {len(strange) - NAMED:,} more" if len(strange) > NAMED else ""
        yield warning(
            f"delay {queue.name}: of the next {len(entries):,}, some are calls of what no worker knows: {named}{more}",
            "deploy workers that have these tasks, or redis-queue scheduled cancel --task NAME",
        )


def _known(app: Any, *, ask: bool) -> frozenset[str]:
    """Return the tasks of the workers that answer; of the app where none does."""
    names = _registered(app) if ask else frozenset()
    if names:
        return names
    app.loader.import_default_modules()
    return frozenset(app.tasks)


def _registered(app: Any) -> frozenset[str]:
    # A broker that is away, whichever it is, is not what is examined here.
    with contextlib.suppress(Exception):
        answers = app.control.inspect(timeout=ANSWER_WITHIN).registered() or {}
        # As "name [rate_limit=10/m]" where a task has one.
        return frozenset(str(row).partition(" ")[0] for rows in answers.values() for row in rows)
    return frozenset()
