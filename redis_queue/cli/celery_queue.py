"""``redis-queue celery-queue NAME``: the messages that wait in one of Celery's queues."""

from __future__ import annotations

import functools
from typing import Any

import click

from redis_queue.cli import options
from redis_queue.cli.access import Group
from redis_queue.cli.actions import broker_errors, id_arguments, one_command, rows_command
from redis_queue.cli.listing import conditions, show_listing
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.celery_messages import Messages, as_row, celery_queues_of
from redis_queue.operate.listing import Conditions


@click.group("celery-queue", cls=Group)
@click.argument("name")
def celery_queue(**_: str) -> None:
    """Read and change the messages that wait in the Celery queue NAME.

    Needs a Celery app on a Redis broker; purge works on every broker.

    Example: redis-queue -A shop celery-queue mail peek --limit 5
    """


def _known(function: options.Function) -> options.Function:
    """Pass the name of the queue; an unknown one is an error."""

    @functools.wraps(function)
    def wrapper(access: Access, *, name: str, **values: Any) -> Any:
        return function(access, name=celery_queues_of(access).check(name), **values)

    return options.group_name(wrapper)


@celery_queue.command
@options.limit(10)
@options.body
@options.output
@broker_errors
@conditions("messages", options.task_part)
@_known
def peek(access: Access, *, name: str, only: Conditions, limit: int, with_body: bool) -> None:
    """Show the next messages without taking them, then those that wait for a place in a flow.

    With conditions, those that match. It reads the 10,000 oldest messages of each priority, and of each of the 10,000
    keys of flows that have waited longest. On RabbitMQ, it shows only those that wait for a place. Bodies are not
    shown, but the arguments that a message names.

    Example: redis-queue -A shop celery-queue mail peek --task remind --body
    """
    heads = ["id", "since", "bytes", "priority", "waits_for", "task", *(["args", "kwargs"] if with_body else [])]
    show_listing(
        access,
        "messages",
        Messages(access, name, only),
        functools.partial(as_row, with_body=with_body),
        {head: head for head in heads},
        limit=limit,
        keep=heads[:2],
        below=heads[5:],
        nothing="no messages",
    )


for _verb in ("move", "delete"):
    celery_queue.add_command(
        rows_command(
            ACTIONS["messages", _verb],
            id_arguments,
            conditions("messages"),
            _known,
            scope={"name": "name"},
        )
    )
celery_queue.add_command(one_command(ACTIONS["messages", "purge"], _known, scope=("name",)))
