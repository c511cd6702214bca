"""Queues and rows that a request refers to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from flask import abort

from redis_queue.catalog import AnyQueue, kind_of
from redis_queue.delay.queue import DelayQueue
from redis_queue.operate.faults import Faults
from redis_queue.operate.queue_row import QueueRow
from redis_queue.store.ids import is_id
from redis_queue.store.registry import Known
from redis_queue.store.settings import Settings
from redis_queue.web import request_args
from redis_queue.web.context import context
from redis_queue.web.rows import Row

KINDS: Final = ("queue", "delay")

MOST_NAMES: Final = 200
"""Most queue names in a form."""

MOST_QUEUES: Final = 200
"""Most queues that one page reads."""


def delay_queues(name: str | None) -> tuple[DelayQueue, list[str]]:
    """Return the DelayQueue *name* and the names for a form; by default that of Celery tasks, or else the first."""
    access = context().access
    names = [known.name for known in context().catalog.listing(kind="delay", limit=MOST_NAMES).known]
    if name is None and names and access.app is None and access.default_delay_queue not in names:
        name = names[0]
    if name is None and not names and access.app is None:
        # There is no queue yet: an empty page is better than an error.
        known = Settings()
        first = Known("delay", access.default_delay_queue, known.max_deliveries, known.shards)
        queue = context().catalog.open(first)
        assert isinstance(queue, DelayQueue)  # noqa: S101 - the kind says so
    else:
        queue = access.delay_queue(name)
    return queue, sorted({*names, queue.name})


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Queues with dead letters in a range of all queues, and their positions among all.

    *rows* are the counts of all queues in the range, *next* is the position at which the next range begins.
    """

    queues: Sequence[AnyQueue]
    positions: Sequence[int]
    rows: Sequence[QueueRow]
    next: int | None


def queue_range(name: str | None, start: int, faults: Faults) -> QueueRange:
    """Return the queues called *name*, or up to :data:`MOST_QUEUES` of all from position *start* on.

    Adds unreadable queues to *faults*. Raises InvalidNameError for an unknown name.
    """
    inspector = context().inspector
    if name is None:
        listing = inspector.catalog.listing(offset=start, limit=MOST_QUEUES)
        found, after = listing.known, listing.next
    else:
        found, after = inspector.catalog.known(name)[start:], None
    rows = inspector.queues(found)
    queues: list[AnyQueue] = []
    positions: list[int] = []
    for position, (known, row) in enumerate(zip(found, rows, strict=True), start):
        if row.error:
            faults.add(row)
        elif row.dead:
            with faults.of(known.kind, known.name):
                queues.append(inspector.catalog.open(known))
                positions.append(position)
    return QueueRange(queues, positions, rows, after)


def queue_of(kind: str, name: str) -> AnyQueue:
    """Return the queue *name* of *kind*; raises InvalidNameError for an unknown name."""
    inspector = context().inspector
    if kind == "queue":
        return inspector.catalog.queue(name)
    return context().access.delay_queue(name)


def reference(queue: AnyQueue, id_: str, version: str = "") -> str:
    """Return a reference to a message or entry for a form, or to one *version* of it."""
    known = f"{kind_of(queue)}:{quote(queue.name, safe='')}:{quote(id_, safe='', errors='surrogateescape')}"
    return f"{known}:{version}" if version else known


def rows_of(references: Iterable[str]) -> Iterator[Row]:
    """Yield the row of each reference (see :func:`reference`), each id once."""
    queues: dict[tuple[str, str], AnyQueue] = {}
    seen: set[tuple[str, str, str]] = set()
    for text in references:
        kind, name, id_, version = (unquote(part) for part in [*text.split(":"), "", "", ""][:4])
        if kind not in KINDS or not name or not is_id(id_):
            abort(400, request_args.INVALID_ROW)
        if (kind, name, id_) in seen:
            continue
        seen.add((kind, name, id_))
        if (kind, name) not in queues:
            queues[kind, name] = queue_of(kind, name)
        yield Row(queues[kind, name], id_, version)
