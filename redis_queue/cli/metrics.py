"""``redis-queue metrics``: the endpoint for Prometheus."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

import click
from kombu.exceptions import OperationalError

from redis_queue.basics.logs import escape, hide_secrets
from redis_queue.cli import options
from redis_queue.cli.access import StoreCommand, with_access, with_url
from redis_queue.errors import InvalidNameError, InvalidValueError, RedisQueueError
from redis_queue.operate.access import Access
from redis_queue.operate.addresses import is_own_host
from redis_queue.operate.forecast import by_destination, demand
from redis_queue.operate.inspector import Inspector
from redis_queue.store.connection import connect

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

MAX_QUERY: Final = 10_000
MAX_FIELDS: Final = 100

REPLY_TIMEOUT: Final = 2.0
"""Seconds for each of three answers of Redis; Prometheus waits ten seconds."""


@click.command(cls=StoreCommand)
@options.port(8056)
@options.bind
@options.hosts
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

        text = generate_latest(registry).decode()
        # A name may hold control characters, which belong into a file of metrics, but not to a terminal.
        click.echo(escape(text, keep="\n") if sys.stdout.isatty() else text, nl=False)
        return
    _serve(registry, access, bind, port, hosts)


def _registry(url: str, access: Access) -> CollectorRegistry:
    try:
        from prometheus_client import CollectorRegistry  # noqa: PLC0415 - an extra

        from redis_queue.operate.incidents.registry import current  # noqa: PLC0415
        from redis_queue.operate.metric_table import SOON  # noqa: PLC0415
        from redis_queue.operate.metrics import Collector  # noqa: PLC0415
        from redis_queue.operate.schedules import count  # noqa: PLC0415
    except ImportError as error:
        raise _missing(error) from None
    registry = CollectorRegistry()
    queues = access.celery_queues
    client = connect(url, check=False, socket_timeout=REPLY_TIMEOUT, socket_connect_timeout=REPLY_TIMEOUT)
    registry.register(
        Collector(
            Inspector(client, prefix=access.catalog.prefix),
            leases=access.lease_counters,
            celery_queues=lambda: () if queues is None else queues.overview().rows,
            due=lambda: by_destination(access.delay_queue(), timedelta(seconds=SOON)),
            incidents=lambda: current(access),
            schedules=lambda: count(access),
        )
    )
    return registry


def _serve(registry: CollectorRegistry, access: Access, bind: str, port: int, hosts: tuple[str, ...]) -> None:
    try:
        from prometheus_client import make_wsgi_app  # noqa: PLC0415 - an extra

        from redis_queue.cli import http_server  # noqa: PLC0415
    except ImportError as error:
        raise _missing(error) from None
    names, metrics_of = frozenset(map(str.lower, hosts)), make_wsgi_app(registry)

    def app(environment: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if not is_own_host(environment.get("HTTP_HOST", ""), names):
            start_response("400 Bad Request", [("Content-Type", "text/plain")])
            return [b"Unknown host name: start the exporter with --host NAME.\n"]
        if environment.get("PATH_INFO") != "/scale":
            return metrics_of(environment, start_response)
        status, found = _scale(access, environment.get("QUERY_STRING", ""))
        start_response(status, [("Content-Type", "application/json"), ("Cache-Control", "no-store")])
        return [json.dumps(found).encode()]

    http_server.serve(app, bind, port, "metrics at http://{}/metrics", http_server.ClientLimits())


def _scale(access: Access, query: str) -> tuple[str, dict[str, Any]]:
    """Return the status and the answer of the endpoint for autoscalers."""
    try:
        parameters = parse_qsl(query[:MAX_QUERY], keep_blank_values=True, max_num_fields=MAX_FIELDS)
        return "200 OK", asdict(demand(access, parameters))
    except InvalidNameError as error:
        return "404 Not Found", {"error": str(error)}
    except (RedisQueueError, OperationalError) as error:
        if isinstance(error, InvalidValueError):
            return "400 Bad Request", {"error": str(error)}
        return "503 Service Unavailable", {"error": hide_secrets(str(error))}
    except ValueError as error:
        return "400 Bad Request", {"error": str(error)}


def _missing(error: ImportError) -> click.ClickException:
    text = f"metrics need prometheus_client and waitress ({error}): pip install 'celery-redis-queue[metrics]'"
    return click.ClickException(text)
