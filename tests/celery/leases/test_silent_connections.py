"""Connections that receive no data, as after packet loss: each user closes one after a timeout and continues."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import redis
from celery import Celery
from kombu.entity import Queue
from kombu.messaging import Consumer

from redis_queue.celery import Dispatched, Dispatcher, DurableTasks
from redis_queue.celery.brokers import amqp
from redis_queue.celery.kombu import connection as kombu_connection
from redis_queue.celery.leases.leases import WorkerLeases
from redis_queue.celery.leases.qos import lease_channels
from redis_queue.errors import ConfigurationError
from redis_queue.keeper.renewal import socket_timeout
from tests.support.celery.brokers import Broker
from tests.support.celery.fetching import FakeLeases, Held, leases_of
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(90)

TIMEOUT = 3.0
"""The visibility timeout; a keeper closes a silent connection after half a second."""

TAG = "tag"

HELD = Held(TAG)


@pytest.fixture
def proxy(redis_server: RedisServer, client: redis.Redis) -> Iterator[FaultProxy]:
    """A proxy in front of an empty Redis."""
    assert client.dbsize() == 0
    with FaultProxy(str(redis_server.socket)) as proxy:
        yield proxy


@pytest.fixture
def connection(proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(kombu_connection, "MIN_TIMEOUT", 0.5)
    with app_at(proxy.url).connection_for_read() as connection:
        yield connection


@pytest.fixture
def leases(connection: Any) -> Iterator[WorkerLeases]:
    made = leases_of(connection)
    yield made
    made.close()


def app_at(url: str, **options: Any) -> Celery:
    app = Celery("tests", broker=url, set_as_current=False)
    app.conf.broker_transport_options = {"visibility_timeout": TIMEOUT, **options}
    DurableTasks(app, delays=False)
    return app


def hold(client: redis.Redis, leases: WorkerLeases) -> float:
    """Hold one message like a worker; return the time of its lease."""
    score = float(client.time()[0])
    client.hset("unacked", TAG, "[]")
    client.zadd("unacked_index", {TAG: score})
    leases.hold([HELD], time.monotonic(), score)
    return score


def wait_for_renewal(client: redis.Redis, since: float) -> float:
    """Return the time of the lease once it is later than *since*."""
    return wait_until(
        lambda: found if (found := client.zscore("unacked_index", TAG) or 0.0) > since else None,
        description="a renewal",
    )


def process_of(leases: WorkerLeases) -> psutil.Process:
    assert leases._keeper._process is not None
    return psutil.Process(leases._keeper._process.pid)


class TestKeeper:
    def test_renews_on_a_new_connection(self, proxy: FaultProxy, client: redis.Redis, leases: WorkerLeases) -> None:
        renewed = wait_for_renewal(client, hold(client, leases))
        process = process_of(leases)
        proxy.mute()
        # The first renewal may still be on its way.
        wait_for_renewal(client, wait_for_renewal(client, renewed))
        assert process_of(leases) == process
        assert leases.lost == 0

    def test_hanging_keeper_is_replaced(
        self,
        leases: WorkerLeases,
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(leases._keeper, "_stale", 1.5)
        renewed = wait_for_renewal(client, hold(client, leases))
        process = process_of(leases)
        with caplog.at_level(logging.WARNING):
            process.suspend()
            wait_for_renewal(client, wait_for_renewal(client, renewed))
        assert not process.is_running()
        assert "renewed nothing for" in caplog.text

    def test_keeper_that_reports_an_error_is_kept_and_logged_once(
        self,
        proxy: FaultProxy,
        leases: WorkerLeases,
        client: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        renewed = wait_for_renewal(client, hold(client, leases))
        process = process_of(leases)
        events: list[dict[str, Any]] = []
        take = leases._keeper._take
        monkeypatch.setattr(leases._keeper, "_take", lambda event: (events.append(event), take(event)))
        with caplog.at_level(logging.WARNING):
            proxy.mode = "refuse"
            proxy.cut()
            wait_until(lambda: len([event for event in events if "away" in event]) >= 3, description="three attempts")
            proxy.mode = "pass"
            wait_for_renewal(client, renewed)
        assert caplog.text.count("cannot renew leases") == 1
        assert process_of(leases) == process

    @pytest.mark.timeout(30)
    def test_hanging_keeper_does_not_delay_the_end_of_its_worker(self, leases: WorkerLeases) -> None:
        process = process_of(leases)
        process.suspend()
        leases.close()
        wait_until(lambda: not process.is_running(), description="the keeper to be gone")


class TestLeaseClient:
    def test_settles_on_a_new_connection(self, proxy: FaultProxy, client: redis.Redis, leases: WorkerLeases) -> None:
        for _ in range(2):
            hold(client, leases)
            leases.settle(TAG)
            assert not client.exists("unacked", "unacked_index")
            proxy.mute()

    def test_acknowledges_on_a_new_connection(self, proxy: FaultProxy, connection: Any, client: redis.Redis) -> None:
        lease_channels(connection.transport, FakeLeases())  # type: ignore[arg-type]
        got: list[Any] = []
        with Consumer(connection.default_channel, [Queue("q")], on_message=got.append, prefetch_count=2):
            for number in range(3):
                connection.Producer().publish(number, routing_key="q")
            while len(got) < 2:
                connection.drain_events(timeout=10)
            got.pop().ack()
            assert client.hlen("unacked") == client.zcard("unacked_index") == 1
            proxy.mute()
            got.pop().reject()
            assert not client.exists("unacked", "unacked_index")
            with contextlib.suppress(*connection.connection_errors):
                connection.close()

    def test_does_not_hang_in_a_sweep(self, proxy: FaultProxy, connection: Any, client: redis.Redis) -> None:
        lease_channels(connection.transport, FakeLeases())  # type: ignore[arg-type]
        qos = connection.default_channel.qos
        qos.restore_visible()
        proxy.mute()
        qos._swept_at = 0.0
        client.zadd("unacked_index", {"old": 1})
        # On a new connection.
        qos.restore_visible()
        assert not client.exists("unacked_index")

    def test_does_not_hang_while_it_quarantines_a_message(
        self, proxy: FaultProxy, client: redis.Redis, leases: WorkerLeases
    ) -> None:
        hold(client, leases)
        leases.put_aside("another", b"first")
        proxy.mute()
        with pytest.raises(redis.TimeoutError):
            leases.put_aside(TAG, b"?")
        leases.put_aside(TAG, b"?")
        assert not client.exists("unacked", "unacked_index")


class TestDispatcher:
    @pytest.mark.parametrize("broker", ["another redis", "rabbitmq"], indirect=True)
    def test_sends_on_a_new_connection(
        self, broker: Broker, redis_url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kombu_connection, "MIN_TIMEOUT", 0.5)
        monkeypatch.setattr(amqp, "CONFIRM_WITHIN", 0.5)
        with FaultProxy(broker.address) as proxy:
            app = broker.app(
                broker_url=broker.url_at(proxy.port), redis_queue_url=redis_url, redis_queue_dispatch_lease=3
            )
            delayed = DurableTasks(app, leases=False)
            dispatcher = Dispatcher(app, delayed.queue)
            for number in range(2):
                app.send_task("shop.remind", [number], countdown=0.001)
                wait_until(lambda: dispatcher.run() == Dispatched(sent=1), description="one to be sent")
                proxy.mute()
            dispatcher.close()
        assert len(broker.take(app.conf.task_default_queue)) == 2


class TestTimeouts:
    @pytest.mark.parametrize(("lease", "seconds"), [(3, 0.5), (30, 5), (60, 10), (3600, 10)])
    def test_are_a_sixth_of_the_lease(self, lease: float, seconds: float) -> None:
        assert socket_timeout(lease) == seconds

    def test_apply_to_each_connection_of_the_app(self) -> None:
        app = app_at("redis://localhost:1", visibility_timeout=30)
        for connect in (app.connection_for_read, app.connection_for_write, app.connection):
            options = connect().transport_options
            assert options["socket_timeout"] == options["socket_connect_timeout"] == 5
            assert options["socket_keepalive"]

    def test_do_not_override_those_of_the_user(self) -> None:
        options = app_at("redis://localhost:1", socket_timeout=1, socket_keepalive=False).connection().transport_options
        assert options["socket_timeout"] == 1
        assert not options["socket_keepalive"]

    def test_apply_to_sentinels_too(self) -> None:
        app = app_at("sentinel://localhost:1", master_name="m", sentinel_kwargs={"password": "x"})
        asked = app.connection().transport_options["sentinel_kwargs"]
        assert asked["socket_timeout"] == kombu_connection.MIN_TIMEOUT
        assert asked["password"] == "x"

    def test_do_not_apply_to_other_brokers(self) -> None:
        assert "socket_timeout" not in app_at("amqp://localhost:1").connection().transport_options

    @pytest.mark.parametrize("value", ["60", 0, -1, None, float("nan"), True])
    def test_invalid_visibility_timeout_is_a_clear_error(self, value: Any) -> None:
        with pytest.raises(ConfigurationError, match=r"visibility_timeout'\]=.*must be a number"):
            app_at("redis://localhost:1", visibility_timeout=value).connection()
