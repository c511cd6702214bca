"""Store: where an app keeps its queues, and with which settings it opens them."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from celery import Celery
from redis.sentinel import SentinelConnectionPool

from redis_queue import ConfigurationError, DelayQueue, RedisQueue
from redis_queue.celery import Dispatched, Dispatcher, Store, push_task
from tests.support.topologies import SentinelSet

pytestmark = pytest.mark.celery


def app_with(**settings: Any) -> Celery:
    """Return an app that never talks to its broker."""
    app = Celery("tests", set_as_current=False)
    app.conf.update({"broker_url": "amqp://guest:guest@rabbit.example//", **settings})
    return app


def place(client: Any) -> tuple[Any, ...]:
    """Return host, port, database and password of a client."""
    options = client.connection_pool.connection_kwargs
    return options.get("host"), options.get("port", 6379), options.get("db", 0), options.get("password")


def sentinels(client: Any) -> tuple[str, list[tuple[str, int]]]:
    """Return the name of the primary and the addresses of the sentinels of a client."""
    pool = client.connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    nodes = [node.connection_pool.connection_kwargs for node in pool.sentinel_manager.sentinels]
    return pool.service_name, [(node["host"], node["port"]) for node in nodes]


class TestTheUrl:
    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            ({"broker_url": "redis://one:1/2"}, ("one", 1, 2, None)),
            ({"broker_url": "redis://:p%40ss@one:1/2"}, ("one", 1, 2, "p@ss")),
            ({"result_backend": "redis://two:2/3"}, ("two", 2, 3, None)),
            ({"redis_queue_url": "redis://three:3/4"}, ("three", 3, 4, None)),
            ({"broker_url": "redis://one:1/2", "result_backend": "redis://two:2/3"}, ("one", 1, 2, None)),
            ({"broker_url": "redis://one:1/2", "redis_queue_url": "redis://three:3/4"}, ("three", 3, 4, None)),
            ({"broker_url": "redis://one:1/2", "redis_queue_url": ""}, ("one", 1, 2, None)),
            ({"broker_url": "redis://one:1/2", "redis_queue_url": None}, ("one", 1, 2, None)),
            ({"broker_url": "memory://", "result_backend": "redis://two:2/3"}, ("two", 2, 3, None)),
            ({"broker_url": ["redis://one:1/2"]}, ("one", 1, 2, None)),
        ],
        ids=str,
    )
    def test_is_redis_queue_url_else_the_broker_else_the_result_backend(
        self, settings: dict[str, Any], expected: tuple[Any, ...]
    ) -> None:
        assert place(Store(app_with(**settings)).client) == expected

    def test_may_be_a_unix_socket_in_kombus_spelling(self) -> None:
        client: Any = Store(app_with(broker_url="redis+socket:///run/redis.sock")).client

        assert client.connection_pool.connection_kwargs["path"] == "/run/redis.sock"

    def test_may_name_the_database_of_a_unix_socket_as_kombu_does(self) -> None:
        client: Any = Store(app_with(broker_url="redis+socket:///run/redis.sock?virtual_host=3")).client

        assert client.connection_pool.connection_kwargs["path"] == "/run/redis.sock"
        assert client.connection_pool.connection_kwargs["db"] == 3

    @pytest.mark.parametrize(
        ("value", "meaning"),
        [("required", "required"), ("CERT_REQUIRED", "required"), ("CERT_NONE", "none"), ("none", "none")],
    )
    def test_may_say_how_certificates_are_checked_in_celerys_spelling(self, value: str, meaning: str) -> None:
        client: Any = Store(app_with(broker_url=f"rediss://one:1/2?ssl_cert_reqs={value}")).client
        connection = client.connection_pool.connection_class(**client.connection_pool.connection_kwargs)

        assert connection.cert_reqs.name == f"CERT_{meaning.upper()}"

    @pytest.mark.parametrize(
        "broker_url",
        [
            "sentinel://one:1;sentinel://two:2;sentinel://three:3/4",
            ["sentinel://one:1", "sentinel://two:2", "sentinel://three:3/4"],
        ],
        ids=["one string", "a list"],
    )
    def test_may_be_celerys_list_of_sentinels(self, broker_url: Any) -> None:
        app = app_with(broker_url=broker_url, broker_transport_options={"master_name": "primary"})

        assert sentinels(Store(app).client) == ("primary", [("one", 1), ("two", 2), ("three", 3)])

    def test_may_be_the_sentinels_of_the_result_backend(self) -> None:
        app = app_with(
            result_backend="sentinel://one:1;sentinel://two:2",
            result_backend_transport_options={"master_name": "primary"},
        )

        assert sentinels(Store(app).client) == ("primary", [("one", 1), ("two", 2)])

    def test_of_sentinels_needs_the_name_of_the_primary(self) -> None:
        with pytest.raises(ConfigurationError, match="master_name"):
            Store(app_with(broker_url="sentinel://one:1;sentinel://two:2"))

    def test_may_have_the_word_sentinel_in_the_name_of_a_host(self) -> None:
        app = app_with(broker_url="redis://sentinel-proxy:1/2", broker_transport_options={"master_name": "primary"})

        assert place(Store(app).client) == ("sentinel-proxy", 1, 2, None)

    def test_is_missing_where_nothing_is_a_redis(self) -> None:
        for settings in ({}, {"result_backend": "rpc://"}, {"broker_url": None}, {"broker_url": "memory://"}):
            with pytest.raises(ConfigurationError, match="redis_queue_url"):
                Store(app_with(**settings))

    @pytest.mark.parametrize(
        "url", ["amqp://guest:secret@rabbit//", "sqs://", "localhost", "http://:secret@one", "me:secret@one:6379"]
    )
    def test_is_refused_where_it_is_no_redis_and_no_password_is_told(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="redis_queue_url") as refused:
            Store(app_with(broker_url="redis://one:1/2", redis_queue_url=url))

        assert "secret" not in str(refused.value)

    def test_of_several_brokers_is_not_guessed(self) -> None:
        with pytest.raises(ConfigurationError, match="redis_queue_url"):
            Store(app_with(broker_url="redis://one:1/3;redis://two:2/3"))

    def test_comes_from_a_namespaced_configuration_too(self) -> None:
        class Configuration:
            CELERY_BROKER_URL = "amqp://rabbit.example//"
            CELERY_REDIS_QUEUE_URL = "redis://three:3/4"
            CELERY_REDIS_QUEUE_PREFIX = "shop"
            CELERY_REDIS_QUEUE_DELAY_QUEUE = "later"

        app = Celery("tests", set_as_current=False)
        app.config_from_object(Configuration, namespace="CELERY")
        store = Store(app)

        assert place(store.client) == ("three", 3, 4, None)
        assert (store.prefix, store.delay_queue_name) == ("shop", "later")


class TestTheQueues:
    def test_carry_the_prefix_and_the_name_of_the_configuration(self, redis_url: str, client: redis.Redis) -> None:
        store = Store(app_with(redis_queue_url=redis_url, redis_queue_prefix="shop", redis_queue_delay_queue="later"))

        store.queue("lines").put("x")
        push_task(store.delay_queue(), "shop.remind")

        assert [(known.kind, known.name) for known in store.known()] == [("delay", "later"), ("queue", "lines")]
        assert RedisQueue("lines", client, prefix="shop").stats().ready == 1
        assert DelayQueue("later", client, prefix="shop").stats().due == 1

    def test_have_defaults(self, redis_url: str, client: redis.Redis) -> None:
        store = Store(app_with(redis_queue_url=redis_url))

        assert (store.prefix, store.delay_queue().name) == ("redis_queue", "celery")

    def test_are_opened_with_the_settings_that_they_were_written_with(
        self, redis_url: str, client: redis.Redis
    ) -> None:
        DelayQueue("celery", client, shards=3, max_deliveries=7).push({})
        RedisQueue("lines", client, max_deliveries=2).put("x")
        store = Store(app_with(redis_queue_url=redis_url))

        delayed = store.delay_queue()
        assert (delayed.settings.shards, delayed.settings.max_deliveries) == (3, 7)
        opened = {known.name: store.open(known) for known in store.known()}
        assert isinstance(opened["lines"], RedisQueue)
        assert isinstance(opened["celery"], DelayQueue)
        assert opened["lines"].settings.max_deliveries == 2
        assert opened["celery"].settings.shards == 3

    def test_belong_to_one_store_per_app(self, redis_url: str) -> None:
        first, second = app_with(redis_queue_url=redis_url), app_with(redis_queue_url=redis_url)

        assert Store.of(first) is Store.of(first)
        assert Store.of(first) is not Store.of(second)

    def test_need_no_redis_until_they_are_used(self) -> None:
        store = Store.of(app_with(redis_queue_url="unix:///nonexistent/redis.sock"))

        assert store.queue("lines").name == "lines"


def test_a_sentinel_set_can_be_broker_and_store(sentinel: SentinelSet, sentinel_client: redis.Redis) -> None:
    url = ";".join(f"sentinel://{server.address[0]}:{server.port}" for server in sentinel.sentinels)
    app = app_with(broker_url=url, broker_transport_options={"master_name": sentinel.master_name})
    queue = Store.of(app).delay_queue()
    push_task(queue, "shop.remind", id="call")

    assert Dispatcher(app, queue).run() == Dispatched(sent=1)

    assert sentinel_client.llen("celery") == 1
    app.close()
