"""``redis-queue unique``: the keys of unique tasks."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import click

from redis_queue.admission.owners import MOST_LISTED, Owner
from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.actions import one_command
from redis_queue.cli.output import show_count, show_fields, show_json, show_place, show_table
from redis_queue.cli.report import report
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


@unique.command("list", cls=StoreCommand)
@options.task_part
@options.limit(maximum=MOST_LISTED)
@options.utc
@options.as_json
@with_access
def list_(access: Access, *, task_part: str | None, limit: int, as_json: bool) -> None:
    """List owned keys, and the tasks that own them: those first that are free soonest.

    A key is free at the time in the last column at the latest.

    Example: redis-queue unique list --task shop.sync
    """
    page = access.unique.page(task_part or "", limit=limit)
    more = page.total > limit
    if as_json:
        show_json({"owners": [asdict(owner) for owner in page.owners], "total": page.total, "more": more})
        return
    if not page.owners:
        show_place(access.catalog, "no match among the owned keys" if task_part else "no owned keys")
        return
    rows = [(owner.key or None, owner.state, owner.until, owner.task, owner.task_id) for owner in page.owners]
    show_table(("key", "state", "until", "task", "id"), rows, keep=("until", "id"), below=("task", "id"))
    show_count(access.catalog, len(rows), more=more)


@unique.command(cls=StoreCommand)
@_task
@_key
@options.utc
@options.as_json
@with_access
def show(access: Access, *, task: str, key: str, as_json: bool) -> None:
    """Show which task owns KEY of TASK. Leave out KEY if all calls of the task have the same one.

    Exits with code 1 if no task owns it.

    Example: redis-queue unique show shop.sync order:7
    """
    owner = access.unique.get(task, key)
    if owner is None:
        report("found", 0, error=_missing(task, key), as_json=as_json)
    elif as_json:
        show_json(asdict(owner))
    else:
        show_fields(_fields(owner))


unique.add_command(
    one_command(
        ACTIONS["unique", "unique-release"],
        _task,
        _key,
        scope=lambda _, values: {"task": values.pop("task"), "key": values.pop("key")},
        name="release",
    )
)


def _missing(task: str, key: str) -> str:
    return f"no task owns {name_of(task, key)}"


def _fields(owner: Owner) -> dict[str, Any]:
    known = {"task": owner.task, "key": owner.key, "state": owner.state, "id": owner.task_id, "until": owner.until}
    return {name: value for name, value in known.items() if value != ""}
