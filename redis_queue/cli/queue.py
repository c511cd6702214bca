"""``redis-queue queue NAME`` and ``celery-queue NAME``: read and change a RedisQueue, or a queue of Celery."""

from __future__ import annotations

from functools import partial, wraps
from typing import Any, Final

import click

from redis_queue.basics.options import Conditions
from redis_queue.cli import options
from redis_queue.cli.access import Group, with_access
from redis_queue.cli.actions import act, broker_errors, id_arguments, one_command, rows_command
from redis_queue.cli.actions import purge as delete_all
from redis_queue.cli.listing import conditions, show_messages, show_rows
from redis_queue.cli.output import report
from redis_queue.model import QueuePlace
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Choice
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.items import Messages, celery_queues_of
from redis_queue.store.chunks import CHUNK

PLACES: Final[tuple[QueuePlace, ...]] = ("ready", "delayed", "dead", "quarantine")


@click.group(cls=Group)
@click.argument("name")
def queue(**_: str) -> None:
    """Read and change the RedisQueue NAME.

    Example: redis-queue queue orders peek --limit 5
    """


@queue.command()
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
            document=partial(lambda past, _access, scope: {past: scope["name"]}, _past),
        )
    )


@queue.command()
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
    where = tuple(dict.fromkeys(places)) or ("ready", "delayed")
    noun = f"messages of {name} ({', '.join(where)})"
    scope = {"kind": "queue", "name": name, "places": where, "noun": noun}
    delete_all(access, scope, dry_run=dry_run, yes=yes)


@queue.command()
@options.dry_run
@options.as_json
@with_access
@options.group_name
def putback(access: Access, *, name: str, dry_run: bool) -> None:
    """Put back the messages of expired leases of this queue."""
    action = ACTIONS["queue", "putback"]
    plan = action.target.plan(action, access, Choice({"name": name}))
    if dry_run:
        report("expired", plan.count)
        return
    total = act(access, action, plan)
    report("returned", total.counts["returned"], more={"dead": total.counts["dead"]})


@click.group("celery-queue", cls=Group)
@click.argument("name")
def celery_queue(**_: str) -> None:
    """Read and change the messages that wait in the Celery queue NAME.

    Needs a Celery app on a Redis broker; purge works on every broker.

    Example: redis-queue -A shop celery-queue mail peek --limit 5
    """


def _known(function: options.Function) -> options.Function:
    """Pass the name of the queue; an unknown one is an error."""

    @wraps(function)
    def wrapper(access: Access, *, name: str, **values: Any) -> Any:
        return function(access, name=celery_queues_of(access).check(name), **values)

    return options.group_name(wrapper)


@celery_queue.command("peek")
@options.limit(10)
@options.body
@options.output
@broker_errors
@conditions("messages", options.task_part)
@_known
def peek_celery(access: Access, *, name: str, only: Conditions, limit: int, with_body: bool) -> None:
    """Show the next messages without taking them, then those that wait for a place in a flow.

    With conditions, those that match. It reads the 10,000 oldest messages of each priority, and of each of the 10,000
    keys of flows that have waited longest. On RabbitMQ, it shows only those that wait for a place. Bodies are not
    shown, but the arguments that a message names.

    Example: redis-queue -A shop celery-queue mail peek --task remind --body
    """
    show_messages(access, Messages(access, name, only), limit=limit, with_body=with_body, heads=("waits_for",))


for _verb in ("move", "delete"):
    celery_queue.add_command(rows_command(ACTIONS["messages", _verb], id_arguments, conditions("messages"), _known))
celery_queue.add_command(one_command(ACTIONS["messages", "purge"], _known))
