"""``redis-queue flow`` and ``unique``: limits, rates and pauses of queues and tasks; keys of unique tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from operator import itemgetter
from typing import Any, Final

import click

from redis_queue.admission.owners import MAX_LISTED
from redis_queue.basics.options import Conditions, counted
from redis_queue.cli import options
from redis_queue.cli.access import Group, with_access
from redis_queue.cli.actions import id_arguments, one_command, rows_command
from redis_queue.cli.listing import Column, Row, conditions, show_item, show_messages, show_rows
from redis_queue.cli.output import show_fields, show_json, show_location, show_table, wants_json
from redis_queue.operate import flow_keys, flows
from redis_queue.operate.access import Access
from redis_queue.operate.actions.flows import name_of
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.flows import LABELS
from redis_queue.operate.items import Messages
from redis_queue.store.chunks import CHUNK

_name: Final = click.argument("name")
_key: Final = options.together(_name, click.argument("key"))

LIMITS: Final[dict[str, Callable[[Row], Any]]] = {
    "limit": itemgetter("limit"),
    "limit/key": itemgetter("limit_each"),
    "rate": itemgetter("rate"),
    "rate/key": itemgetter("rate_each"),
    "burst": lambda row: None if row["burst"] == 1 else row["burst"],
    "burst/key": lambda row: None if row["burst_each"] == 1 else row["burst_each"],
}
"""Columns of the list; those in which no flow has a value are left out, as are bursts of 1."""


@click.group(cls=Group)
def flow() -> None:
    """List flows, change their limits at run time, and pause them.

    A flow is a queue (queue:<name>) or the name of a task. The apps declare them: redis_queue_flow, or flow= of a task.

    Example: redis-queue flow pause queue:mail
    """


@flow.command("list")
@options.as_json
@with_access
def list_(access: Access) -> None:
    """List all flows, and all paused queues: limits, rates, what runs and what waits.

    The state is "changed" if the limits differ from those in the code; it counts keys that are paused or have limits of
    their own: redis-queue flow keys NAME --changed.

    Example: redis-queue flow list
    """
    found = access.flows.list()
    keyed = [state.name for state in found if state.kind]
    changed = dict(zip(keyed, access.flows.of_keys.changes(keyed), strict=True))
    rows = [{**flows.as_row(state), "changed_keys": changed.get(state.name, 0)} for state in found]
    limits = {head: limit for head, limit in LIMITS.items() if any(limit(row) is not None for row in rows)}
    columns: dict[str, Column] = {"flow": "name", **limits, "running": "running", "waiting": "waiting", "state": _state}
    show_rows(access, {"flows": rows}, columns, below=("burst", "burst/key", "state"), nothing="no flows", more=False)


@flow.command()
@_name
@click.option(
    "--keys", "most_keys", type=click.IntRange(1, CHUNK), default=20, show_default=True, help="Most keys to show."
)
@options.as_json
@with_access
def show(access: Access, *, name: str, most_keys: int) -> None:
    """Show the flow NAME: its limits now and in the code, and its keys, those with most waiting messages first.

    Example: redis-queue flow show queue:mail --keys 5
    """
    state = access.flows.find(name)
    keys = access.flows.keys(name, most_keys)
    rest = flows.without_key(state, keys, are_all=len(keys) < most_keys)
    row = flows.as_row(state)
    if wants_json():
        without = {"running": rest.running, "waiting": rest.waiting} if rest else None
        documents = [found.document for found in flow_keys.key_rows(access, name, keys)]
        show_json({**row, "keys": documents, "without_key": without})
        return
    known: dict[str, Any] = {"name": state.name, "state": _state(row), "kind": flows.KINDS.get(state.kind)}
    known |= {"running": state.running, "waiting": state.waiting, "uncounted": state.uncounted or None}
    show_fields({name: value for name, value in known.items() if value not in ("", None)})
    code = row["in_code"]
    limits = [(label, row[name], code[name]) for name, label in LABELS.items() if {row[name], code[name]} != {None}]
    if limits:
        click.echo()
        show_table(("", "now", "in the code"), limits)
    if not keys and rest is None:
        show_location(access.catalog)
        return
    click.echo()
    rows = [(key.key, key.running, key.waiting) for key in keys]
    show_table(("key", "running", "waiting"), [*rows, *([("(no key)", rest.running, rest.waiting)] if rest else [])])
    more = "; there may be more: raise --keys" if len(keys) == most_keys < CHUNK else ""
    show_location(access.catalog, f"{counted(len(keys), 'key')} shown", more)


@flow.command("keys")
@_name
@click.option("--match", "part", default="", help="Only keys that contain this text.")
@click.option("--changed", is_flag=True, help="Only keys that are paused, or have limits of their own.")
@options.limit(50)
@options.output
def keys_(access: Access, *, name: str, part: str, changed: bool, limit: int) -> None:
    """List the keys of the flow NAME: what runs, what waits and since when, and what is set for single keys.

    Those with most waiting messages come first.

    Example: redis-queue flow keys queue:reports --match acme
    """
    listing = flow_keys.Keys(access, access.flows.find(name).name, part, changed=changed)
    found, more = listing.first(limit)
    rows = [row.document for row in flow_keys.key_rows(access, name, found)]
    columns: dict[str, Column] = {head: head for head in ("key", "running", "waiting", "since")}
    columns["set"] = lambda row: flow_keys.set_text(row["own"], paused=row["paused"]) or None
    text, _ = listing.nothing("no keys")
    show_rows(access, {"keys": rows, "more": more}, columns, keep=("key",), below=("set",), nothing=text)


@flow.command("peek")
@_key
@options.limit(10)
@options.body
@options.output
@conditions("messages", options.task_part)
def peek(access: Access, *, name: str, key: str, only: Conditions, limit: int, with_body: bool) -> None:
    """Show the next messages with KEY that wait for a place in the flow NAME, without taking them.

    With conditions, those that match. Bodies are not shown, but the arguments that a message names.

    Example: redis-queue flow peek queue:reports acme --limit 5
    """
    access.flows.key(name, key)
    show_messages(access, Messages(access, name, only, key), limit=limit, with_body=with_body, heads=("queue",))


for _verb in ("move", "delete"):
    flow.add_command(
        rows_command(ACTIONS["key-messages", _verb], options.together(_key, id_arguments), conditions("messages"))
    )

for _verb in ("set", "pause", "resume", "reset"):
    flow.add_command(
        one_command(
            ACTIONS["flow", f"flow-{_verb}"],
            options.together(_name, click.option("--key", help="Only this key of the flow.")),
            document=lambda access, scope: _document(access, **scope),
            name=_verb,
        )
    )


def _document(access: Access, *, name: str, key: str | None) -> Row:
    if key is None:
        return flows.as_row(flows.flow_or_queue(access, name))
    (row,) = flow_keys.key_rows(access, name, [access.flows.key(name, key)])
    return row.document


def _state(row: Row) -> str | None:
    words = [word for word in ("paused", "changed") if row[word]]
    if count := row.get("changed_keys"):
        words.append(f"{counted(count, 'key')} changed")
    return ", ".join(words) or None


_task: Final = click.argument("task")
_unique_key: Final = click.argument("key", default="")


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
def list_owners(access: Access, *, task_part: str | None, limit: int) -> None:
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


@unique.command("show")
@_task
@_unique_key
@options.output
def show_owner(access: Access, *, task: str, key: str) -> None:
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


unique.add_command(one_command(ACTIONS["unique", "unique-release"], _task, _unique_key, name="release"))
