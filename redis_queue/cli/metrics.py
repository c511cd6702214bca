"""``redis-queue metrics``: the endpoint for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from redis_queue.cli import listen_address
from redis_queue.cli.access import StoreCommand, with_access, with_url
from redis_queue.operate.access import Access
from redis_queue.operate.addresses import is_own_host
from redis_queue.operate.inspector import Inspector
from redis_queue.store.connection import connect

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

PATIENCE: Final = 2.0
"""Seconds for each of three answers of Redis; Prometheus waits ten seconds."""


@click.command(cls=StoreCommand)
@listen_address.port(8056)
@listen_address.bind
@listen_address.hosts
@click.option("--once", is_flag=True, help="Print the metrics and exit.")
@with_access
@with_url
def metrics(url: str, access: Access, *, port: int, bind: str, hosts: tuple[str, ...], once: bool) -> None:
    """Serve the metrics of all queues to Prometheus, until SIGTERM or Ctrl-C.

    Needs the extra "metrics". While Redis cannot be reached, redis_queue_up is 0. Everyone who can reach the port can
    read the names and sizes of all queues. Requests must be for localhost, an IP address, or a --host.

    Example: redis-queue metrics --port 8056
    """
    registry = _registry(url, access)
    if once:
        from prometheus_client import generate_latest  # noqa: PLC0415 - an extra

        click.echo(generate_latest(registry).decode(), nl=False)
        return
    _serve(registry, bind, port, hosts)


def _registry(url: str, access: Access) -> CollectorRegistry:
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 - an extra

        from redis_queue.operate.metrics import Collector  # noqa: PLC0415
    except ImportError as error:
        raise _missing(error) from None
    registry = CollectorRegistry()
    registry.register(Collector(_with_timeouts(url, access), leases=access.lease_counters))
    return registry


def _with_timeouts(url: str, access: Access) -> Inspector:
    client = connect(url, check=False, socket_timeout=PATIENCE, socket_connect_timeout=PATIENCE)
    return Inspector(client, prefix=access.catalog.prefix)


def _serve(registry: CollectorRegistry, bind: str, port: int, hosts: tuple[str, ...]) -> None:
    try:
        from prometheus_client import make_wsgi_app  # noqa: PLC0415 - an extra

        from redis_queue.cli import http_server  # noqa: PLC0415
    except ImportError as error:
        raise _missing(error) from None
    app = _check_host(hosts, make_wsgi_app(registry))
    http_server.serve(app, bind, port, "metrics at http://{}/metrics", http_server.Limits())


def _check_host(hosts: Iterable[str], app: Any) -> Callable[..., Any]:
    names = frozenset(host.lower() for host in hosts)

    def checked(environment: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if is_own_host(environment.get("HTTP_HOST", ""), names):
            return app(environment, start_response)
        start_response("400 Bad Request", [("Content-Type", "text/plain")])
        return [b"Unknown host name: start the exporter with --host NAME.\n"]

    return checked


def _missing(error: ImportError) -> click.ClickException:
    text = f"metrics need prometheus_client and waitress ({error}): pip install 'celery-redis-queue[metrics]'"
    return click.ClickException(text)
