"""ServerInfo: settings, state and clock of one Redis server."""

from __future__ import annotations

import time
from typing import Any

import redis

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.doctor.finding import CommandMissingError
from redis_queue.errors import StoreError
from redis_queue.store.connection import Client
from redis_queue.store.links import Argument
from redis_queue.store.replies import pairs, text
from redis_queue.store.scripts import Scripts


class ServerInfo:
    """A server, or one primary of a cluster; *missing* collects commands that the server does not have."""

    def __init__(self, client: redis.Redis, label: str = "") -> None:
        self._scripts = Scripts(client)
        self.label = label
        self.missing: set[str] = set()
        options = client.connection_pool.connection_kwargs
        self.host = None if "path" in options else str(options.get("host", "localhost"))
        self.tls = issubclass(client.connection_pool.connection_class, redis.SSLConnection)

    def command(self, *command: Argument) -> Any:
        """Send a command. Raises StoreError, and CommandMissingError if the server does not have it."""
        try:
            return self._scripts.command(*command)
        except StoreError as error:
            if not str(error).lower().startswith("unknown command"):
                raise
            self.missing.add(text(command[0]))
            raise CommandMissingError(str(error)) from error

    @LazyProperty
    def info(self) -> dict[str, str]:
        """The fields of INFO."""
        lines = text(self.command("INFO")).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    def number(self, name: str) -> int:
        """Return a number from INFO; 0 for a missing field."""
        found = self.info.get(name, "")
        return int(found) if found.isdecimal() else 0

    def config(self, name: str) -> str | None:
        """Return a setting of the server; None for an unknown name."""
        return {text(key): text(value) for key, value in pairs(self.command("CONFIG", "GET", name))}.get(name)

    def skew(self) -> float:
        """Return how many seconds the server's clock is ahead of this host's, at least; negative if it is behind."""
        best = float("inf")
        for _ in range(3):
            before = time.time()
            seconds, micros = self.command("TIME")
            after = time.time()
            offset = int(seconds) + int(micros) / 1e6 - (before + after) / 2
            sure = max(0.0, abs(offset) - (after - before) / 2)
            best = min(best, sure if offset > 0 else -sure, key=abs)
        return best


def servers(client: Client) -> list[ServerInfo]:
    """Return the server of *client*, or all primaries of its cluster."""
    if not isinstance(client, redis.RedisCluster):
        return [ServerInfo(client)]
    nodes = client.get_primaries()
    return [ServerInfo(client.get_redis_connection(node), f"{node.host}:{node.port}: ") for node in nodes]
