"""Entries as lines of JSON, for export and import."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from redis_queue.basics.logs import escape
from redis_queue.basics.times import EPOCH
from redis_queue.celery.kombu.keys import ListNames
from redis_queue.celery.message.destinations import Destinations, check_reserved
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.delay.model import Push
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidValueError
from redis_queue.model import Entry, OnConflict
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Result
from redis_queue.store.chunks import CHUNK, chunks
from redis_queue.store.codec import read_document

Check = Callable[[Push], None]


def to_json(entry: Entry) -> dict[str, Any]:
    """Return the JSON object of *entry*; a payload of bytes is written as base64."""
    known: dict[str, Any] = {"id": entry.id, "due_at": entry.due_at.isoformat()}
    if entry.headers:
        known["headers"] = dict(entry.headers)
    if entry.destination is not None:
        known["destination"] = entry.destination
    if isinstance(entry.payload, bytes):
        return {**known, "base64": base64.b64encode(entry.payload).decode()}
    return {**known, "payload": entry.payload}


def destination_check(access: Access, queue: DelayQueue) -> Check:
    """Return a check that raises InvalidValueError for an entry with a forbidden destination."""
    if access.app is None or queue.name != access.default_delay_queue:
        return lambda push: None if push.destination is None else check_reserved(push.destination)
    destinations, names = Destinations(access.app), ListNames.of_app(access.app)

    def check(push: Push) -> None:
        if push.destination is not None:
            destinations.check_list(push.destination, names or ListNames())
        at = push.due_at or EPOCH
        task = TaskEntry.of(Entry(push.id or "", push.payload, push.headers or {}, at, at))
        destinations.check_names(task.exchange, task.routing_key or task.queue)

    return check


def read_pushes(lines: Iterable[str], queue: DelayQueue, check: Check) -> Iterator[Push]:
    """Yield the entries of an export for *queue*; raises InvalidValueError with the number of an invalid line."""
    for number, line in _numbered(lines):
        if not line.strip():
            continue
        try:
            push = _push(read_document(line))
            queue.check(push)
            check(push)
        except (ValueError, TypeError, KeyError, binascii.Error) as error:
            reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise InvalidValueError(f"line {number}: {escape(reason)}; nothing was stored") from error
        yield push


def store(queue: DelayQueue, pushes: Sequence[Push], on_conflict: OnConflict) -> Iterator[Result]:
    """Store *pushes* in batches; "keep" counts only new entries."""
    for chunk in chunks(pushes, CHUNK):
        if on_conflict == "keep":
            yield Result(sum(queue.marked.keep_many(chunk)), tried=len(chunk))
        else:
            yield Result(len(queue.push_many(chunk, on_conflict=on_conflict)), tried=len(chunk))


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            yield number, line
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"not UTF-8 at or after line {number + 1}; nothing was stored") from error


def _push(read: Any) -> Push:
    if not isinstance(read, dict):
        raise TypeError(f"expected a JSON object, got {type(read).__name__}")
    payload = base64.b64decode(read["base64"], validate=True) if "base64" in read else read["payload"]
    return Push(
        payload,
        due_at=datetime.fromisoformat(read["due_at"]),
        id=read["id"],
        headers=read.get("headers"),
        destination=read.get("destination"),
    )
