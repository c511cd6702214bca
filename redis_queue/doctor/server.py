"""Checks of a server: version, commands, connections, memory, persistence, replication, clock."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any, Final

import redis

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.options import counted
from redis_queue.doctor.finding import Check, CommandMissingError, Finding, error, warning
from redis_queue.errors import StoreError
from redis_queue.store.commands import DELAYS, FLOWS, REPORTS, SCHEDULES, Need, Server, missing_commands
from redis_queue.store.connection import Client
from redis_queue.store.links import Argument
from redis_queue.store.redis_errors import lacks_command
from redis_queue.store.scripts import Scripts, pairs, text

FLOORS: Final = {
    "Redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 12, (8, 0): 7, (8, 1): 6, (9, 0): 3},
}
"""First patch of each release line without known vulnerabilities in scripts or the cluster bus."""

PATCHED: Final = "unless your provider or distribution patches it"

FULL, NEARLY_FULL = 0.95, 0.8

SKEW_ERROR, SKEW_WARNING = 30.0, 1.0

MIN_SCRIPT_LIMIT: Final = 1000


class ServerInfo:
    """A server, or one primary of a cluster, on which queues are under *prefix*.

    *missing* collects commands that the server does not have.
    """

    def __init__(self, client: redis.Redis, prefix: str, label: str = "") -> None:
        self._scripts = Scripts(client)
        self.prefix, self.label = prefix, label
        self.missing: set[str] = set()
        options = client.connection_pool.connection_kwargs
        self.host = None if "path" in options else str(options.get("host", "localhost"))
        self.tls = issubclass(client.connection_pool.connection_class, redis.SSLConnection)

    def command(self, *command: Argument) -> Any:
        """Send a command. Raises StoreError, and CommandMissingError if the server does not have it."""
        try:
            return self._scripts.command(*command)
        except StoreError as error:
            if not lacks_command(error.__cause__):
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


def servers(client: Client, prefix: str) -> list[ServerInfo]:
    """Return the server of *client*, or all primaries of its cluster."""
    if not isinstance(client, redis.RedisCluster):
        return [ServerInfo(client, prefix)]
    nodes = client.get_primaries()
    return [ServerInfo(client.get_redis_connection(node), prefix, f"{node.host}:{node.port}: ") for node in nodes]


def version(server: ServerInfo) -> Iterator[Finding]:
    """The server's version is supported and has all known security fixes."""
    old = server.info.get("redis_version", "0")
    product = "Valkey" if "valkey_version" in server.info else "Redis"
    current = server.info.get("valkey_version", old)
    if _numbers(old)[:2] < (6, 2):
        yield error(f"{server.label}Redis {old} is too old", "upgrade to Redis 6.2 or later, or any Valkey")
        return
    line, floors = _numbers(current)[:2], FLOORS[product]
    if line in floors and _numbers(current)[2] < floors[line]:
        fixed = f"{line[0]}.{line[1]}.{floors[line]}"
        yield warning(
            f"{server.label}{product} {current} lacks security fixes", f"upgrade to {fixed} or later, {PATCHED}"
        )
    elif line not in floors and line < max(floors):
        yield warning(
            f"{server.label}{product} {current} no longer gets security fixes", f"upgrade to a newer line, {PATCHED}"
        )


def eviction(server: ServerInfo) -> Iterator[Finding]:
    """Redis evicts no keys when memory is short."""
    policy = server.info.get("maxmemory_policy", "")
    advice = "CONFIG SET maxmemory-policy noeviction, and in the server's configuration file"
    if policy.startswith("allkeys"):
        limited = server.number("maxmemory") > 0
        say = error if limited else warning
        when = "when memory is short" if limited else "as soon as maxmemory is set"
        yield say(f"{server.label}maxmemory-policy {policy}: Redis evicts queues {when}", advice)
    elif policy.startswith("volatile"):
        yield warning(
            f"{server.label}maxmemory-policy {policy}: Redis may evict keys with a TTL, such as locks", advice
        )


def commands(server: ServerInfo) -> Iterator[Finding]:
    """The server has all commands of redis_queue."""
    for need in (DELAYS, FLOWS, SCHEDULES, REPORTS):
        yield from lacking(server, need, server.label)


def lacking(server: Server, need: Need, label: str) -> Iterator[Finding]:
    """Yield a finding about the commands of *need* that *server* lacks."""
    missing = missing_commands(server, need)
    if missing:
        yield warning(
            f"{label}this Redis has no {', '.join(missing)}, needed by {need.what}",
            "ask your provider for these commands, or use another Redis",
        )


def connections(server: ServerInfo) -> Iterator[Finding]:
    """The server accepts more connections."""
    yield from _nearly_full(
        server,
        "connected_clients",
        "maxclients",
        "a Redis without free connections refuses workers that connect again",
        "look who has them: CLIENT LIST; then raise maxclients, and the limit of open files of the server",
    )


def memory(server: ServerInfo) -> Iterator[Finding]:
    """Memory use is well below maxmemory."""
    yield from _nearly_full(
        server,
        "used_memory",
        "maxmemory",
        "a full Redis takes no new messages",
        "let workers make room, raise maxmemory, or look for large keys: redis-cli --bigkeys",
    )


def _nearly_full(server: ServerInfo, used: str, limit: str, then: str, advice: str) -> Iterator[Finding]:
    most = server.number(limit)
    share = server.number(used) / most if most else 0
    if share >= NEARLY_FULL:
        say = error if share >= FULL else warning
        yield say(f"{server.label}{share:.0%} of {limit} is used; {then}", advice)


def persistence(server: ServerInfo) -> Iterator[Finding]:
    """Writes are kept on disk."""
    if server.info.get("aof_enabled") != "1":
        yield warning(
            f"{server.label}no append-only file: a crash loses everything since the last snapshot",
            "CONFIG SET appendonly yes, and in the server's configuration file",
        )
    elif server.config("appendfsync") == "no":
        yield warning(
            f"{server.label}appendfsync no: a power cut loses about 30 seconds",
            "CONFIG SET appendfsync everysec, or always",
        )


def writes_to_disk(server: ServerInfo) -> Iterator[Finding]:
    """The last writes to disk were successful and fast."""
    for name, what in (
        ("rdb_last_bgsave_status", "snapshot"),
        ("aof_last_write_status", "write to the append-only file"),
        ("aof_last_bgrewrite_status", "rewrite of the append-only file"),
    ):
        if server.info.get(name, "ok") != "ok":
            yield error(f"{server.label}the last {what} failed", "see the server's log; is its disk full?")
    # While an fsync runs, Redis answers before it writes, for at most two seconds; it counts only longer delays.
    if late := server.number("aof_delayed_fsync"):
        yield warning(
            f"{server.label}fsync took more than two seconds, {counted(late, 'time')}: "
            "a crash then loses acknowledged writes",
            "use a faster or a separate disk; or appendfsync always: then Redis waits for the disk",
        )


def replication(server: ServerInfo) -> Iterator[Finding]:
    """A primary with replicas accepts no writes without them."""
    if server.number("connected_slaves") and server.config("min-replicas-to-write") == "0":
        yield warning(
            f"{server.label}min-replicas-to-write is 0: a primary without its replicas still accepts "
            "writes, and a failover loses them",
            "CONFIG SET min-replicas-to-write 1",
        )


def evicted(server: ServerInfo) -> Iterator[Finding]:
    """Redis has evicted no keys since it started."""
    if count := server.number("evicted_keys"):
        yield error(
            f"{server.label}Redis has evicted {counted(count, 'key')}, which may have been messages",
            "raise maxmemory, and CONFIG SET maxmemory-policy noeviction; then CONFIG RESETSTAT ends this report",
        )


def replicas(server: ServerInfo) -> Iterator[Finding]:
    """Redis accepts writes: it is a primary, with the replicas that it needs."""
    if server.info.get("role") == "slave":
        yield error(f"{server.label}connected to a read-only replica", "connect to its primary")
    # Only with min-replicas-to-write does INFO have this field. Those that lag are not counted.
    elif "min_slaves_good_slaves" in server.info and not server.number("min_slaves_good_slaves"):
        yield error(
            f"{server.label}no replica follows, and min-replicas-to-write is set: Redis refuses writes",
            "start a replica, or look why it cannot connect",
        )


def clock(server: ServerInfo) -> Iterator[Finding]:
    """The clocks of this host and of Redis agree."""
    skew = server.skew()
    if abs(skew) > SKEW_WARNING:
        say = error if abs(skew) > SKEW_ERROR else warning
        where = "ahead of" if skew > 0 else "behind"
        yield say(
            f"{server.label}Redis is {abs(skew):.1f} s {where} this host: tasks with an eta are not on time",
            "synchronize both clocks with a time service such as chrony",
        )


def script_limit(server: ServerInfo) -> Iterator[Finding]:
    """The time limit of scripts is on, and long enough."""
    for name in ("busy-reply-threshold", "lua-time-limit"):
        limit = server.config(name)
        if limit is None:
            continue
        if int(limit) < MIN_SCRIPT_LIMIT:
            found = "never answers while a script runs" if int(limit) <= 0 else "answers BUSY too early"
            yield warning(f"{server.label}{name} is {limit} ms: Redis {found}", f"CONFIG SET {name} 5000")
        return


def _numbers(version: str) -> tuple[int, int, int]:
    found = [int(part) for part in re.findall(r"\d+", version)[:3]]
    major, minor, patch = (*found, 0, 0, 0)[:3]
    return major, minor, patch


CHECKS: Final[dict[str, Check[ServerInfo]]] = {
    "version": version,
    "eviction": eviction,
    "commands": commands,
    "connections": connections,
    "memory": memory,
    "persistence": persistence,
    "writes to disk": writes_to_disk,
    "replication": replication,
    "evicted": evicted,
    "replicas": replicas,
    "clock": clock,
    "script limit": script_limit,
}

PRESSING: Final = {"connections": connections, "memory": memory, "evicted": evicted, "replicas": replicas}
"""Checks of what harms a server now, which incidents repeat every few seconds: they read INFO alone."""
