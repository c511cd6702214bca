"""The queues that a page may be asked about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from flask import abort

from redis_queue.delay.queue import DelayQueue
from redis_queue.inspector import AnyQueue, QueueRow, kind_of
from redis_queue.operate.faults import Faults
from redis_queue.store.ids import is_id
from redis_queue.store.registry import Known
from redis_queue.store.settings import Settings
from redis_queue.web.context import context

MOST_NAMES: Final = 200
"""Most names that a form offers."""

MOST_QUEUES: Final = 200
"""Most queues that one page counts or looks into."""


def delay_queues(name: str | None) -> tuple[DelayQueue, list[str]]:
    """Return the DelayQueue *name*, by default the one of Celery's tasks or the first, and the names to offer."""
    access = context().access
    names = [known.name for known in context().inspector.listing(kind="delay", limit=MOST_NAMES).known]
    if name is None and names and access.app is None and access.default_delay_queue not in names:
        name = names[0]
    if name is None and not names and access.app is None:
        # There is none yet: an empty page says more than an error.
        known = Settings()
        first = Known("delay", access.default_delay_queue, known.max_deliveries, known.shards)
        queue = context().inspector.open(first)
        assert isinstance(queue, DelayQueue)  # noqa: S101 - the kind says so
    else:
        queue = access.delay_queue(name)
    return queue, sorted({*names, queue.name})


@dataclass(frozen=True, slots=True)
class Window:
    """Queues with dead letters in one part of all queues, each with its number among all.

    *rows* are the counts of that part, *next* is the number at which the next part begins.
    """

    queues: Sequence[AnyQueue]
    numbers: Sequence[int]
    rows: Sequence[QueueRow]
    next: int | None


def window(name: str | None, start: int, faults: Faults) -> Window:
    """Return the queues with *name*, or up to :data:`MOST_QUEUES` of all from number *start* on.

    Errors of queues are added to *faults*. Raises InvalidNameError.
    """
    inspector = context().inspector
    if name is None:
        listing = inspector.listing(offset=start, limit=MOST_QUEUES)
        found, after = listing.known, listing.next
    else:
        found, after = inspector.known(name)[start:], None
    rows = inspector.queues(found)
    queues: list[AnyQueue] = []
    numbers: list[int] = []
    for number, (known, row) in enumerate(zip(found, rows, strict=True), start):
        if row.error:
            faults.add(row)
        elif row.dead:
            with faults.of(known.kind, known.name):
                queues.append(inspector.open(known))
                numbers.append(number)
    return Window(queues, numbers, rows, after)


def queue_of(kind: str, name: str) -> AnyQueue:
    """Return the queue *name* of one kind; raises InvalidNameError."""
    inspector = context().inspector
    if kind == "queue":
        return inspector.queue(name)
    return context().access.delay_queue(name)


def reference(queue: AnyQueue, id_: str, version: str = "") -> str:
    """Return the reference to one message or entry in a form, or to one *version* of it."""
    known = f"{kind_of(queue)}:{quote(queue.name, safe='')}:{quote(id_, safe='', errors='surrogateescape')}"
    return f"{known}:{version}" if version else known


def referred(rows: Iterable[str]) -> Iterator[tuple[AnyQueue, str, str]]:
    """Yield the parts of references (see :func:`reference`), each id once."""
    queues: dict[tuple[str, str], AnyQueue] = {}
    seen: set[tuple[str, str, str]] = set()
    for row in rows:
        kind, name, id_, version = (unquote(part) for part in [*row.split(":"), "", "", ""][:4])
        if kind not in ("queue", "delay") or not name or not is_id(id_):
            abort(400, "A row of this form names nothing: reload the page.")
        if (kind, name, id_) in seen:
            continue
        seen.add((kind, name, id_))
        if (kind, name) not in queues:
            queues[kind, name] = queue_of(kind, name)
        yield queues[kind, name], id_, version
