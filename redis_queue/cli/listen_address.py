"""The address that a server command listens on: its options, and its text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import click

from redis_queue.cli.output import harmless

HIGHEST_PORT: Final = 65535

bind: Final = click.option("--bind", default="127.0.0.1", show_default=True, help="Address to listen on.")

hosts: Final = click.option(
    "--host", "hosts", multiple=True, help="An allowed host name besides localhost; can be repeated."
)


def port(default: int) -> Callable[[Any], Any]:
    """Return the option for the port."""
    return click.option(
        "--port",
        type=click.IntRange(0, HIGHEST_PORT),
        default=default,
        show_default=True,
        help="Port to listen on; 0 chooses a free one.",
    )


def address(host: object, port: int) -> str:
    """Return host and port as in a URL."""
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


@contextmanager
def listen_errors(host: str, port: int) -> Iterator[None]:
    """Turn errors of a server that cannot listen there into one line."""
    try:
        yield
    # An invalid host name fails before the socket is opened.
    except (OSError, ValueError, OverflowError) as error:
        raise click.ClickException(f"cannot listen on {harmless(address(host, port))}: {error}") from error
