"""``celery -A app redis-queue``: the same commands, on the Redis of the app."""

from __future__ import annotations

from typing import Any

import click

from redis_queue.cli.commands import CommandGroup


# What an app adds to the options of all commands is passed to this one, too.
@click.group("redis-queue", cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
def group(**_: Any) -> None:
    """List, check and change what this app has in Redis: queues, delayed tasks, failures, schedules, workers."""


__all__ = ["group"]
