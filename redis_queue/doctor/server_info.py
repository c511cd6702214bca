"""What the checks look at: servers and shards, read in small bounded steps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import redis

from redis_queue.doctor.finding import WithheldError
from redis_queue.errors import StoreError
from redis_queue.lazy_property import LazyProperty
from redis_queue.store.connection import Client
from redis_queue.store.keys import Keys, Kind
from redis_queue.store.links import Argument
from redis_queue.store.scripts import BoundScript, Scripts

STEP: Final = 500
"""Elements that one command is asked for."""

SAMPLE: Final = 10_000
"""Elements of one key at which a look ends."""


class Server:
    """One primary, or the only server."""

    def __init__(self, client: redis.Redis, label: str = "") -> None:
        self._scripts = Scripts(client)
        self.label = label
        self.withheld: set[str] = set()
        options = client.connection_pool.connection_kwargs
        self.host = None if "path" in options else str(options.get("host", "localhost"))
        self.tls = issubclass(client.connection_pool.connection_class, redis.SSLConnection)

    def command(self, *command: Argument) -> Any:
        """Send a command; the errors are those of redis_queue, and WithheldError for one that is not there."""
        try:
            return self._scripts.command(*command)
        except StoreError as error:
            if not str(error).lower().startswith("unknown command"):
                raise
            self.withheld.add(text(command[0]))
            raise WithheldError(str(error)) from error

    @LazyProperty
    def info(self) -> dict[str, str]:
        """What INFO tells."""
        lines = text(self.command("INFO")).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    def number(self, name: str) -> int:
        """Return a number out of INFO, 0 if it is not there."""
        found = self.info.get(name, "")
        return int(found) if found.isdecimal() else 0

    def config(self, name: str) -> str | None:
        """Return a setting of the server, None if it has none of this name."""
        return {text(key): text(value) for key, value in pairs(self.command("CONFIG", "GET", name))}.get(name)

    def skew(self) -> float:
        """Return how many seconds the server's clock is ahead of this host's, at least."""
        best = float("inf")
        for _ in range(3):
            before = time.time()
            seconds, micros = self.command("TIME")
            after = time.time()
            offset = int(seconds) + int(micros) / 1e6 - (before + after) / 2
            sure = max(0.0, abs(offset) - (after - before) / 2)
            best = min(best, sure if offset > 0 else -sure, key=abs)
        return best


def servers(client: Client) -> list[Server]:
    """Return the server of *client*, or all primaries of its cluster."""
    if not isinstance(client, redis.RedisCluster):
        return [Server(client)]
    nodes = client.get_primaries()
    return [Server(client.get_redis_connection(node), f"{node.host}:{node.port}: ") for node in nodes]


@dataclass(frozen=True, slots=True)
class Shard:
    """A queue, or one shard of a DelayQueue, whose *first* shard has what dispatchers leave."""

    scripts: Scripts
    kind: Kind
    name: str
    number: int | None
    keys: Keys
    first: Keys
    max_deliveries: int

    @property
    def listed(self) -> int:
        """1 for a queue with a ready list."""
        return int(self.kind == "queue")

    @property
    def label(self) -> str:
        """What a person calls it."""
        number = f" shard {self.number}" if self.number else ""
        return f"{self.kind} {self.name}{number}"

    def command(self, *command: Argument) -> Any:
        """Send a command; the errors are those of redis_queue."""
        return self.scripts.command(*command)

    def script(self, name: str) -> BoundScript:
        """Return a script with the keys of this shard."""
        return self.scripts.bind(name, self.keys)

    def now(self) -> int:
        """Return the server's time in ms."""
        seconds, micros = self.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def soonest(self, key: bytes) -> tuple[bytes, float] | None:
        """Return the member of a sorted set with the lowest score, and that."""
        found = pairs(self.command("ZRANGE", key, 0, 0, "WITHSCORES"))
        return (found[0][0], float(found[0][1])) if found else None

    def fields(self, key: bytes, limit: int | None = SAMPLE) -> Iterator[tuple[bytes, bytes]]:
        """Yield fields and values of a hash of small values, at most about *limit*."""
        yield from _scanned(self, "HSCAN", key, STEP, limit)

    def ids(self, limit: int | None = SAMPLE) -> Iterator[bytes]:
        """Yield the ids of records, at most about *limit*."""
        # The records come with them, and each may be large.
        yield from (id_ for id_, _ in _scanned(self, "HSCAN", self.keys.records, 20, limit))

    def placed(self, limit: int | None = SAMPLE) -> Iterator[bytes]:
        """Yield the ids in all places, at most about *limit* of each."""
        for key in (self.keys.waiting, self.keys.in_flight, self.keys.dead):
            yield from (id_ for id_, _ in _scanned(self, "ZSCAN", key, STEP, limit))
        yield from self.ready(limit)

    def ready(self, limit: int | None = SAMPLE) -> Iterator[bytes]:
        """Yield the ids of the ready list in pages, from the end at which the next one stands."""
        if self.kind != "queue":
            return
        end = -1
        while limit is None or -end <= limit:
            page = self.command("LRANGE", self.keys.ready, end - STEP + 1, end)
            yield from page
            if len(page) < STEP:
                return
            end -= STEP


def _scanned(shard: Shard, command: str, key: bytes, step: int, limit: int | None) -> Iterator[tuple[bytes, bytes]]:
    cursor: Argument = 0
    seen = 0
    while True:
        cursor, found = shard.command(command, key, cursor, "COUNT", step)
        rows = pairs(found)
        yield from rows
        seen += len(rows)
        if int(cursor) == 0 or (limit is not None and seen >= limit):
            return


def pairs(reply: Any) -> list[tuple[Any, Any]]:
    """Return a reply in pairs, whichever protocol brought it."""
    if isinstance(reply, dict):
        return list(reply.items())
    if reply and isinstance(reply[0], list | tuple):
        return [(one, other) for one, other in reply]
    return list(zip(reply[::2], reply[1::2], strict=True))


def text(value: Any) -> str:
    """Return a reply as text."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
