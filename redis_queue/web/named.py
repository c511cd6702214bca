"""The queues that a page may be asked about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import quote, unquote

from flask import abort

from redis_queue.console.faults import Faults
from redis_queue.delay import DelayQueue
from redis_queue.inspector import AnyQueue, QueueRow, kind_of
from redis_queue.keys import is_id
from redis_queue.registry import Known
from redis_queue.settings import Settings
from redis_queue.web.desk import desk


def delay_queues(name: str | None) -> tuple[DelayQueue, list[str]]:
    """Return the DelayQueue *name*, by default the one of Celery's tasks or the first, and the names of all."""
    access = desk().access
    names = [known.name for known in desk().inspector.known() if known.kind == "delay"]
    if name is None and names and access.app is None and access.default_delay_queue not in names:
        name = names[0]
    if name is None and not names and access.app is None:
        # There is none yet: an empty page says more than an error.
        known = Settings()
        first = Known("delay", access.default_delay_queue, known.max_deliveries, known.shards)
        queue = desk().inspector.open(first)
        assert isinstance(queue, DelayQueue)  # noqa: S101 - the kind says so
    else:
        queue = access.delay_queue(name)
    return queue, sorted({*names, queue.name})


def sound_queues(name: str | None, faults: Faults) -> tuple[list[AnyQueue], list[QueueRow]]:
    """Return the queues with *name*, or all, that can be looked at, and the rows of those that were asked for.

    What is wrong with the others goes into *faults*. Raises InvalidNameError.
    """
    queues, inspector = desk().access.queues(name, faults), desk().inspector
    rows = inspector.queues(known for known in inspector.known() if name in (None, known.name))
    for row in rows:
        if row.error:
            faults.add(row)
    broken = {(row.kind, row.name) for row in faults.rows}
    return [queue for queue in queues if (kind_of(queue), queue.name) not in broken], rows


def queue_of(kind: str, name: str) -> AnyQueue:
    """Return the queue *name* of one kind; raises InvalidNameError."""
    inspector = desk().inspector
    if kind == "queue":
        return inspector.queue(name)
    return desk().access.delay_queue(name)


def reference(queue: AnyQueue, id_: str, version: str = "") -> str:
    """Return how a form names one message or entry, or one *version* of it."""
    known = f"{kind_of(queue)}:{quote(queue.name, safe='')}:{quote(id_, safe='', errors='surrogateescape')}"
    return f"{known}:{version}" if version else known


def referred(rows: Iterable[str]) -> Iterator[tuple[AnyQueue, str, str]]:
    """Yield what :func:`reference` was made of, each id once."""
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
