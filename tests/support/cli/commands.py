"""Command lines for tests: all read-only commands, and the examples of docs/cli.md."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timezone
from inspect import signature
from typing import Any

from click.testing import CliRunner, Result

from tests.support.paths import ROOT

TASK = "00000000-0000-4000-8000-000000000001"

LOOKS: dict[str, str] = {
    "stats": "stats",
    "top": "top --count 1",
    "top-name": "top --count 1 --sort name",
    "queues": "queues",
    "workers": "workers",
    "running": "running",
    "running-body": "running --body",
    "history": "history",
    "tasks": "tasks",
    "tasks-text-body": "tasks --text secret --body",
    "task": "task failed",
    "task-body": "task failed --body",
    "peek": "queue orders peek",
    "peek-body": "queue orders peek --body",
    "purge-dry": "queue orders purge --dry-run",
    "queue-putback-dry": "queue orders putback --dry-run",
    "scheduled-list": "scheduled list",
    "scheduled-list-body": "scheduled list --body",
    "scheduled-list-limit": "scheduled list --limit 1",
    "scheduled-show": f"scheduled show {TASK}",
    "scheduled-show-body": f"scheduled show {TASK} --body",
    "scheduled-show-data": "scheduled show data --body",
    "scheduled-forecast": "scheduled forecast --hours 4 --buckets 4",
    "scheduled-cancel-dry": "scheduled cancel --all --dry-run",
    "scheduled-run-now-dry": "scheduled run-now data nobody --dry-run",
    "scheduled-reschedule-dry": "scheduled reschedule --task shop.remind --to 2h --dry-run",
    "dead-list": "dead list",
    "dead-list-body": "dead list --body",
    "dead-show": "dead show dead",
    "dead-show-body": "dead show dead --body",
    "dead-redrive-dry": "dead redrive --all --dry-run",
    "dead-delete-dry": "dead delete dead --dry-run",
    "dead-purge-dry": "dead purge --dry-run",
    "failures-list": "failures list",
    "failures-list-body": "failures list --body",
    "failures-groups": "failures list --groups",
    "failures-show": "failures show failed",
    "failures-show-body": "failures show failed --body",
    "failures-retry-dry": "failures retry --all --dry-run",
    "failures-delete-dry": "failures delete failed --dry-run",
    "quarantine-list": "quarantine list",
    "quarantine-show": "quarantine show unreadable",
    "quarantine-show-body": "quarantine show unreadable --body",
    "quarantine-purge-dry": "quarantine purge --dry-run",
    "putback-dry": "putback --dry-run",
    "flow-list": "flow list",
    "flow-show": "flow show queue:reports",
    "flow-show-changed": "flow show queue:mail --keys 1",
    "flow-show-key": "flow show shop.sync",
    "flow-keys": "flow keys queue:reports",
    "flow-keys-match": "flow keys queue:reports --match e --limit 1",
    "flow-peek": "flow peek queue:reports ann",
    "schedules-list": "schedules list",
    "schedules-list-paused": "schedules list --match shop --state paused",
    "schedules-show": "schedules show nightly",
    "schedules-show-body": "schedules show nightly --body",
    "schedules-show-unreadable": "schedules show broken",
    "schedules-next": "schedules next nightly -n 3",
    "schedules-pause-dry": "schedules pause nightly --until 2h --dry-run",
    "schedules-delete-dry": "schedules delete nightly --dry-run",
    "unique-list": "unique list",
    "unique-list-task": "unique list --task shop.rem --limit 1",
    "unique-show": "unique show shop.sync order:7",
    "unique-show-task": "unique show shop.rebuild",
    "unique-release-dry": "unique release shop.sync order:8 --dry-run",
}
"""Read-only commands, by the name of their golden file."""

DOCS = (ROOT / "docs" / "cli.md").read_text()
EXAMPLES = re.findall(r"^\| `redis-queue (?!-A )([^`]+)`", DOCS, re.MULTILINE)
APP_EXAMPLES = re.findall(r"^\| `redis-queue -A shop ([^`]+)`", DOCS, re.MULTILINE)


def answer(done: Result) -> Any:
    """Return the JSON that a command printed; fail if the command failed."""
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def leaves(command: object, path: tuple[str, ...] = ()) -> list[str]:
    """Return the full names of all commands that have no subcommands."""
    found = getattr(command, "commands", None)
    if found is None:
        return [" ".join(path)]
    return [line for name, item in found.items() for line in leaves(item, (*path, name))]


NOW = int(datetime(2030, 1, 1, tzinfo=timezone.utc).timestamp() * 1000)
DUE = datetime(2030, 1, 1, 2, tzinfo=timezone.utc)

Run = Callable[..., Result]


def runner() -> CliRunner:
    """Return a runner with separate stdout and stderr, the default since click 8.2."""
    apart: dict[str, Any] = {"mix_stderr": False} if "mix_stderr" in signature(CliRunner).parameters else {}
    return CliRunner(**apart)
