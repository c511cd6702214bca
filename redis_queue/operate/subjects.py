"""Subjects of an action: its first messages and entries, for preview and audit."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Final

from redis_queue.basics.times import from_ms
from redis_queue.catalog import AnyQueue
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.model import Entry, Item, State
from redis_queue.operate.audit import Subject
from redis_queue.operate.faults import BROKEN

SHOWN: Final = 10
"""Most subjects of one action."""

MOST_LOOKS: Final = 100

ANY: Final[Sequence[State]] = ("ready", "delayed", "in_flight", "dead")
DEAD: Final[Sequence[State]] = ("dead",)


def subjects(pairs: Iterable[tuple[AnyQueue, str]], states: Sequence[State] = ANY) -> list[Subject]:
    """Return the first :data:`SHOWN` of *pairs* (queue, id) that exist in one of *states*.

    It reads at most :data:`MOST_LOOKS` of them. Unreadable queues are left out.
    """
    found: list[Subject] = []
    for (queue, id_), _ in zip(pairs, range(MOST_LOOKS), strict=False):
        with contextlib.suppress(*BROKEN):
            item = queue.look(id_)
            if item is not None and item.state in states:
                found.append(Subject(id_, queue.name, task_of(item).task, item.at))
        if len(found) == SHOWN:
            break
    return found


def task_of(item: Item) -> TaskEntry:
    """Return *item* as a task."""
    unknown = from_ms(0)
    put_at, at = item.put_at or unknown, item.at or unknown
    return TaskEntry.of(Entry(item.id, item.body, item.headers, put_at, at, item.deliveries))
