"""Redis is unreachable, refuses the login or is unsuitable for queues: one clear error that shows no password."""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from redis_queue import (
    DelayQueue,
    RedisQueue,
    StoreRefusedError,
    StoreUnavailableError,
    UnsupportedServerError,
    connect,
)
from redis_queue.queue.claims import QueueClaims
from redis_queue.store.connection import check_server
from tests.support.ports import HOST, free_port
from tests.support.servers import RedisServer, client_options
from tests.support.store.stage import VERBS, Stage, verbs

PASSWORD = "s3cr3t/p@ss:w0rd"


@pytest.fixture(scope="module")
def unreachable() -> redis.Redis:
    """A client of a closed port."""
    return redis.Redis(host=HOST, port=free_port(), **client_options())


class TestUnreachable:
    @verbs
    def test_every_verb_raises(self, stage: Stage, unreachable: redis.Redis, verb: str) -> None:
        with pytest.raises(StoreUnavailableError, match="cannot be reached") as caught:
            VERBS[verb].call(stage.on(unreachable))
        assert isinstance(caught.value, ConnectionError)
        assert isinstance(caught.value.__cause__, redis.ConnectionError)

    def test_connect_raises_at_once(self) -> None:
        for url in (f"redis://{HOST}:{free_port()}/0", "unix:///nowhere/redis.sock"):
            with pytest.raises(StoreUnavailableError):
                connect(url)
            with pytest.raises(StoreUnavailableError):
                RedisQueue("orders", url)
            assert connect(url, check=False)

    def test_a_blocking_get_tries_until_its_timeout(
        self, unreachable: redis.Redis, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        begin, attempts, claim = time.monotonic(), Counter[str](), QueueClaims._claim
        monkeypatch.setattr(QueueClaims, "_claim", lambda *given: (attempts.update(["claim"]), claim(*given))[1])
        with caplog.at_level(logging.WARNING), pytest.raises(StoreUnavailableError):
            RedisQueue("orders", unreachable).get(timeout=0.5)
        assert 0.5 <= time.monotonic() - begin < 3
        assert 3 <= attempts["claim"] <= 16, "expected several attempts with pauses"
        assert [record.message.partition(":")[0] for record in caplog.records] == ["Redis is away"]

    def test_a_get_that_does_not_block_fails_at_once(self, unreachable: redis.Redis) -> None:
        begin = time.monotonic()
        with pytest.raises(StoreUnavailableError):
            RedisQueue("orders", unreachable).get(block=False)
        assert time.monotonic() - begin < 1


@pytest.fixture(scope="module")
def locked() -> Iterator[RedisServer]:
    with RedisServer(tcp=True, password=PASSWORD) as server:
        yield server


class TestPassword:
    def wrong(self, server: RedisServer, password: str) -> str:
        return f"redis://:{password}@{HOST}:{server.port}/0"

    def assert_hidden(self, error: BaseException, *words: str) -> None:
        shown = "".join(traceback.format_exception(error)) + repr(error) + str(error)
        chain: BaseException | None = error
        while chain is not None:
            shown += str(chain) + repr(chain) + repr(chain.args)
            chain = chain.__cause__ or chain.__context__
        for word in words:
            assert word not in shown

    @pytest.mark.parametrize("login", [":wr0ng-guess@", "default:wr0ng-guess@", "nobody:wr0ng-guess@"])
    def test_a_wrong_password_is_refused_and_not_shown(self, locked: RedisServer, login: str) -> None:
        url = f"redis://{login}{HOST}:{locked.port}/0"
        for attempt in (lambda: connect(url), lambda: RedisQueue("orders", url), lambda: DelayQueue("orders", url)):
            with pytest.raises(StoreRefusedError, match="check user and password") as caught:
                attempt()
            self.assert_hidden(caught.value, "wr0ng-guess")

    def test_a_missing_password_is_refused(self, locked: RedisServer) -> None:
        with pytest.raises(StoreRefusedError, match="check user and password"):
            connect(f"redis://{HOST}:{locked.port}/0")

    def test_a_changed_password_is_refused_and_not_shown(
        self, locked: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = connect(f"redis://:wr0ng-guess@{HOST}:{locked.port}/0", check=False)
        for call in (
            lambda: RedisQueue("orders", client).put(1),
            lambda: RedisQueue("orders", client).get(timeout=1),
            lambda: DelayQueue("orders", client).push(1),
            lambda: DelayQueue("orders", client).move_due(),
        ):
            with pytest.raises(StoreRefusedError, match="check user and password") as caught:
                call()
            self.assert_hidden(caught.value, "wr0ng-guess")
        assert "wr0ng-guess" not in caplog.text

    def test_the_right_password_works_and_is_in_no_repr(self, locked: RedisServer) -> None:
        queue = RedisQueue("orders", locked.url)
        timed = DelayQueue("orders", locked.url)
        queue.put(1)
        timed.push(1)
        shown = "".join(map(repr, (queue, timed, queue.client, timed.client, queue.settings)))
        assert PASSWORD not in shown
        assert "s3cr3t" not in shown

    def test_a_password_in_the_url_of_an_unreachable_server_is_not_shown(self) -> None:
        for scheme, end in (
            ("redis", "/0"),
            ("rediss", "/0"),
            ("redis+cluster", ""),
            ("redis+sentinel", "/0?master_name=m"),
        ):
            url = f"{scheme}://user:s3cr3t-word@{HOST}:{free_port()}{end}"
            with pytest.raises(StoreUnavailableError) as caught:
                connect(url)
            self.assert_hidden(caught.value, "s3cr3t-word")


class TestServerCheck:
    @pytest.fixture
    def with_info(self, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Callable[..., redis.Redis]:
        """Make INFO return other values."""

        def patch(**facts: Any) -> redis.Redis:
            real = client.info()
            monkeypatch.setattr(client, "info", lambda *_: {**real, **facts})
            return client

        return patch

    @pytest.mark.parametrize("version", ["2.8.24", "5.0.14", "6.0.20", "6.1.240", "0", ""])
    def test_an_old_server_is_refused(self, with_info: Callable[..., redis.Redis], version: str) -> None:
        with pytest.raises(UnsupportedServerError, match=r"redis_version=.*: must be 6\.2 or later"):
            connect(with_info(redis_version=version))

    @pytest.mark.parametrize("version", ["6.2.0", "6.2.14", "7.0.15", "8.2.3", "10.0.1", "255.255.255"])
    def test_a_newer_server_is_accepted(self, with_info: Callable[..., redis.Redis], version: str) -> None:
        assert connect(with_info(redis_version=version))

    def test_a_server_that_may_evict_queues_is_refused(self) -> None:
        with RedisServer("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as server:
            for attempt in (connect, lambda url: RedisQueue("orders", url), lambda url: DelayQueue("orders", url)):
                with pytest.raises(UnsupportedServerError, match=r"allkeys-lru: must be noeviction"):
                    attempt(server.url)
            with server.client() as client:
                for policy in ("allkeys-random", "allkeys-lfu"):
                    client.config_set("maxmemory-policy", policy)
                    with pytest.raises(UnsupportedServerError, match=policy):
                        check_server(client)
                for policy in ("noeviction", "volatile-lru", "volatile-ttl"):
                    client.config_set("maxmemory-policy", policy)
                    check_server(client)

    def test_a_policy_that_may_evict_locks_is_warned_of(self, caplog: pytest.LogCaptureFixture) -> None:
        with RedisServer("--maxmemory", "100mb", "--maxmemory-policy", "volatile-ttl") as server:
            assert RedisQueue("orders", server.url).put(1)
        assert "maxmemory-policy=volatile-ttl: must be noeviction; Redis may evict held locks" in caplog.text

    def test_an_eviction_policy_without_a_memory_limit_is_only_warned_of(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with RedisServer("--maxmemory-policy", "allkeys-lru") as server, caplog.at_level(logging.WARNING):
            assert RedisQueue("orders", server.url).put(1)
        assert "maxmemory-policy=allkeys-lru: must be noeviction; Redis may evict queues" in caplog.text

    def test_a_read_only_replica_is_refused(self) -> None:
        with RedisServer(tcp=True) as primary, RedisServer("--replicaof", HOST, str(primary.port)) as replica:
            with pytest.raises(UnsupportedServerError, match="read-only replica; connect to its primary"):
                connect(replica.url)
            assert connect(primary.url)

    def test_a_primary_that_becomes_a_replica_is_unavailable(self) -> None:
        with RedisServer() as server, server.client() as client:
            queue = RedisQueue("orders", server.url)
            queue.put("kept")
            client.replicaof(HOST, 1)
            with pytest.raises(StoreUnavailableError, match="read-only replica"):
                queue.put("refused")
            with pytest.raises(StoreUnavailableError, match="read-only replica"):
                queue.get(block=False)
            client.replicaof("NO", "ONE")
            assert [message.body for message in queue.get_many(5)] == ["kept"]
