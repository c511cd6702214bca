"""Put real servers into states in which they refuse calls."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import redis

from redis_queue import StoreError, StoreUnavailableError
from tests.support.ports import HOST
from tests.support.servers import RedisServer
from tests.support.wait import wait_until, wait_until_settled

READS = frozenset(
    {
        *("peek", "stats", "still_mine", "versions", "dead_letters", "quarantined"),
        *("due_in", "find", "list", "count", "forecast", "timed stats", "timed dead_letters"),
        *("minutes", "dispatchers"),
    }
)
"""Read-only calls."""


HEADER = len(b"REDIS0009")
# Unknown to all servers and therefore ignored. Servers answer clients once in two megabytes while they load.
FILLER = b"\xfa\x01x\x80" + (2 << 20).to_bytes(4, "big") + b"x" * (2 << 20)
PACE = 0.002


@contextlib.contextmanager
def loading(server: RedisServer) -> Iterator[None]:
    """Restart `server` and keep it loading its data until the end of `with`; needs `--rdbchecksum no`.

    The dump is replaced by a pipe with a slow writer; every version reads it like a file.
    """
    dump = server.directory / "dump.rdb"
    with server.client() as client:
        client.save()
    server.kill()
    data = dump.read_bytes()
    dump.unlink()
    os.mkfifo(dump)
    enough = threading.Event()
    threads = [threading.Thread(target=_feed, args=(dump, data, enough)), threading.Thread(target=server.restart)]
    for thread in threads:
        thread.start()
    try:
        wait_until_settled(lambda: _loads(server), "the server to load")
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def _feed(dump: Path, data: bytes, enough: threading.Event) -> None:
    with dump.open("wb", buffering=0) as pipe:
        # Some servers open their dump a second time because of the page cache.
        dump.unlink()
        dump.write_bytes(data)
        pipe.write(data[:HEADER])
        while not enough.wait(PACE):
            pipe.write(FILLER)
        pipe.write(data[HEADER:])


def _loads(server: RedisServer) -> bool:
    with server.client() as client:
        return bool(client.info("persistence")["loading"])


@contextlib.contextmanager
def configured(server: RedisServer, inside: dict[str, Any], after: dict[str, Any]) -> Iterator[None]:
    """Set options of *server* for the block."""
    with server.client() as client:
        for name, value in inside.items():
            client.config_set(name, value)
        try:
            yield
        finally:
            for name, value in after.items():
                client.config_set(name, value)


@contextlib.contextmanager
def read_only(server: RedisServer) -> Iterator[None]:
    """Make it a read-only replica of a primary that does not exist."""
    with server.client() as client:
        client.replicaof(HOST, 1)
        try:
            yield
        finally:
            client.replicaof("NO", "ONE")


@contextlib.contextmanager
def cut_off(server: RedisServer) -> Iterator[None]:
    """Make it a replica of a primary that does not exist, and refuse to serve stale data."""
    name = "replica-serve-stale-data"
    with configured(server, {name: "no"}, {name: "yes"}), read_only(server):
        yield


@contextlib.contextmanager
def busy(server: RedisServer) -> Iterator[None]:
    """Keep it busy with a script that does not end by itself."""

    def spin() -> None:
        with server.client(socket_timeout=None) as client, contextlib.suppress(redis.ResponseError):
            client.eval("while true do end", 0)

    def answers_busy() -> bool:
        try:
            return not killer.ping()
        except redis.ResponseError as error:
            return "BUSY" in str(error)

    with server.client() as killer, configured(server, {"lua-time-limit": 5}, {"lua-time-limit": 5000}):
        thread = threading.Thread(target=spin)
        thread.start()
        try:
            wait_until(answers_busy, description="the server to be busy")
            yield
        finally:
            killer.script_kill()
            thread.join()


@contextlib.contextmanager
def unsaved(server: RedisServer) -> Iterator[None]:
    dump = server.directory / "dump.rdb"

    def failed() -> bool:
        return bool(client.info("persistence")["rdb_last_bgsave_status"] == "err")

    with server.client() as client:
        dump.unlink(missing_ok=True)
        dump.mkdir()
        with configured(server, {"save": "3600 1"}, {"save": ""}):
            client.bgsave()
            wait_until(failed, description="saving to fail")
            yield
        dump.rmdir()
        client.save()


@contextlib.contextmanager
def crowded(server: RedisServer) -> Iterator[None]:
    """Close all connections, and accept no more."""
    with _alone(server, "maxclients", 1, 10_000):
        yield


@contextlib.contextmanager
def locked(server: RedisServer) -> Iterator[None]:
    """Close all connections, and accept only those with another password."""
    with _alone(server, "requirepass", "next", ""):
        yield


@contextlib.contextmanager
def _alone(server: RedisServer, option: str, inside: Any, after: Any) -> Iterator[None]:
    """Set *option* for the block, and close the connections of all others."""
    with server.client() as client:
        client.config_set(option, inside)
        for kind in ("normal", "pubsub"):
            client.client_kill_filter(_type=kind, skipme=True)
        try:
            yield
        finally:
            client.config_set(option, after)


class State(NamedTuple):
    """A server state: how to enter it, the exception and message of calls in it, and whether reads are answered."""

    enter: Callable[[RedisServer], AbstractContextManager[None]]
    error: type[StoreError]
    words: str
    reads: bool = False


STATES = {
    "read-only": State(read_only, StoreUnavailableError, "read-only replica", reads=True),
    # The first message is that of plain writes, the second that of scripts.
    "cut off": State(cut_off, StoreUnavailableError, "not ready|read-only replica"),
    "loading": State(loading, StoreUnavailableError, "not ready"),
    "busy": State(busy, StoreUnavailableError, "not ready"),
    "unsaved": State(unsaved, StoreUnavailableError, "refuses writes", reads=True),
    "without replicas": State(
        lambda server: configured(server, {"min-replicas-to-write": 1}, {"min-replicas-to-write": 0}),
        StoreUnavailableError,
        "refuses writes",
        reads=True,
    ),
}

REFUSALS: dict[str, Callable[[RedisServer], AbstractContextManager[None]]] = {
    "NOREPLICAS": STATES["without replicas"].enter,
    "READONLY": read_only,
    "MASTERDOWN": cut_off,
    "OOM": lambda server: configured(server, {"maxmemory": 1}, {"maxmemory": 0}),
    "BUSY": busy,
    "MISCONF": unsaved,
    "max number of clients": crowded,
    "NOAUTH": locked,
    "LOADING": loading,
}
"""Ways to let a server refuse commands for a while, by the first words of its error. LOADING: `--rdbchecksum no`."""


class Ballast:
    """A key that keeps Redis over its limit, however much else is freed."""

    SIZE = 32 * 1024 * 1024

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        # Not SET: its argument would be in buffers for a while, and count as used memory.
        client.setrange("ballast", self.SIZE, b"x")
        self._limit = self._used() - self.SIZE // 2
        client.config_set("maxmemory", self._limit)

    def is_full(self) -> bool:
        """Return whether Redis is over its limit."""
        return self._used() > self._limit

    def free(self) -> None:
        """Delete the key."""
        self._client.delete("ballast")

    def _used(self) -> int:
        return int(self._client.info("memory")["used_memory"])
