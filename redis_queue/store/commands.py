"""Commands that a server may lack: providers rename some away, and other products have fewer than Redis."""

from __future__ import annotations

import contextlib
from typing import Any, Final, NamedTuple, Protocol

from redis_queue.errors import ConfigurationError, StoreError
from redis_queue.store.links import Argument
from redis_queue.store.script_files import load


class Need(NamedTuple):
    """What does not work without certain commands: those in *scripts*, and *more* that Python sends."""

    what: str
    scripts: str
    more: str

    @property
    def commands(self) -> frozenset[str]:
        """The names of the commands, without their parts."""
        called = {command for name in self.scripts.split() for command in load(name).commands}
        return frozenset(name.partition("|")[0] for name in ("eval", "evalsha", *called, *self.more.split()))


DELAYS: Final = Need(
    "delayed tasks",
    "delay/push delay/cancel delay/reschedule delay/find delay/lead delay/head delay/move_due delay/claim "
    "delay/deliver records/ack records/extend records/nack records/quarantine records/put_back",
    "hget hkeys hmget hset hsetnx",
)

LEASES: Final = Need(
    "leases", "broker/record broker/renew broker/expired broker/restore broker/settle", "hdel hget rpush time zadd zrem"
)

FETCH: Final = Need("atomic fetch", "broker/fetch broker/leave broker/settle", "client exists mget ping subscribe")

FLOWS: Final = Need(
    "flows and unique tasks",
    "admission/send admission/configure admission/reconsider admission/take admission/settle admission/restore "
    "admission/acquire admission/confirm admission/extend admission/release broker/fetch broker/leave broker/settle",
    "client exists hget hscan hset mget ping subscribe zmscore",
)

REPORTS: Final = Need(
    "reports, history and failures",
    "delay/note monitor/count monitor/report monitor/failure_keep monitor/failure_claim monitor/failure_delete",
    "hgetall hkeys hmget hscan zrange",
)

SCHEDULES: Final = Need("schedules", "schedules/read schedules/change schedules/declare", "hkeys hmget")


class Server(Protocol):
    """Sends commands to one Redis."""

    def command(self, *command: Argument) -> Any:
        """Send a command and return its reply. Raises StoreError."""


def missing_commands(server: Server, need: Need) -> list[str]:
    """Return the commands of *need* that *server* lacks, in capitals. Raises StoreError."""
    names = sorted(need.commands)
    rows = server.command("COMMAND", "INFO", *names)
    if not isinstance(rows, list) or len(rows) != len(names):
        return []
    return [name.upper() for name, row in zip(names, rows, strict=True) if not row]


def known_missing(server: Server, need: Need) -> list[str]:
    """Return the commands of *need* that *server* lacks, in capitals; none if it does not tell."""
    with contextlib.suppress(StoreError):
        return missing_commands(server, need)
    return []


def require(server: Server, need: Need, where: str) -> None:
    """Raise ConfigurationError if *server*, the Redis of the setting *where*, lacks a command of *need*."""
    missing = known_missing(server, need)
    if missing:
        names = ", ".join(missing)
        raise ConfigurationError(
            f"{where}: this Redis has no {names}, which {need.what} need: use another Redis, or turn them off"
        )
