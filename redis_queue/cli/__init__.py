"""The command line: ``redis-queue``, or ``python -m redis_queue``."""

from __future__ import annotations

import sys

import click

from redis_queue.cli.access import redacted
from redis_queue.cli.commands import CommandGroup
from redis_queue.cli.output import INTERRUPTED_AT_ONCE, code_of, harmless
from redis_queue.errors import RedisQueueError


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="celery-redis-queue")
def group() -> None:
    """Durable delays and a reliable queue on Redis. These options may also follow the command.

    Completion: put eval "$(_REDIS_QUEUE_COMPLETE=bash_source redis-queue)" into ~/.bashrc; zsh_source and fish_source
    for the other shells.
    """


def main() -> None:
    """Run the command; errors of redis_queue become one line on stderr and an exit code."""
    try:
        group(standalone_mode=False)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED_AT_ONCE)
    except click.ClickException as error:
        (redacted(error) if isinstance(error, click.UsageError) else error).show()
        sys.exit(error.exit_code)
    except RedisQueueError as error:
        click.echo(f"error: {harmless(error)}", err=True)
        sys.exit(code_of(error))
