"""Roles in Redis: which keys and commands each needs.

The check of permissions, the ACL rules of docs/security.md and their tests follow from this list. The commands of
scripts are read from their code; a test compares the others with what Python sends.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from redis_queue.store.keys import FlowKeys, MonitorKeys, PrefixKeys, pattern
from redis_queue.store.script_files import all_scripts, load

PREFIX: Final = "redis_queue"

_QUEUE: Final = f"~{pattern(PREFIX, 'queue:')}"
_QUEUES: Final = (_QUEUE, f"~{pattern(PREFIX, 'delay:')}")
_WAKE_UP: Final = f"&{pattern(PREFIX, 'delay:')}"
_MONITOR: Final = f"~{MonitorKeys(PREFIX).pattern}"
_FLOWS: Final = f"~{FlowKeys(PREFIX).pattern}"
_REGISTRY: Final = f"~{PrefixKeys(PREFIX).registry.decode()}"
_AUDIT: Final = f"~{PrefixKeys(PREFIX).audit.decode()}"
_PROBE: Final = f"~{PrefixKeys(PREFIX).probe('*').decode()}"
_OPERATION: Final = f"~{PrefixKeys(PREFIX).operation('*').decode()}"
_SETTLES: Final = "records/ack records/extend records/nack records/quarantine records/put_back"


class Role(NamedTuple):
    """A role: patterns of its keys and channels as in ACL rules, its scripts, and the commands that Python sends."""

    name: str
    keys: tuple[str, ...]
    scripts: str
    commands: str = ""

    @property
    def allowed(self) -> list[str]:
        """All commands that it needs, as in ACL rules."""
        scripts = self.scripts.split()
        called = {command for name in scripts for command in load(name).commands}
        return sorted({*called, *self.commands.split(), *(["evalsha"] if scripts else [])})

    @property
    def rules(self) -> str:
        """Its ACL rules, for the prefix "redis_queue"."""
        return " ".join([*self.keys, *(f"+{command}" for command in self.allowed)])


ROLES: Final = (
    Role(
        "producer",
        (*_QUEUES, _REGISTRY, _WAKE_UP),
        "queue/put delay/push delay/cancel delay/reschedule delay/find",
        "hget hkeys hmget hset hsetnx",
    ),
    Role("worker", (_QUEUE,), f"queue/get queue/promote {_SETTLES}", "blpop"),
    Role(
        "dispatcher",
        (*_QUEUES, _MONITOR, _REGISTRY, _PROBE, _WAKE_UP),
        "delay/lead delay/head delay/move_due delay/claim delay/deliver delay/note monitor/count monitor/failure_keep "
        f"monitor/report schedules/read schedules/change schedules/declare {_SETTLES}",
        "hget hkeys hmget hstrlen ping subscribe zadd zmscore",
    ),
    Role(
        "flows",
        (_FLOWS,),
        "admission/send admission/configure admission/reconsider admission/take admission/settle admission/restore "
        "admission/acquire admission/confirm admission/extend admission/release admission/revoke",
        "hget hkeys hlen hmget hscan hset mget time zcard zscan",
    ),
    Role("holder", (f"~{pattern(PREFIX, 'lock:')}",), "lock/acquire lock/extend lock/release"),
    Role(
        "dashboard",
        (*_QUEUES, *(f"%R{keys}" for keys in (_MONITOR, _FLOWS, _REGISTRY, _AUDIT))),
        "queue/stats queue/peek delay/stats delay/count delay/list delay/find delay/head records/dead_letters "
        "records/quarantined records/look records/versions records/in_flight delay/minutes delay/dispatchers "
        "schedules/read",
        "get hget hgetall hkeys hlen hmget hscan hstrlen lrange time zcard zcount zmscore zrange zrevrange zrevrank "
        "zscan",
    ),
    Role(
        "admin",
        (*_QUEUES, _MONITOR, _FLOWS, _REGISTRY),
        "records/dead_letters records/redrive records/delete_dead records/purge monitor/failure_claim "
        "monitor/failure_delete monitor/report admission/configure admission/reconsider admission/purge "
        "admission/remove admission/set_key admission/cancel admission/release schedules/change schedules/declare",
        "hdel hget hkeys hmget hset llen rpush unlink zcard zrange zscan",
    ),
    Role("operator", (_AUDIT, _OPERATION), "", "get lpush lrange ltrim set"),
    Role("loader", (), "", "script|exists script|load"),
)


def all_commands() -> list[str]:
    """Return all commands on the keys of the store that scripts and Python send, as in ACL rules."""
    called = (script.commands for script in all_scripts() if not script.name.startswith("broker/"))
    return sorted(set().union(*called, *(role.allowed for role in ROLES if role.keys)))
