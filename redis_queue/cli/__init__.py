"""The command line: ``redis-queue``, or ``python -m redis_queue``."""

from __future__ import annotations

import sys

import click

from redis_queue.cli.validate import validate
from redis_queue.errors import RedisQueueError

FAILED = 1
UNUSABLE = 2


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="celery-redis-queue")
def group() -> None:
    """Durable delays and a reliable queue on Redis."""


group.add_command(validate)


def main() -> None:
    """Run the command; errors of redis_queue become one line on stderr and exit code 2."""
    try:
        sys.exit(group(standalone_mode=False) or 0)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except RedisQueueError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(UNUSABLE)
