"""The connection of a worker to the store: with login, TLS and Sentinels, and a keeper that can use it, too."""

import re
import socket
import time
from contextlib import closing
from typing import Any

import pytest
from celery import Celery
from kombu.asynchronous import Hub

from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.store_consumer.connection import HubGuard, store_connection
from tests.support.celery.fetching import Held, leases_of
from tests.support.sentinel import SentinelSet
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

PASSWORD = "p@ss w/rd:1"
LEASE = 2


def connection_of(url: str, **settings: Any) -> Any:
    """Return an unopened connection of an app whose store has *url*."""
    app = Celery("tests", broker="amqp://", set_as_current=False)
    app.conf.update(redis_queue_url=url, **settings)
    return store_connection(app)


def check(connection: Any, database: int) -> None:
    """Check that *connection*, and a keeper, reach the *database*."""
    with connection:
        client = client_of(connection.default_channel)
        assert client.client_info()["db"] == database
        # Raises ConfigurationError if no keeper comes up.
        leases = leases_of(connection)
        try:
            taken = b"{redis_queue:flow}:taken:"
            now = client.time()[0]
            client.zadd(taken + b"unacked_index", {"tag": now})
            leases.hold([Held("tag")], time.monotonic(), now)
            ends = taken + b"redis_queue:lease_ends:unacked_index"
            wait_until(lambda: client.zscore(ends, "tag"), description="the keeper to renew")
            assert sorted(client.keys()) == sorted([ends, taken + b"unacked_index"])
        finally:
            leases.close()


@pytest.mark.parametrize(
    "options",
    [{}, {"password": PASSWORD}, {"tcp": True}, {"tcp": True, "password": PASSWORD}, {"tls": True}],
    ids=["socket", "socket and password", "tcp", "tcp and password", "tls"],
)
def test_connects_as_the_store(options: dict[str, Any]) -> None:
    with RedisServer(**options) as server:
        check(connection_of(re.sub(r"(?<=[/=])0(?=$|\?)", "2", server.url), redis_queue_task_lease=LEASE), 2)


def test_connects_by_sentinels(sentinel: SentinelSet) -> None:
    check(connection_of(sentinel.url.replace("/0?", "/2?"), redis_queue_task_lease=LEASE), 2)


def test_has_timeouts() -> None:
    options = connection_of("redis://").transport_options
    assert (options["socket_connect_timeout"], options["socket_timeout"]) == (3.0, 5.0)
    assert options["unacked_restore_interval"] == 10
    options = connection_of("redis://", redis_queue_task_lease=12).transport_options
    assert (options["socket_connect_timeout"], options["socket_timeout"]) == (2.0, 2.0)
    assert options["unacked_restore_interval"] == 2
    assert options["visibility_timeout"] == 12


def test_a_paused_loop_forgets_sockets_that_are_closed_meanwhile() -> None:
    hub, end, other = Hub(), *socket.socketpair()
    guard = HubGuard(hub, lambda _: None)
    with other, closing(hub):
        number = end.fileno()
        guard.add_reader(number, lambda: None)
        guard.pause()
        end.close()
        guard.resume()
        assert number not in hub.readers
