"""Connection of kombu to the Redis of the store, for workers whose broker is elsewhere."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote

import redis
from celery import Celery
from kombu.connection import Connection
from redis.sentinel import SentinelConnectionPool

from redis_queue.celery.kombu.connection import MIN_TIMEOUT, add_timeouts
from redis_queue.celery.kombu.keys import LEASE_OPTION
from redis_queue.celery.leases.qos import SWEEPS_PER_LEASE
from redis_queue.celery.store import Store
from redis_queue.celery.store_consumer.channel import ERRORS
from redis_queue.keeper.renewal import socket_timeout

MAX_SWEEP: Final = 10.0
"""Maximum seconds between two such looks, the default of kombu."""

WAIT: Final = 0.5
"""Maximum seconds between two looks whether the worker has room."""

CLOSING: Final = 10.0
"""Maximum seconds that a worker waits for a thread of its connection to the store."""


def store_connection(app: Celery) -> Any:
    """Return an unopened connection of kombu to the store of *app*, with timeouts.

    Its messages in flight have keys of their own beside the flows, and are leased for ``redis_queue_task_lease``.
    """
    store = Store.of(app)
    lease = store.settings.task_lease_seconds
    client = store.client
    if not isinstance(client, redis.Redis):
        raise TypeError("the store is a Redis Cluster")
    given = client.connection_pool.connection_kwargs
    longest = max(MIN_TIMEOUT, socket_timeout(lease))
    options: dict[str, Any] = {
        "global_keyprefix": store.flow_keys.taken,
        "visibility_timeout": lease,
        LEASE_OPTION: lease,
        "unacked_restore_interval": min(MAX_SWEEP, lease / SWEEPS_PER_LEASE),
        "socket_timeout": min(given.get("socket_timeout") or longest, longest),
        "socket_connect_timeout": min(given.get("socket_connect_timeout") or longest, longest),
    }
    if steps := (app.conf.broker_transport_options or {}).get("priority_steps"):
        options["priority_steps"] = steps
    connection = _connection(client, options)
    add_timeouts(connection, lease)
    return connection


def _connection(client: redis.Redis, options: dict[str, Any]) -> Any:
    pool = client.connection_pool
    given = pool.connection_kwargs
    make: Any = Connection  # kombu does not annotate it
    database = str(given.get("db") or 0)
    if "path" in given:
        names = ":".join(quote(given.get(name) or "", safe="") for name in ("username", "password"))
        address = f"redis+socket://{names}@" if names != ":" else "redis+socket://"
        return make(f"{address}{given['path']}?virtual_host={database}", transport_options=options)
    login = {
        "userid": given.get("username"),
        "password": given.get("password"),
        "virtual_host": database,
        "credential_provider": given.get("credential_provider"),
        "ssl": _tls(pool.connection_class, given),
    }
    if isinstance(pool, SentinelConnectionPool):
        watchers = [watcher.connection_pool.connection_kwargs for watcher in pool.sentinel_manager.sentinels]
        hosts = [(f"[{at['host']}]" if ":" in at["host"] else at["host"], at["port"]) for at in watchers]
        urls = [f"sentinel://{host}:{port}" for host, port in hosts]
        own = {name: value for name, value in pool.sentinel_manager.sentinel_kwargs.items() if name != "retry"}
        options |= {"master_name": pool.service_name, "sentinel_kwargs": own}
        return make(";".join(urls), transport_options=options, **login)
    host, port = given.get("host", "localhost"), given.get("port", 6379)
    return make(hostname=host, port=port, transport="redis", transport_options=options, **login)


def _tls(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any] | bool:
    if not issubclass(kind, redis.SSLConnection):
        return False
    return {name: value for name, value in given.items() if name.startswith("ssl_") and value is not None}


class DrainThread:
    """Drains *connection*; a greenlet in a pool of greenlets. *on_error* gets the errors of the store."""

    def __init__(self, connection: Any, on_error: Callable[[Exception], None]) -> None:
        self._connection = connection
        self._on_error = on_error
        self._runs, self._closed = threading.Event(), threading.Event()
        self._runs.set()
        self._thread = threading.Thread(target=self._drain, name="redis-queue-flows", daemon=True)
        self._thread.start()

    def pause(self) -> None:
        """Drain nothing until :meth:`resume`."""
        self._runs.clear()

    def resume(self) -> None:
        """Drain again."""
        self._runs.set()

    def close(self) -> None:
        """Stop draining."""
        self._closed.set()
        self._runs.set()
        if self._thread is not threading.current_thread():
            self._thread.join(CLOSING)

    def _drain(self) -> None:
        while self._runs.wait() and not self._closed.is_set():
            try:
                self._connection.drain_events(timeout=WAIT)
            except socket.timeout:  # noqa: UP041 - kombu raises it
                continue
            except ERRORS as error:
                self._on_error(error)


class HubGuard:
    """Stands for *hub* towards a transport of kombu. *on_error* gets the errors of the store that callbacks raise.

    While paused, no callback is called.
    """

    def __init__(self, hub: Any, on_error: Callable[[Exception], None]) -> None:
        self._hub = hub
        self._on_error = on_error
        self._readers: dict[int, Callable[..., Any]] = {}
        self._ticks: list[Callable[[], Any]] = []
        self._timers: list[Any] = []
        self._runs = True

    @property
    def poller(self) -> Any:
        """The poller of the event loop."""
        return self._hub.poller

    @property
    def on_tick(self) -> HubGuard:
        """What is called in each turn of the event loop, as a set with only *add*."""
        return self

    def add(self, callback: Callable[[], Any]) -> None:
        """Call *callback* in each turn."""
        guarded = self._guarded(callback)
        self._ticks.append(guarded)
        self._hub.on_tick.add(guarded)

    def add_reader(self, fd: int, callback: Callable[..., Any], *args: Any) -> None:
        """Call *callback* with *args* while *fd* is readable."""
        self._readers[fd] = guarded = self._guarded(callback)
        self._hub.add_reader(fd, guarded, *args)

    def remove_reader(self, fd: int) -> None:
        """Stop watching *fd*."""
        if self._readers.pop(fd, None) is not None:
            self._hub.remove_reader(fd)

    remove = remove_reader

    def call_repeatedly(self, seconds: float, callback: Callable[..., Any], *args: Any) -> Any:
        """Call *callback* every few *seconds*; return what cancels it."""
        timer = self._hub.call_repeatedly(seconds, self._guarded(callback), *args)
        self._timers.append(timer)
        return timer

    def call_later(self, seconds: float, callback: Callable[..., Any], *args: Any) -> Any:
        return self._hub.call_later(seconds, self._guarded(callback), *args)

    def pause(self) -> None:
        """Call nothing until :meth:`resume`, and watch nothing: the transport adds its readers again."""
        self._runs = False
        for fd, guarded in self._readers.items():
            # The number of a closed socket may belong to another one by now.
            if self._hub.readers.get(fd, (None,))[0] is guarded:
                with contextlib.suppress(OSError, ValueError, KeyError):
                    self._hub.remove_reader(fd)
        self._readers.clear()

    def resume(self) -> None:
        """Call back again."""
        self._runs = True

    def close(self) -> None:
        """Stop calling."""
        self.pause()
        for callback in self._ticks:
            self._hub.on_tick.discard(callback)
        for timer in self._timers:
            timer.cancel()

    def _guarded(self, callback: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if not self._runs:
                return None
            try:
                return callback(*args)
            except ERRORS as error:
                return self._on_error(error)

        return run
