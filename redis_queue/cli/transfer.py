"""``redis-queue scheduled export`` and ``import``: entries as lines of JSON."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import IO, Any, Final

import click

from redis_queue.celery.conditions import Conditions
from redis_queue.celery.kombu_keys import ListNames
from redis_queue.celery.message.destinations import Destinations, check_key
from redis_queue.celery.message.task_entry import TaskEntry
from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access
from redis_queue.cli.acting import in_batches, report
from redis_queue.cli.conditions import conditions
from redis_queue.cli.ending import interrupt, stopping
from redis_queue.cli.output import harmless
from redis_queue.cli.whole import STDOUT, whole
from redis_queue.delay.model import OnConflict, Push
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidValueError
from redis_queue.model import Entry
from redis_queue.operate.access import Access
from redis_queue.operate.entries import find
from redis_queue.store.chunks import CHUNK
from redis_queue.store.codec import read_document
from redis_queue.times import EPOCH

MODES: Final[tuple[OnConflict, ...]] = ("keep", "replace", "error")


Check = Callable[[Push], None]


@click.command(cls=StoreCommand)
@click.argument("file", type=click.Path(dir_okay=False), default=STDOUT)
@options.delay_queue
@conditions
@with_access
def export(access: Access, *, file: str, name: str | None, conditions: Conditions) -> None:
    """Write what waits into FILE (default: stdout), bodies too, one JSON object a line.

    Nothing is taken out. A file appears only when it is complete; until then what stood there stays.

    Example: redis-queue scheduled export waiting.jsonl
    """
    count = 0
    with stopping(interrupt), whole(file) as out:
        for entry, _ in find(access, access.delay_queue(name), conditions):
            out.write(json.dumps(_written(entry)) + "\n")
            count += 1
    click.echo(f"{count:,} exported", err=True)


@click.command("import", cls=StoreCommand)
@click.argument("file", type=click.File("r", encoding="utf-8"), default="-")
@options.delay_queue
@click.option(
    "--on-conflict",
    type=click.Choice(MODES),
    default="keep",
    show_default=True,
    help="What becomes of an entry that waits under the same id.",
)
@options.dry_run
@options.as_json
@with_access
def import_(
    access: Access, *, file: IO[str], name: str | None, on_conflict: OnConflict, dry_run: bool, as_json: bool
) -> None:
    """Store what an export wrote; doing so twice is harmless.

    The whole FILE is read and checked before anything is stored. A line is refused if a dispatcher of the app would
    refuse its destination.

    Example: redis-queue scheduled import waiting.jsonl --dry-run
    """
    queue = access.delay_queue(name)
    pushes = list(_read(file, queue, _check_of(access, queue)))
    if dry_run:
        report("to_be_imported", len(pushes), as_json=as_json)
        return

    def store(part: list[Push]) -> int:
        if on_conflict == "keep":
            return sum(queue.calls.keep_many(part))
        return len(queue.push_many(part, on_conflict=on_conflict))

    in_batches("imported", pushes, store, size=CHUNK, as_json=as_json)


def _written(entry: Entry) -> dict[str, Any]:
    known: dict[str, Any] = {"id": entry.id, "due_at": entry.due_at.isoformat()}
    if entry.headers:
        known["headers"] = dict(entry.headers)
    if entry.destination is not None:
        known["destination"] = entry.destination
    if isinstance(entry.payload, bytes):
        return {**known, "base64": base64.b64encode(entry.payload).decode()}
    return {**known, "payload": entry.payload}


def _check_of(access: Access, queue: DelayQueue) -> Check:
    """Return a check that raises InvalidValueError for an entry with a forbidden destination."""
    if access.app is None or queue.name != access.default_delay_queue:
        return lambda push: None if push.destination is None else check_key(push.destination)
    destinations, names = Destinations(access.app), ListNames.of_app(access.app)

    def check(push: Push) -> None:
        if push.destination is not None:
            destinations.check_list(push.destination, names or ListNames())
        at = push.due_at or EPOCH
        task = TaskEntry.of(Entry(push.id or "", push.payload, push.headers or {}, at, at))
        destinations.check_names(task.exchange, task.routing_key or task.queue)

    return check


def _read(lines: Iterable[str], queue: DelayQueue, check: Check) -> Iterator[Push]:
    for number, line in _numbered(lines):
        if not line.strip():
            continue
        try:
            push = _push(read_document(line))
            queue.check(push)
            check(push)
        except (ValueError, TypeError, KeyError, binascii.Error) as error:
            reason = f"misses {error}" if isinstance(error, KeyError) else str(error)
            raise InvalidValueError(f"line {number}: {harmless(reason)}; nothing was stored") from error
        yield push


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        for number, line in enumerate(lines, 1):
            yield number, line
    except UnicodeDecodeError as error:
        raise InvalidValueError(f"line {number + 1} or one behind it is no UTF-8; nothing was stored") from error


def _push(read: Any) -> Push:
    if not isinstance(read, dict):
        raise TypeError("is no JSON object")
    payload = base64.b64decode(read["base64"], validate=True) if "base64" in read else read["payload"]
    return Push(
        payload,
        due_at=datetime.fromisoformat(read["due_at"]),
        id=read["id"],
        headers=read.get("headers"),
        destination=read.get("destination"),
    )
