"""``redis-queue queue NAME``: read and change a RedisQueue."""

from __future__ import annotations

from functools import partial
from typing import Final

import click

from redis_queue.cli import options
from redis_queue.cli.access import Group, with_access
from redis_queue.cli.actions import act, one_command
from redis_queue.cli.actions import purge as delete_all
from redis_queue.cli.listing import show_rows
from redis_queue.cli.report import report
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Choice
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.queue_row import Faults
from redis_queue.queue.queue import QueuePlace
from redis_queue.store.chunks import CHUNK

PLACES: Final[tuple[QueuePlace, ...]] = ("ready", "delayed", "dead", "quarantine")


@click.group(cls=Group)
@click.argument("name")
def queue(**_: str) -> None:
    """Read and change the RedisQueue NAME.

    Example: redis-queue queue orders peek --limit 5
    """


@queue.command
@options.limit(10, CHUNK)
@options.body
@options.output
@options.group_name
def peek(access: Access, *, name: str, limit: int, with_body: bool) -> None:
    """Show the next messages without claiming them."""
    rows = [
        {
            "id": message.id,
            "put_at": message.put_at,
            "deliveries": message.deliveries,
            **({"headers": dict(message.headers), "body": message.body} if with_body else {}),
        }
        for message in access.catalog.queue(name).peek(limit)
    ]
    show_rows(
        access,
        {"messages": rows},
        {"id": "id", "put": "put_at", "deliveries": "deliveries", **({"body": "body"} if with_body else {})},
        keep=("id", "put"),
        below=("body",),
    )


for _verb, _past in (("pause", "paused"), ("resume", "resumed")):
    queue.add_command(
        one_command(
            ACTIONS["queue", _verb],
            options.group_name,
            scope=("name",),
            document=partial(lambda past, _access, scope: {past: scope["name"]}, _past),
        )
    )


@queue.command
@click.argument("places", nargs=-1, type=click.Choice(PLACES))
@options.dry_run
@options.yes
@options.as_json
@with_access
@options.group_name
def purge(access: Access, *, name: str, places: tuple[QueuePlace, ...], dry_run: bool, yes: bool) -> None:
    """Delete all messages in PLACES (default: ready and delayed).

    Messages in flight stay with their holders.
    """
    chosen = access.catalog.queue(name)
    where = tuple(dict.fromkeys(places)) or ("ready", "delayed")
    stats = chosen.stats()
    sizes = {"ready": stats.ready, "delayed": stats.delayed, "dead": stats.dead, "quarantine": stats.quarantined}
    noun = f"messages of {chosen.name} ({', '.join(where)})"
    size = sum(sizes[place] for place in where)
    delete_all(access, noun, [(chosen, size)], where, Faults(), dry_run=dry_run, yes=yes)


@queue.command
@options.dry_run
@options.as_json
@with_access
@options.group_name
def putback(access: Access, *, name: str, dry_run: bool) -> None:
    """Put back the messages of expired leases of this queue."""
    action = ACTIONS["queue", "putback"]
    plan = action.plan(access, Choice({"name": name}))
    if dry_run:
        report("expired", plan.count)
        return
    total = act(access, action, plan)
    report("returned", total.counts["returned"], more={"dead": total.counts["dead"]})
