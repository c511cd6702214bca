"""Each form of URL makes the right client without a connection; each mistake in a URL raises a clear error."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import redis
import redis.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.credentials import UsernamePasswordCredentialProvider
from redis.sentinel import SentinelConnectionPool

from redis_queue import ConfigurationError, connect
from redis_queue.basics.logs import hide_secrets

SECRET = "s3cr3t"
relaxed = settings(deadline=None)


def options_of(url: str, **options: Any) -> dict[str, Any]:
    client = connect(url, check=False, **options)
    assert isinstance(client, redis.Redis)
    found: dict[str, Any] = client.connection_pool.connection_kwargs
    return found


def values(found: dict[str, Any], *names: str) -> list[Any]:
    return [found.get(name) for name in names]


class TestStandalone:
    def test_host_port_and_database(self) -> None:
        assert values(options_of("redis://cache.example:6380/3"), "host", "port", "db") == ["cache.example", 6380, 3]
        assert values(options_of("redis://cache.example"), "host", "port", "db") == ["cache.example", None, None]
        assert values(options_of("redis://[::1]:6380/0"), "host", "port") == ["::1", 6380]

    def test_user_and_password_are_decoded(self) -> None:
        found = options_of("redis://us%40er:p%2Fw%3A%40@h/0")
        assert values(found, "username", "password") == ["us@er", "p/w:@"]
        assert values(options_of("redis://:pw@h/0"), "password") == ["pw"]

    def test_tls(self) -> None:
        client = connect("rediss://h:6380/0?ssl_ca_certs=/ca.pem", check=False)
        assert isinstance(client, redis.Redis)
        assert client.connection_pool.connection_class is redis.SSLConnection
        assert client.connection_pool.connection_kwargs["ssl_ca_certs"] == "/ca.pem"

    @pytest.mark.parametrize("scheme", ["unix", "redis+socket"])
    def test_a_unix_socket(self, scheme: str) -> None:
        client = connect(f"{scheme}://:pw@/run/redis.sock?db=2", check=False)
        assert isinstance(client, redis.Redis)
        assert client.connection_pool.connection_class is redis.UnixDomainSocketConnection
        assert values(client.connection_pool.connection_kwargs, "path", "db", "password") == [
            "/run/redis.sock",
            2,
            "pw",
        ]

    def test_time_is_limited_and_nothing_is_sent_twice(self) -> None:
        found = options_of("redis://h/0")
        assert values(found, "socket_timeout", "socket_connect_timeout", "socket_keepalive") == [5.0, 3.0, True]
        attempts = []

        def fail() -> None:
            attempts.append(1)
            raise redis.ConnectionError

        with pytest.raises(redis.ConnectionError):
            found["retry"].call_with_retry(fail, lambda _error: None)
        assert len(attempts) == 1

    def test_options_override_the_url_and_the_url_overrides_the_defaults(self) -> None:
        assert values(options_of("redis://h/1?socket_timeout=2.5"), "socket_timeout") == [2.5]
        assert values(options_of("redis://h/1?client_name=me"), "client_name", "db") == ["me", 1]
        found = options_of("redis://:old@h/1?client_name=me", client_name="you", password="new", db=2)
        assert values(found, "client_name", "password", "db") == ["you", "new", 2]
        found = options_of("redis+sentinel://:old@h/1?master_name=m&client_name=me", password="new", db=2)
        assert values(found, "client_name", "password", "db") == ["me", "new", 2]

    @pytest.mark.parametrize("url", ["redis://you:old@h/1", "redis+sentinel://you:old@h/1?master_name=main"])
    def test_a_credential_provider_overrides_the_login_of_the_url(self, url: str) -> None:
        knows = UsernamePasswordCredentialProvider("me", "mine")
        found = options_of(url, credential_provider=knows)
        assert found["credential_provider"] is knows
        assert values(found, "username", "password") == [None, None]


class TestSentinel:
    def pool(self, url: str, **options: Any) -> SentinelConnectionPool:
        client = connect(url, check=False, **options)
        assert isinstance(client, redis.Redis)
        assert isinstance(client.connection_pool, SentinelConnectionPool)
        return client.connection_pool

    def watchers(self, pool: SentinelConnectionPool) -> list[tuple[str, int]]:
        found = [watcher.connection_pool.connection_kwargs for watcher in pool.sentinel_manager.sentinels]
        return [(kwargs["host"], kwargs["port"]) for kwargs in found]

    @pytest.mark.parametrize("name", ["master_name", "service_name"])
    def test_a_list_of_hosts(self, name: str) -> None:
        pool = self.pool(f"redis+sentinel://a:1,b,[::1]:3/2?{name}=main")
        assert self.watchers(pool) == [("a", 1), ("b", 26379), ("::1", 3)]
        assert pool.service_name == "main"
        assert pool.is_master
        assert pool.connection_kwargs["db"] == 2

    def test_a_list_of_celery(self) -> None:
        url = "sentinel://a:1;sentinel://b:2;sentinel://c"
        pool = self.pool(url, master_name="main")
        assert self.watchers(pool) == [("a", 1), ("b", 2), ("c", 26379)]
        assert pool.service_name == "main"

    def test_a_list_of_celery_with_databases_and_passwords(self) -> None:
        url = "sentinel://:pw@a:1/5;sentinel://:pw@b:2/5;"
        pool = self.pool(url, master_name="main")
        assert self.watchers(pool) == [("a", 1), ("b", 2)]
        assert values(pool.connection_kwargs, "password", "db") == ["pw", 5]

    def test_a_list_of_celery_may_end_with_options(self) -> None:
        pool = self.pool("sentinel://a:1;sentinel://b:2/5?master_name=main")
        assert self.watchers(pool) == [("a", 1), ("b", 2)]
        assert pool.service_name == "main"

    def test_user_and_password_are_those_of_redis(self) -> None:
        pool = self.pool("redis+sentinel://us%40er:p%2Fw@a:1,b:2/0?master_name=main")
        assert values(pool.connection_kwargs, "username", "password") == ["us@er", "p/w"]
        watcher = pool.sentinel_manager.sentinels[0].connection_pool.connection_kwargs
        assert watcher.get("password") is None
        pool = self.pool("redis+sentinel://a:1/0?master_name=main", sentinel_kwargs={"password": "other"})
        assert pool.sentinel_manager.sentinels[0].connection_pool.connection_kwargs["password"] == "other"

    def test_tls(self) -> None:
        pool = self.pool("rediss+sentinel://a:1/0?master_name=main")
        assert issubclass(pool.connection_class, redis.SSLConnection)

    def test_time_is_limited_for_servers_and_watchers(self) -> None:
        pool = self.pool("redis+sentinel://a:1/0?master_name=main&socket_timeout=2.5")
        assert pool.connection_kwargs["socket_timeout"] == 2.5
        assert pool.sentinel_manager.sentinels[0].connection_pool.connection_kwargs["socket_timeout"] == 2.5


class TestCluster:
    @pytest.fixture
    def clusters(self, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
        """The options of the created cluster clients; they are only recorded, since the real class connects at once."""
        created: list[dict[str, Any]] = []

        class Recorded(redis.RedisCluster):
            def __init__(self, **options: Any) -> None:
                created.append(options)

            def __del__(self) -> None:
                """Nothing to close."""

        monkeypatch.setattr(redis, "RedisCluster", Recorded)
        return created

    def test_a_list_of_hosts(self, clusters: list[dict[str, Any]]) -> None:
        connect("redis+cluster://us%40er:p%2Fw@a:1,b,[::1]:3/?socket_timeout=2.5", check=False)
        (found,) = clusters
        assert [(node.host, node.port) for node in found["startup_nodes"]] == [("a", 1), ("b", 6379), ("::1", 3)]
        assert values(found, "username", "password", "socket_timeout") == ["us@er", "p/w", 2.5]

    def test_tls_and_database_zero(self, clusters: list[dict[str, Any]]) -> None:
        connect("rediss+cluster://a:1/0", check=False)
        assert values(clusters[0], "ssl", "db") == [True, None]

    def test_another_database_is_refused(self, clusters: list[dict[str, Any]]) -> None:
        with pytest.raises(ConfigurationError, match="db: must be 0"):
            connect("redis+cluster://a:1/2", check=False)
        assert clusters == []


def test_a_client_is_returned_unchanged() -> None:
    client = redis.Redis()
    assert connect(client, check=False) is client
    with pytest.raises(ConfigurationError, match="options db, socket_timeout: must come with a URL"):
        connect(client, check=False, socket_timeout=1, db=2)


MISTAKES = {
    "no scheme": "{secret}@h:6379/0",
    "a user but no scheme": "user:{secret}@h:6379/0",
    "a password before the scheme": "user:{secret}@redis://h/0",
    "an unknown scheme": "amqp://user:{secret}@h/0",
    "http": "http://user:{secret}@h/0",
    "one slash": "redis:/user:{secret}@h/0",
    "a port of letters": "redis://user:{secret}@h:abc/0",
    "a port out of range": "redis://user:{secret}@h:99999/0",
    "a tls port of letters": "rediss://user:{secret}@h:abc/0",
    "a sentinel port of letters": "redis+sentinel://user:{secret}@h:abc/0?master_name=m",
    "a sentinel port out of range": "redis+sentinel://user:{secret}@h:99999/0?master_name=m",
    "a celery sentinel port of letters": "sentinel://user:{secret}@h:1;sentinel://user:{secret}@i:abc/0?master_name=m",
    "a cluster port of letters": "redis+cluster://user:{secret}@h:1,i:abc/",
    "a cluster port out of range": "redis+cluster://user:{secret}@h:99999/",
    "an unknown option": "redis://user:{secret}@h/0?nope=1",
    "an unknown tls option": "rediss://user:{secret}@h/0?nope=1",
    "an unknown way to check certificates": "rediss://user:{secret}@h/0?ssl_cert_reqs=perhaps",
    "a password where certificates are checked": "rediss://h/0?ssl_cert_reqs={secret}",
    "an unknown socket option": "unix://user:{secret}@/run/redis.sock?nope=1",
    "an unknown sentinel option": "redis+sentinel://user:{secret}@h:1/0?master_name=m&nope=1",
    "an unknown cluster option": "redis+cluster://user:{secret}@h:1/?nope=1",
    "a bad value": "redis://user:{secret}@h/0?socket_timeout=soon",
    "a bad sentinel value": "redis+sentinel://user:{secret}@h:1/0?master_name=m&socket_timeout=soon",
    "a bad sentinel database": "redis+sentinel://user:{secret}@h:1/two?master_name=m",
    "how to ask sentinels": 'redis+sentinel://h:1/0?master_name=m&sentinel_kwargs={{"password":"{secret}"}}',
    "who knows the login": "redis://h/0?credential_provider={secret}",
    "no primary": "redis+sentinel://user:{secret}@h:1/0",
    "no sentinel": "redis+sentinel://user:{secret}@/0?master_name=m",
    "no cluster node": "redis+cluster://user:{secret}@/",
    "a database in a cluster": "redis+cluster://user:{secret}@h:1/3",
    "a password as option": "redis://h/0?password={secret}&nope=1",
    "a slash in the password": "redis://user:pre/{secret}@h:6379x/0",
    "a slash behind the password": "redis://user:{secret}/post@h:6379/0",
    "a question mark in the password": "redis://user:pre?{secret}@h:6379x/0",
    "a hash in the password": "redis://user:pre#{secret}@h:6379x/0",
    "an at sign in the password": "redis://user:pre@{secret}@h:6379x/0",
    "an at sign behind the password": "redis://user:{secret}@post@h:6379x/0",
}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail the test when a connection is opened."""

    def fail(*_arguments: Any, **_options: Any) -> Any:
        pytest.fail("a connection was opened")

    monkeypatch.setattr("redis.connection.AbstractConnection.connect", fail)
    monkeypatch.setattr("redis.connection.AbstractConnection.connect_check_health", fail, raising=False)


def attempt(call: Callable[[], Any]) -> ConfigurationError:
    """Return the ConfigurationError that *call* raises."""
    with pytest.raises(ConfigurationError) as caught:
        call()
    return caught.value


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_raises_before_any_connection_and_without_the_password(mistake: str) -> None:
    error = attempt(lambda: connect(MISTAKES[mistake].format(secret=SECRET)))
    shown = "".join(traceback.format_exception(error)) + repr(error)
    assert SECRET not in shown
    assert "\n" not in str(error)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("scheme", ["redis", "rediss", "unix", "redis+sentinel", "redis+cluster"])
def test_an_unknown_keyword_option_is_named(scheme: str) -> None:
    url = f"{scheme}://:{SECRET}@h:1/0?master_name=m" if "sentinel" in scheme else f"{scheme}://:{SECRET}@h:1/0"
    assert "nope" in str(attempt(lambda: connect(url, nope=1)))


def test_the_error_for_an_unknown_scheme_names_the_known_ones() -> None:
    error = attempt(lambda: connect("amqp://h"))
    assert str(error).startswith("url scheme='amqp': must be one of redis, rediss, unix, redis+sentinel")


printable = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=12)


class TestRedact:
    @relaxed
    @given(
        st.sampled_from(["redis", "rediss", "unix", "redis+sentinel", "sentinel", "redis+cluster"]),
        st.sampled_from(["", "user"]),
        printable,
    )
    def test_any_password_is_redacted(self, scheme: str, user: str, password: str) -> None:
        shown = hide_secrets(f"Error in {scheme}://{user}:{password}{SECRET}@host:6379/0?db=1 here")
        assert SECRET not in shown
        assert shown.endswith("@host:6379/0?db=1 here")
        assert shown.startswith(f"Error in {scheme}://")

    def test_each_url_of_a_list_is_redacted(self) -> None:
        shown = hide_secrets(f"sentinel://:{SECRET}@a:1;sentinel://user:{SECRET}@b:2, redis://{SECRET}@c")
        assert shown == "sentinel://***@a:1;sentinel://***@b:2, redis://***@c"

    def test_a_password_among_the_options_is_redacted(self) -> None:
        for option in ("password", "ssl_password", "sentinel_password"):
            assert SECRET not in hide_secrets(f"redis://h/0?db=1&{option}={SECRET}&x=y")

    @pytest.mark.parametrize(
        "text", ["redis://h:6379/0", "unix:///run/redis.sock?db=1", "mail a@b.example", "a // b", "", "redis://a,b:1/x"]
    )
    def test_text_without_a_password_is_unchanged(self, text: str) -> None:
        assert hide_secrets(text) == text
