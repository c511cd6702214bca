"""``redis-queue worker NAME``: act on one worker."""

from __future__ import annotations

import click

from redis_queue.cli.access import Group
from redis_queue.cli.actions import one_command
from redis_queue.operate.actions.registry import ACTIONS


@click.group(cls=Group)
@click.argument("name")
@click.pass_context
def worker(context: click.Context, name: str) -> None:
    """Shut down the worker NAME, or change how many tasks it runs at once.

    Needs a Celery app. The names of workers: redis-queue workers.

    Example: redis-queue -A shop worker celery@host resize 8
    """
    context.meta["redis_queue.name"] = name


for _verb in ("shutdown", "resize"):
    worker.add_command(
        one_command(
            ACTIONS["worker", _verb],
            scope=lambda _access, _values: {"name": click.get_current_context().meta["redis_queue.name"]},
        )
    )
