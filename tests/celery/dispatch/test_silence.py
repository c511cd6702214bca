"""A silent Redis: the connection stays open and no data arrives."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from redis_queue.celery import DispatchLoop, DurableTasks
from redis_queue.store.scripts import SILENT_ATTEMPTS
from tests.support.celery.dispatch import running
from tests.support.proxy import FaultProxy
from tests.support.wait import wait_until

TIMEOUT = 0.5

PATIENCE = 20 * SILENT_ATTEMPTS * TIMEOUT
"""Seconds: more than a busy machine needs, less than any other timeout."""


@pytest.fixture
def app(proxy: FaultProxy) -> Iterator[Celery]:
    """An app whose broker and store are reached through the proxy."""
    with Celery("tests", set_as_current=False) as app:
        app.conf.broker_url = proxy.url
        yield app


class TestPublish:
    @pytest.fixture(autouse=True)
    def hasty(self, app: Celery) -> None:
        app.conf.broker_transport_options = {"socket_timeout": TIMEOUT, "socket_connect_timeout": TIMEOUT}

    def publish(self, app: Celery, proxy: FaultProxy) -> int:
        """Publish while no data arrives; return the number of new connections."""
        before = proxy.connections
        proxy.mode = "blackhole"
        started = time.monotonic()
        with pytest.raises(OperationalError, match="did not answer in time"):
            app.send_task("shop.remind", countdown=60)
        assert time.monotonic() - started < PATIENCE
        return proxy.connections - before

    def test_fails_after_the_second_timeout(self, app: Celery, proxy: FaultProxy) -> None:
        DurableTasks(app, leases=False)
        app.send_task("shop.remind", countdown=60)
        assert self.publish(app, proxy) == SILENT_ATTEMPTS - 1

    def test_fails_in_the_same_way_if_it_is_the_first(self, app: Celery, proxy: FaultProxy) -> None:
        DurableTasks(app, leases=False)
        assert self.publish(app, proxy) == SILENT_ATTEMPTS


def listeners(client: redis.Redis) -> set[Any]:
    return {row["id"] for row in client.client_list(_type="pubsub")}


class TestWakeUpConnection:
    def test_is_replaced_when_it_is_silent(
        self, app: Celery, proxy: FaultProxy, client: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        app.conf.redis_queue_dispatch_interval = 0.2
        DurableTasks(app, leases=False)
        others = listeners(client)
        proxy.mute_next(matching=b"SUBSCRIBE")
        with running(DispatchLoop(app)):
            first = wait_until(lambda: listeners(client) - others, description="the first subscription")
            assert proxy.pending_drops == 0
            wait_until(lambda: listeners(client) - others - first, timeout=10, description="a new subscription instead")
        assert "the wake-up subscription does not answer" in caplog.text

    def test_is_kept_while_it_answers(self, app: Celery, client: redis.Redis) -> None:
        app.conf.redis_queue_dispatch_interval = 1.0
        DurableTasks(app, leases=False)
        others = listeners(client)
        with running(DispatchLoop(app)):
            first = wait_until(lambda: listeners(client) - others, description="the subscription")
            before = pings(client)
            wait_until(lambda: pings(client) >= before + 2, description="two pings")
            assert listeners(client) - others == first


def pings(client: redis.Redis) -> int:
    """Return the number of PINGs that the server has received."""
    return int(client.info("commandstats").get("cmdstat_ping", {}).get("calls", 0))
