"""Store: the Redis that holds the queues of an app, and the settings of the queues."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from redis.credentials import UsernamePasswordCredentialProvider
from redis.sentinel import SentinelConnectionPool

from redis_queue import ConfigurationError, DelayQueue, RedisQueue, connect
from redis_queue.celery import Dispatched, Dispatcher, Store, push_task
from tests.support.ports import HOST
from tests.support.sentinel import SentinelSet
from tests.support.servers import RedisServer


def app_with(**settings: Any) -> Celery:
    """Return an app that never connects to its broker."""
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


class TestUrl:
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

    def test_may_be_a_unix_socket_in_the_syntax_of_kombu(self) -> None:
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
    def test_may_set_ssl_cert_reqs_in_the_syntax_of_celery(self, value: str, meaning: str) -> None:
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
    def test_may_be_a_list_of_sentinels_in_the_syntax_of_celery(self, broker_url: Any) -> None:
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

    def test_may_have_the_word_sentinel_in_a_host_name(self) -> None:
        app = app_with(broker_url="redis://sentinel-proxy:1/2", broker_transport_options={"master_name": "primary"})

        assert place(Store(app).client) == ("sentinel-proxy", 1, 2, None)

    def test_is_missing_without_any_redis(self) -> None:
        for settings in ({}, {"result_backend": "rpc://"}, {"broker_url": None}, {"broker_url": "memory://"}):
            with pytest.raises(ConfigurationError, match="redis_queue_url"):
                Store(app_with(**settings))

    @pytest.mark.parametrize(
        "url", ["amqp://guest:secret@rabbit//", "sqs://", "localhost", "http://:secret@one", "me:secret@one:6379"]
    )
    def test_is_refused_if_it_is_not_redis_without_revealing_a_password(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="redis_queue_url") as refused:
            Store(app_with(broker_url="redis://one:1/2", redis_queue_url=url))

        assert "secret" not in str(refused.value)

    def test_is_required_with_several_brokers(self) -> None:
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


class Login(UsernamePasswordCredentialProvider):
    """Credentials without arguments."""

    def __init__(self) -> None:
        super().__init__("someone", "known")


def options(client: Any, *names: str) -> list[Any]:
    return [client.connection_pool.connection_kwargs.get(name) for name in names]


@pytest.fixture(scope="module")
def over_tls() -> Iterator[RedisServer]:
    """A server that speaks TLS only, with an unknown certificate."""
    with RedisServer(tls=True) as server:
        yield server


class TestConnectionSettings:
    @pytest.mark.parametrize("scheme", ["redis", "rediss"])
    @pytest.mark.parametrize("checked", [True, False])
    def test_use_tls_like_the_broker(self, over_tls: RedisServer, scheme: str, checked: bool) -> None:
        authority = str(over_tls.directory / "ca.crt")
        tls = {"ssl_ca_certs": authority} if checked else {"ssl_cert_reqs": ssl.CERT_NONE}
        app = app_with(broker_url=f"{scheme}://{HOST}:{over_tls.port}/0", broker_use_ssl=tls)

        push_task(Store(app).delay_queue(), "shop.remind")

        with app.connection_for_write() as connection:
            assert connection.default_channel.client.ping()
        with connect(Store(app).url) as client:
            assert client.ping(), "expected the URL alone to enable TLS"

    def test_use_tls_like_the_result_backend(self) -> None:
        client: Any = Store(
            app_with(
                result_backend="rediss://one:1/2?ssl_cert_reqs=CERT_OPTIONAL",
                redis_backend_use_ssl={"ssl_ca_certs": "/ca", "ssl_cert_reqs": "none", "ssl_certfile": None},
            )
        ).client

        assert client.connection_pool.connection_class is redis.SSLConnection
        assert options(client, "ssl_ca_certs", "ssl_cert_reqs", "ssl_certfile") == ["/ca", "optional", None]

    def test_tls_options_in_the_broker_url_win_as_in_kombu(self) -> None:
        client: Any = Store(
            app_with(broker_url="rediss://one:1/2?ssl_ca_certs=/ca", broker_use_ssl={"ssl_cert_reqs": ssl.CERT_NONE})
        ).client

        assert options(client, "ssl_ca_certs", "ssl_cert_reqs") == ["/ca", None]

    def test_may_have_values_that_a_url_cannot_express(self) -> None:
        tls = {"ssl_min_version": ssl.TLSVersion.TLSv1_2, "ssl_check_hostname": False, "ssl_cert_reqs": None}
        store = Store(app_with(broker_url="redis://one:1/2", broker_use_ssl=tls))

        assert store.url == "rediss://one:1/2?ssl_check_hostname=false&ssl_cert_reqs=none"
        assert options(store.client, "ssl_check_hostname", "ssl_cert_reqs") == [False, "none"]
        assert options(store.client, "ssl_min_version") == [ssl.TLSVersion.TLSv1_2]

    def test_do_not_apply_to_another_redis(self) -> None:
        settings = {
            "broker_use_ssl": {"ssl_cert_reqs": ssl.CERT_NONE},
            "redis_backend_use_ssl": {"ssl_cert_reqs": ssl.CERT_NONE},
            "broker_user": "broker",
            "broker_password": "secret",
        }
        for url in ({"redis_queue_url": "redis://one:1/2"}, {"broker_url": "redis+socket:///run/redis.sock"}):
            client: Any = Store(app_with(**settings, **url)).client
            assert client.connection_pool.connection_class is not redis.SSLConnection
        assert place(Store(app_with(**settings, redis_queue_url="redis://one:1/2")).client) == ("one", 1, 2, None)
        assert place(Store(app_with(**settings, result_backend="redis://two:2/3")).client) == ("two", 2, 3, None)

    @pytest.mark.parametrize("setting", [True, False, None])
    def test_tls_is_off_without_its_options(self, setting: Any) -> None:
        assert Store(app_with(broker_url="redis://one:1/2", broker_use_ssl=setting)).url == "redis://one:1/2"

    @pytest.mark.parametrize(
        ("settings", "expected"),
        [
            ({"broker_url": "redis://one:1/2", "broker_password": "p@ss"}, [None, "p@ss"]),
            ({"broker_url": "redis://one:1/2", "broker_user": "me", "broker_password": "p@ss"}, ["me", "p@ss"]),
            ({"broker_url": "redis://you:own@one:1/2", "broker_user": "me"}, ["you", "own"]),
            ({"broker_url": "redis://one:1/2", "broker_password": lambda: "p@ss"}, [None, None]),
            ({"broker_url": "sentinel://one:1;sentinel://two:2", "broker_password": "p@ss"}, [None, "p@ss"]),
            ({"result_backend": "redis://one:1/2", "redis_username": "me", "redis_password": "p"}, ["me", "p"]),
        ],
        ids=["a password", "both", "the url has one", "a function", "sentinels", "results"],
    )
    def test_add_the_credentials_that_the_url_lacks(self, settings: dict[str, Any], expected: list[Any]) -> None:
        app = app_with(broker_transport_options={"master_name": "primary"}, **settings)

        assert options(Store(app).client, "username", "password") == expected

    @pytest.mark.parametrize(
        "settings",
        [
            {"broker_url": f"redis://me:mine@one:1/2?credential_provider={__name__}.Login"},
            {"redis_queue_url": f"redis://one:1/2?credential_provider={__name__}.Login"},
            {"result_backend": "redis://:mine@one:1/2", "redis_backend_credential_provider": f"{__name__}.Login"},
            {"result_backend": "redis://one:1/2", "redis_backend_credential_provider": Login()},
            {"broker_url": f"sentinel://me:mine@one:1/2?credential_provider={__name__}.Login"},
        ],
        ids=["broker", "own", "results", "an object", "sentinels"],
    )
    def test_may_have_a_credential_provider(self, settings: dict[str, Any]) -> None:
        client: Any = Store(app_with(broker_transport_options={"master_name": "primary"}, **settings)).client

        assert isinstance(client.connection_pool.connection_kwargs["credential_provider"], Login)
        assert options(client, "username", "password") == [None, None]
        assert client.connection_pool.make_connection()

    @pytest.mark.parametrize("name", ["tests.celery.nowhere.Login", f"{__name__}.app_with", f"{__name__}.HOST"])
    def test_invalid_credential_provider_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigurationError, match=f"credential_provider='{name}'"):
            Store(app_with(broker_url=f"redis://one:1/2?credential_provider={name}"))

    @pytest.mark.parametrize("place", ["broker_url", "result_backend", "redis_queue_url"])
    def test_apply_to_the_sentinel_connections(self, place: str) -> None:
        named = {"master_name": "primary", "sentinel_kwargs": {"password": "watch"}}
        transport = "result_backend_transport_options" if place == "result_backend" else "broker_transport_options"
        client = Store(app_with(**{place: "sentinel://one:1;sentinel://two:2", transport: named})).client

        pool: Any = client.connection_pool
        watchers = [watcher.connection_pool.connection_kwargs for watcher in pool.sentinel_manager.sentinels]
        assert [watcher["password"] for watcher in watchers] == ["watch", "watch"]
        assert named["sentinel_kwargs"] == {"password": "watch"}, "expected unchanged settings"

    def test_use_tls_for_the_servers_that_sentinels_report(self) -> None:
        client: Any = Store(
            app_with(
                broker_url="sentinel://one:1;sentinel://two:2",
                broker_transport_options={"master_name": "primary"},
                broker_use_ssl={"ssl_cert_reqs": ssl.CERT_NONE, "ssl_check_hostname": False},
            )
        ).client

        assert sentinels(client) == ("primary", [("one", 1), ("two", 2)])
        assert issubclass(client.connection_pool.connection_class, redis.SSLConnection)
        assert options(client, "ssl_cert_reqs", "ssl_check_hostname") == ["none", False]

    def test_do_not_rename_the_primary_of_another_set_of_sentinels(self) -> None:
        app = app_with(
            redis_queue_url="sentinel://one:1?master_name=other",
            broker_url="sentinel://two:2",
            broker_transport_options={"master_name": "primary"},
        )

        assert sentinels(Store(app).client) == ("other", [("one", 1)])


class TestQueues:
    def test_have_the_configured_prefix_and_name(self, redis_url: str, client: redis.Redis) -> None:
        store = Store(app_with(redis_queue_url=redis_url, redis_queue_prefix="shop", redis_queue_delay_queue="later"))

        store.queue("lines").put("x")
        push_task(store.delay_queue(), "shop.remind")

        assert [(known.kind, known.name) for known in store.catalog.known()] == [("delay", "later"), ("queue", "lines")]
        assert RedisQueue("lines", client, prefix="shop").stats().ready == 1
        assert DelayQueue("later", client, prefix="shop").stats().due == 1

    def test_have_defaults(self, redis_url: str, client: redis.Redis) -> None:
        store = Store(app_with(redis_queue_url=redis_url))

        assert (store.prefix, store.delay_queue().name) == ("redis_queue", "scheduled")

    def test_are_opened_with_their_stored_settings(self, redis_url: str, client: redis.Redis) -> None:
        DelayQueue("scheduled", client, shards=3, max_deliveries=7).push({})
        RedisQueue("lines", client, max_deliveries=2).put("x")
        store = Store(app_with(redis_queue_url=redis_url))

        delayed = store.delay_queue()
        assert (delayed.settings.shards, delayed.settings.max_deliveries) == (3, 7)
        opened = {known.name: store.catalog.open(known) for known in store.catalog.known()}
        assert isinstance(opened["lines"], RedisQueue)
        assert isinstance(opened["scheduled"], DelayQueue)
        assert opened["lines"].settings.max_deliveries == 2
        assert opened["scheduled"].settings.shards == 3

    def test_belong_to_one_store_per_app(self, redis_url: str) -> None:
        first, second = app_with(redis_queue_url=redis_url), app_with(redis_queue_url=redis_url)

        assert Store.of(first) is Store.of(first)
        assert Store.of(first) is not Store.of(second)

    def test_do_not_connect_before_their_first_use(self) -> None:
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


OF_THE_BROKER = {
    "socket_timeout": 2,
    "socket_connect_timeout": 1.5,
    "socket_keepalive": False,
    "health_check_interval": 30,
    "visibility_timeout": 60,
}


class TestSocketsOfTheStore:
    """If the store is the broker, the broker's socket options apply to it."""

    def sockets(self, **settings: Any) -> list[Any]:
        """Return the timeouts and the keepalive of the app's store."""
        store = Store(app_with(broker_transport_options=OF_THE_BROKER, **settings))
        options = store.client.connection_pool.connection_kwargs
        return [options.get(name) for name in OF_THE_BROKER]

    def test_are_those_of_the_broker(self) -> None:
        told = [2, 1.5, False, 30, None]
        assert self.sockets(broker_url="redis://one:1/2") == told
        assert self.sockets(broker_url="redis://one:1/2", redis_queue_url="redis://one:1/2") == told
        assert self.sockets(broker_url="sentinel://one:1/2?master_name=main") == told

    def test_of_a_unix_socket_have_no_keepalive(self) -> None:
        assert self.sockets(broker_url="redis+socket:///run/redis.sock") == [2, 1.5, None, 30, None]

    def test_are_those_of_the_url_first(self) -> None:
        assert self.sockets(broker_url="redis://one:1/2?socket_timeout=7")[:2] == [7.0, 1.5]

    def test_of_another_redis_have_their_own_timeouts(self) -> None:
        own = [5.0, 3.0, True, None, None]
        assert self.sockets(redis_queue_url="redis://three:3/4") == own
        assert self.sockets(broker_url="redis://one:1/2", redis_queue_url="redis://three:3/4") == own
        unset = {"broker_transport_options": {"socket_timeout": None}}
        client = Store(app_with(broker_url="redis://one:1/2", **unset)).client
        assert client.connection_pool.connection_kwargs["socket_timeout"] == 5.0  # type: ignore[union-attr]

    @pytest.mark.parametrize("value", ["2", -1, 0, True, float("nan")])
    def test_with_an_invalid_timeout_are_refused(self, value: object) -> None:
        options = {"socket_timeout": value}
        with pytest.raises(ConfigurationError, match=r"broker_transport_options: socket_timeout=.*must be a number"):
            Store(app_with(broker_url="redis://one:1/2", broker_transport_options=options))
