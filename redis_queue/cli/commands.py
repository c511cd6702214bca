"""The commands of both groups: ``redis-queue`` and ``celery -A app redis-queue``."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Final

import click

from redis_queue.cli.access import Group

MODULES: Final = {
    "stats": "stats",
    "top": "top",
    "queues": "stats",
    "queue": "queue",
    "celery-queue": "queue",
    "flow": "flow",
    "unique": "flow",
    "scheduled": "scheduled",
    "schedules": "schedules",
    "failures": "failures",
    "dead": "dead",
    "quarantine": "dead",
    "dispatch": "dispatch",
    "putback": "dispatch",
    "workers": "workers",
    "running": "workers",
    "terminate": "workers",
    "stop": "task",
    "worker": "workers",
    "history": "history",
    "tasks": "task",
    "task": "task",
    "alive": "alive",
    "validate": "validate",
    "adopt": "migrate",
    "release-all": "migrate",
    "incidents": "doctor",
    "doctor": "doctor",
    "load-scripts": "validate",
    "metrics": "metrics",
    "web": "web",
}
"""The commands, and the module of each; only that of the chosen command is imported, since a probe must be fast."""


class CommandGroup(Group):
    """A group with all commands."""

    @property
    def commands(self) -> dict[str, click.Command]:
        """All commands, by name; imports the modules of all."""
        return {name: _load(name) for name in MODULES}

    @commands.setter
    def commands(self, _: object) -> None:
        """Ignore the empty mapping with which click begins."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return a command; None if it is unknown."""
        return _load(cmd_name) if cmd_name in MODULES else None

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and write all of its output.

        Output that waits in the buffer would be written when Python exits, after click's handler of closed pipes.
        """
        try:
            return super().invoke(ctx)
        finally:
            sys.stdout.flush()


def _load(name: str) -> click.Command:
    found: click.Command = getattr(import_module(f"redis_queue.cli.{MODULES[name]}"), name.replace("-", "_"))
    return found
