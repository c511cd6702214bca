"""``redis-queue flow``: limits, rates and pauses of queues and tasks."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any, Final

import click

from redis_queue.admission.flow_rules import FlowState
from redis_queue.cli import options
from redis_queue.cli.access import Group, StoreCommand, with_access
from redis_queue.cli.actions import one_command
from redis_queue.cli.output import show_count, show_fields, show_json, show_place, show_table
from redis_queue.operate import flows
from redis_queue.operate.access import Access
from redis_queue.operate.actions.registry import ACTIONS
from redis_queue.operate.flows import LABELS, LimitsRow
from redis_queue.store.chunks import CHUNK

_WHOLE: Final = re.compile(r"-?\d{1,12}", re.ASCII)

_name: Final = click.argument("name")


@click.group(cls=Group)
def flow() -> None:
    """List flows, change their limits at run time, and pause them.

    A flow is a queue (queue:<name>) or the name of a task. The apps declare them: redis_queue_flow, or flow= of a task.

    Example: redis-queue flow pause queue:mail
    """


@flow.command("list", cls=StoreCommand)
@options.as_json
@with_access
def list_(access: Access, *, as_json: bool) -> None:
    """List all flows, and all paused queues: limits, rates, what runs and what waits.

    The state is "changed" if the limits differ from those in the code.

    Example: redis-queue flow list
    """
    found = access.flows.list()
    if as_json:
        show_json({"flows": [flows.as_row(state) for state in found]})
        return
    if not found:
        show_place(access.catalog, "no flows")
        return
    columns = _columns(found)
    show_table(list(columns), list(zip(*columns.values(), strict=True)), below=("burst", "burst/key", "state"))
    show_count(access.catalog, len(found), more=False)


@flow.command(cls=StoreCommand)
@_name
@click.option(
    "--keys", "most_keys", type=click.IntRange(1, CHUNK), default=20, show_default=True, help="Most keys to show."
)
@options.as_json
@with_access
def show(access: Access, *, name: str, most_keys: int, as_json: bool) -> None:
    """Show the flow NAME: its limits now and in the code, and its keys, those with most waiting messages first.

    Example: redis-queue flow show queue:mail --keys 5
    """
    state = access.flows.find(name)
    keys = access.flows.keys(name, most_keys)
    rest = flows.without_key(state, keys, are_all=len(keys) < most_keys)
    if as_json:
        without = {"running": rest.running, "waiting": rest.waiting} if rest else None
        show_json({**flows.as_row(state), "keys": [asdict(key) for key in keys], "without_key": without})
        return
    known: dict[str, Any] = {"name": state.name, "state": flows.state_text(state), "kind": flows.KINDS.get(state.kind)}
    known |= {"running": state.running, "waiting": state.waiting, "uncounted": state.uncounted or None}
    show_fields({name: value for name, value in known.items() if value not in ("", None)})
    now, code = asdict(LimitsRow.of(state.limits)), asdict(LimitsRow.of(state.declared))
    limits = [
        (label, now[field], code[field]) for field, label in LABELS.items() if {now[field], code[field]} != {None}
    ]
    if limits:
        click.echo()
        show_table(("", "now", "in the code"), limits)
    if not keys and rest is None:
        show_place(access.catalog)
        return
    click.echo()
    rows = [(key.key, key.running, key.waiting) for key in keys]
    show_table(("key", "running", "waiting"), [*rows, *([("(no key)", rest.running, rest.waiting)] if rest else [])])
    more = "; there may be more: raise --keys" if len(keys) == most_keys < CHUNK else ""
    show_place(access.catalog, "1 key shown" if len(keys) == 1 else f"{len(keys):,} keys shown", more)


for _verb in ("set", "pause", "resume", "reset"):
    flow.add_command(
        one_command(
            ACTIONS["flow", f"flow-{_verb}"],
            _name,
            scope=lambda _, values: {"name": values.pop("name")},
            document=lambda access, scope: flows.as_row(flows.flow_or_queue(access, scope["name"])),
            name=_verb,
        )
    )


def _columns(states: list[FlowState]) -> dict[str, list[Any]]:
    """Return the columns of the list; without those in which no flow has a value, and without bursts of 1."""
    rows = [LimitsRow.of(state.limits) for state in states]
    limits: dict[str, list[Any]] = {
        "limit": [row.limit for row in rows],
        "limit/key": [row.limit_each for row in rows],
        "rate": [row.rate for row in rows],
        "rate/key": [row.rate_each for row in rows],
        "burst": [_above_one(row.burst) for row in rows],
        "burst/key": [_above_one(row.burst_each) for row in rows],
    }
    return {
        "flow": [state.name for state in states],
        **{head: column for head, column in limits.items() if any(value is not None for value in column)},
        "running": [state.running for state in states],
        "waiting": [state.waiting for state in states],
        "state": [flows.state_text(state) or None for state in states],
    }


def _above_one(burst: int | None) -> int | None:
    return None if burst == 1 else burst
