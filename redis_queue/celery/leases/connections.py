"""Connections of an app with leases: they have timeouts, and only those of workers restore expired messages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from celery import Celery
from kombu.transport import get_transport_cls
from kombu.transport.redis import Channel, SentinelChannel

from redis_queue.basics.logs import hide_secrets
from redis_queue.celery.kombu.connection import add_timeouts
from redis_queue.celery.kombu.internals import around
from redis_queue.celery.kombu.keys import LEASE_OPTION, lease_of
from redis_queue.celery.store import Store
from redis_queue.celery.stored_tasks import has_leases
from redis_queue.errors import ConfigurationError

SWEEP_LIMIT: Final = "unacked_restore_limit"
"""Transport option: how many expired messages kombu restores per look; None for all, 0 for none."""


DEFAULT_VISIBILITY_TIMEOUT: Final = Channel.visibility_timeout
"""Visibility timeout of kombu in seconds, unless an app sets it."""

SAFE: Final = {"task_acks_late": "CELERY_ACKS_LATE", "task_reject_on_worker_lost": "CELERY_REJECT_ON_WORKER_LOST"}
"""Each setting with its old name. With early acknowledgement a task is settled before it starts; without the second
setting the pool drops the task of a killed child."""


def prepare_connections(app: Celery) -> None:
    """Give later connections of *app* to a Redis broker timeouts, and make them restore no expired messages.

    kombu restores them on each connection that consumes, even for replies to a ping, by the clock of its host.
    """
    for name in ("connection_for_read", "connection_for_write"):
        around(app, name, functools.partial(_prepared, app))


def check_broker(app: Celery) -> None:
    """Raise ConfigurationError if the workers of *app* may switch from one Redis to another while they hold messages.

    Messages of the first Redis can be neither renewed nor settled on the second. A set of Sentinels counts as one.
    """
    connection = app.connection_for_read()
    urls = sorted({url.strip() for url in connection.alt if url.strip()})
    names = (urlsplit(url).scheme.partition("+")[0] or connection.transport_cls for url in urls)
    kinds: list[Any] = list(map(get_transport_cls, names))
    rivals = [kind for kind in kinds if kind.driver_type == "redis" and not issubclass(kind.Channel, SentinelChannel)]
    if len(urls) > 1 and rivals:
        raise ConfigurationError(
            f"broker_url names {len(urls)} brokers ({', '.join(map(hide_secrets, urls))}): must be one with leases; "
            "for failover give the URL of a set of Sentinels (sentinel://host1;sentinel://host2)"
        )


def low_visibility_timeout(app: Celery) -> tuple[str, str] | None:
    """Return what is wrong, and what to do, if *app* has leases and a visibility timeout below kombu's default."""
    with app.connection_for_read() as connection:
        if not has_leases(app) or connection.transport.driver_type != "redis":
            return None
        timeout = visibility_timeout_of(connection.transport_options)
    if timeout >= DEFAULT_VISIBILITY_TIMEOUT:
        return None
    return (
        f"broker_transport_options['visibility_timeout']={timeout:g}: longer tasks of workers without leases run twice",
        f"remove it, in any order (the default is {DEFAULT_VISIBILITY_TIMEOUT:g}): leases "
        "have their own redis_queue_task_lease",
    )


def worker_connection(app: Celery, heartbeat: float | None) -> Any:
    """Return an unopened connection for the consumer of a worker, which does restore expired messages."""
    connection = app.connection_for_read(heartbeat=heartbeat)
    if SWEEP_LIMIT in connection.transport_options:
        connection.transport_options[SWEEP_LIMIT] = app.conf.broker_transport_options.get(SWEEP_LIMIT)
    return connection


def _prepared(app: Celery, connect: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    found = connect(*args, **kwargs)
    if found.get_transport_cls().driver_type == "redis":
        options = found.transport_options
        options[LEASE_OPTION] = Store.of(app).settings.task_lease_seconds
        add_timeouts(found, lease_of(options, visibility_timeout_of(options)))
        options[SWEEP_LIMIT] = 0
    return found


def visibility_timeout_of(options: Mapping[str, Any]) -> float:
    """Return the visibility timeout in the transport *options* of a Redis broker. Raises ConfigurationError."""
    value = options.get("visibility_timeout", DEFAULT_VISIBILITY_TIMEOUT)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigurationError(
            f"broker_transport_options['visibility_timeout']={value!r}: must be a number of seconds > 0"
        )
    return float(value)


def prefer_safe_settings(app: Celery) -> None:
    """Turn on each setting of SAFE by default; values that *app* sets, before or after, are kept."""
    # The signal is sent whenever the configuration is read, which may be more than once.
    app.on_after_configure.connect(_fill, weak=False, dispatch_uid="redis_queue_safe_settings")
    if app.configured:
        _fill(source=app.conf)


def _fill(source: Any, **_: Any) -> None:
    # The last map holds Celery's defaults, of this app alone. Values of add_defaults() would override the module or
    # object from which the app is configured.
    defaults = source.maps[-1]
    for name, old in SAFE.items():
        # An app that is configured by old names has them in its defaults as well.
        defaults[old if old in defaults else name] = True


def active_defaults(app: Celery) -> list[str]:
    """Return the settings of SAFE that are on by default, not set by *app*."""
    return [name for name in SAFE if app.conf[name] and not app.conf.value_set_for(name)]


def disabled_settings(app: Celery) -> list[str]:
    """Return the settings of SAFE that *app* has turned off."""
    return [name for name in SAFE if not app.conf[name]]
