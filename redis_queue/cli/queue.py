"""``redis-queue queue NAME``: read and change a RedisQueue."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import click

from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.actions import one_command, user, warn
from redis_queue.cli.actions import purge as delete_all
from redis_queue.cli.output import show_json, show_place, show_table, shown_body
from redis_queue.cli.report import report
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Choice, Total, perform
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.queue_row import Faults
from redis_queue.queue.queue import QueuePlace, RedisQueue
from redis_queue.store.chunks import CHUNK

PLACES: Final[tuple[QueuePlace, ...]] = ("ready", "delayed", "dead", "quarantine")


@click.group(cls=Group)
@click.argument("name")
@click.pass_context
def queue(context: click.Context, name: str) -> None:
    """Read and change the RedisQueue NAME.

    Example: redis-queue queue orders peek --limit 5
    """
    context.meta["redis_queue.name"] = name


def _chosen(access: Access) -> RedisQueue:
    return access.catalog.queue(click.get_current_context().meta["redis_queue.name"])


@queue.command(cls=StoreCommand)
@options.limit(10, CHUNK)
@options.body
@options.utc
@options.as_json
@with_access
def peek(access: Access, *, limit: int, with_body: bool, as_json: bool) -> None:
    """Show the next messages without claiming them."""
    found = _chosen(access).peek(limit)
    rows = [
        {
            "id": message.id,
            "put_at": message.put_at,
            "deliveries": message.deliveries,
            **({"headers": dict(message.headers), "body": message.body} if with_body else {}),
        }
        for message in found
    ]
    if as_json:
        show_json({"messages": rows})
        return
    heads = ["id", "put", "deliveries", *(["body"] if with_body else [])]
    show_table(heads, [_cells(row) for row in rows], keep=heads[:2], below=["body"])
    show_place(access.catalog)


def _cells(row: dict[str, Any]) -> list[Any]:
    return [row["id"], row["put_at"], row["deliveries"], *([shown_body(row["body"])] if "body" in row else [])]


for _verb, _past in (("pause", "paused"), ("resume", "resumed")):
    queue.add_command(
        one_command(
            ACTIONS["queue", _verb],
            scope=lambda access, _: {"name": _chosen(access).name},
            document=partial(lambda past, _access, scope: {past: scope["name"]}, _past),
        )
    )


@queue.command(cls=StoreCommand)
@click.argument("places", nargs=-1, type=click.Choice(PLACES))
@options.dry_run
@options.yes
@options.as_json
@with_access
def purge(access: Access, *, places: tuple[QueuePlace, ...], dry_run: bool, yes: bool, as_json: bool) -> None:
    """Delete all messages in PLACES (default: ready and delayed).

    Messages in flight stay with their holders.
    """
    chosen = _chosen(access)
    where = tuple(dict.fromkeys(places)) or ("ready", "delayed")
    stats = chosen.stats()
    sizes = {"ready": stats.ready, "delayed": stats.delayed, "dead": stats.dead, "quarantine": stats.quarantined}
    noun = f"messages of {chosen.name} ({', '.join(where)})"
    size = sum(sizes[place] for place in where)
    delete_all(access, noun, [(chosen, size)], where, Faults(), dry_run=dry_run, yes=yes, as_json=as_json)


@queue.command(cls=StoreCommand)
@options.dry_run
@options.as_json
@with_access
def putback(access: Access, *, dry_run: bool, as_json: bool) -> None:
    """Put back the messages of expired leases of this queue."""
    chosen, action, total = _chosen(access), ACTIONS["queue", "putback"], Total()
    if dry_run:
        report("expired", access.inspector.expired(chosen), as_json=as_json)
        return
    perform(access, action, action.plan(access, Choice({"name": chosen.name})), user(), total)
    warn(total)
    report("returned", total.counts["returned"], as_json=as_json, more={"dead": total.counts["dead"]})
