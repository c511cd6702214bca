"""``redis-queue unique``: the keys of unique tasks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import click

from redis_queue.admission.owners import MAX_LISTED
from redis_queue.cli import options
from redis_queue.cli.access import Group
from redis_queue.cli.actions import one_command
from redis_queue.cli.listing import show_item, show_rows
from redis_queue.cli.output import show_fields, wants_json
from redis_queue.operate.access import Access
from redis_queue.operate.actions.flows import name_of
from redis_queue.operate.actions.registry import ACTIONS

_task: Final = click.argument("task")
_key: Final = click.argument("key", default="")


@click.group(cls=Group)
def unique() -> None:
    """List the keys of unique tasks, and free them.

    A task with unique= owns its key while it waits or runs: other calls with this key are not sent.

    Example: redis-queue unique list --task shop.sync
    """


@unique.command("list")
@options.task_part
@options.limit(maximum=MAX_LISTED)
@options.output
def list_(access: Access, *, task_part: str | None, limit: int) -> None:
    """List owned keys and the tasks that own them, the soonest to be free first.

    A key is free at the time in the last column at the latest.

    Example: redis-queue unique list --task shop.sync
    """
    page = access.unique.page(task_part or "", limit=limit)
    more = page.total > limit
    show_rows(
        access,
        {**asdict(page), "more": more},
        {"key": lambda row: row["key"] or None, "state": "state", "until": "until", "task": "task", "id": "task_id"},
        keep=("until", "id"),
        below=("task", "id"),
        nothing="no match among the owned keys" if task_part else "no owned keys",
        more=more,
    )


@unique.command()
@_task
@_key
@options.output
def show(access: Access, *, task: str, key: str) -> None:
    """Show which task owns KEY of TASK. Leave out KEY if all calls of the task have the same one.

    Exits with code 1 if no task owns it.

    Example: redis-queue unique show shop.sync order:7
    """
    owner = access.unique.get(task, key)
    if owner is None or wants_json():
        show_item(None if owner is None else asdict(owner), f"no task owns {name_of(task, key)}")
        return
    known = {"task": owner.task, "key": owner.key, "state": owner.state, "id": owner.task_id, "until": owner.until}
    show_fields({name: value for name, value in known.items() if value != ""})


unique.add_command(
    one_command(
        ACTIONS["unique", "unique-release"],
        _task,
        _key,
        name="release",
    )
)
