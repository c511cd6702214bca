"""Connections of an app whose workers keep leases: with timeouts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kombu.transport.redis import Channel

from redis_queue.celery.timeouts import add_timeouts
from redis_queue.errors import ConfigurationError

if TYPE_CHECKING:
    from celery import Celery


def prepare_connections(app: Celery) -> None:
    """Let every connection that *app* makes to a Redis broker from now on have timeouts."""
    for name in ("connection_for_read", "connection_for_write"):
        setattr(app, name, _prepared(getattr(app, name)))


def _prepared(connect: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(connect)
    def connection(*args: Any, **kwargs: Any) -> Any:
        found = connect(*args, **kwargs)
        add_timeouts(found, _visibility_timeout(found))
        return found

    return connection


def _visibility_timeout(connection: Any) -> float:
    value = connection.transport_options.get("visibility_timeout", Channel.visibility_timeout)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigurationError(
            f"broker_transport_options['visibility_timeout']={value!r}: must be a number of seconds above 0"
        )
    return float(value)
