"""``redis-queue celery-queue NAME``: the messages that wait in one of Celery's queues."""

from __future__ import annotations

from functools import partial

import click

from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.actions import broker_errors, id_arguments, one_command, rows_command
from redis_queue.cli.listing import conditions, show_listing
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.items import Messages, as_row, celery_queues_of
from redis_queue.operate.listing import Conditions


@click.group("celery-queue", cls=Group)
@click.argument("name")
@click.pass_context
def celery_queue(context: click.Context, name: str) -> None:
    """Read and change the messages that wait in the Celery queue NAME.

    Needs a Celery app on a Redis broker; purge works on every broker.

    Example: redis-queue -A shop celery-queue mail peek --limit 5
    """
    context.meta["redis_queue.name"] = name


def _name(access: Access) -> str:
    """Return the name of the queue; an unknown one is an error."""
    return celery_queues_of(access).check(click.get_current_context().meta["redis_queue.name"])


@celery_queue.command(cls=StoreCommand)
@options.limit(10)
@options.body
@options.utc
@options.as_json
@with_access
@conditions("messages", options.task_part)
@broker_errors
def peek(access: Access, *, only: Conditions, limit: int, with_body: bool, as_json: bool) -> None:
    """Show the next messages without taking them, then those that wait for a place in a flow.

    With conditions, those that match. It reads the 10,000 oldest messages of each priority, and of each of the 10,000
    keys of flows that have waited longest. On RabbitMQ, it shows only those that wait for a place. Bodies are not
    shown, but the arguments that a message names.

    Example: redis-queue -A shop celery-queue mail peek --task remind --body
    """
    heads = ["id", "since", "bytes", "priority", "waits_for", "task", *(["args", "kwargs"] if with_body else [])]
    fields = partial(as_row, with_body=with_body)
    show_listing(
        access,
        "messages",
        Messages(access, _name(access), only),
        limit,
        fields,
        {head: partial(lambda head, message: fields(message)[head], head) for head in heads},
        keep=heads[:2],
        below=heads[5:],
        nothing="no messages",
        as_json=as_json,
    )


for _verb in ("move", "delete"):
    celery_queue.add_command(
        rows_command(
            ACTIONS["messages", _verb],
            id_arguments,
            conditions("messages"),
            scope=lambda access, _: {"name": _name(access)},
        )
    )
celery_queue.add_command(one_command(ACTIONS["messages", "purge"], scope=lambda access, _: {"name": _name(access)}))
