"""``redis-queue metrics``: what Prometheus scrapes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import click

from redis_queue.cli import listening
from redis_queue.cli.access import StoreCommand, with_access, with_url
from redis_queue.cli.ending import stopping
from redis_queue.connection import connect
from redis_queue.console.access import Access
from redis_queue.inspector import Inspector

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PATIENCE: Final = 2.0
"""Seconds for an answer of Redis, which is asked three times: Prometheus waits for ten."""


@click.command(cls=StoreCommand)
@listening.port(8056)
@listening.bind
@click.option("--once", is_flag=True, help="Print the metrics and end.")
@with_access
@with_url
def metrics(url: str, access: Access, *, port: int, bind: str, once: bool) -> None:
    """Serve the metrics of all queues to Prometheus, until SIGTERM or Ctrl-C.

    Needs the extra "metrics". While Redis is away it answers, with redis_queue_up 0. Whoever reaches the port may read
    the names and sizes of all queues.

    Example: redis-queue metrics --port 8056
    """
    registry = _registry(url, access)
    if once:
        from prometheus_client import generate_latest  # noqa: PLC0415 - it is an extra

        click.echo(generate_latest(registry).decode(), nl=False)
        return
    _serve(registry, bind, port)


def _registry(url: str, access: Access) -> CollectorRegistry:
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 - it is an extra

        from redis_queue.metrics import Collector  # noqa: PLC0415
    except ImportError as error:
        text = f"metrics need prometheus_client ({error}): pip install 'celery-redis-queue[metrics]'"
        raise click.ClickException(text) from None
    registry = CollectorRegistry()
    registry.register(Collector(_impatient(url, access), leases=access.lease_counters))
    return registry


def _impatient(url: str, access: Access) -> Inspector:
    client = connect(url, check=False, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE)
    return Inspector(client, prefix=access.inspector.prefix)


def _serve(registry: CollectorRegistry, bind: str, port: int) -> None:
    from prometheus_client import start_http_server  # noqa: PLC0415 - it is an extra

    asked = threading.Event()
    with stopping(lambda *_: asked.set()):
        with listening.listening(bind, port):
            server, thread = start_http_server(port, bind, registry)
        host, chosen = server.server_address[:2]
        click.echo(f"metrics at http://{listening.address(host, chosen)}/metrics", err=True)
        # A short wait lets a signal in on every system.
        while not asked.wait(0.5):
            pass
        server.shutdown()
        server.server_close()
        thread.join()
