"""Checks of keys: types, schema, counters, TTLs, and the registry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from redis_queue.doctor.finding import Check, Finding, error, warning
from redis_queue.doctor.survey import Survey
from redis_queue.errors import ConfigurationError, WrongTypeError
from redis_queue.store.keys import PrefixKeys
from redis_queue.store.scripts import Scripts, text
from redis_queue.store.settings import Settings

SCHEMA: Final = 1
"""Schema that the scripts of this release write."""

COUNTERS: Final = ("put", "acked", "redelivered", "put_back")
MAX_DIGITS: Final = 15
"""Redis and Lua do not count exactly beyond these."""


def types(survey: Survey) -> Iterator[Finding]:
    """Every key has the expected type."""
    for shard in survey.shards:
        yield from foreign_keys(survey.scripts, shard.keys.types(), f"{shard.label} does not work")
    key = PrefixKeys(survey.prefix).registry
    registry = text(survey.scripts.command("TYPE", key))
    if registry not in ("none", "hash"):
        yield error(f"the registry is a {registry}, not a hash", f"RENAME {text(key)} and inspect it")


def foreign_keys(scripts: Scripts, types: Mapping[bytes, str], effect: str) -> Iterator[Finding]:
    """Yield an error for each key that has another type than in *types*; *effect*: what does not work."""
    for key, expected in types.items():
        kind = text(scripts.command("TYPE", key))
        if kind not in ("none", expected):
            yield error(
                f"{text(key)} is a {kind}, not a {expected}: another program wrote to it",
                f"inspect it, then RENAME it: {effect} until then",
            )


def schema(survey: Survey) -> Iterator[Finding]:
    """No queue was written by a newer release."""
    for shard in survey.shards:
        found = shard.command("HGET", shard.keys.meta, "schema")
        if found is not None and (not found.isdigit() or int(found) > SCHEMA):
            yield error(f"{shard.label} has schema {text(found)}, this release knows {SCHEMA}", "upgrade redis_queue")


def counters(survey: Survey) -> Iterator[Finding]:
    """The counters of every queue are numbers."""
    for shard in survey.shards:
        try:
            values = shard.command("HMGET", shard.keys.meta, *COUNTERS)
        except WrongTypeError:
            # The check of types reports it.
            continue
        for name, value in zip(COUNTERS, values, strict=True):
            if value is not None and not (value.isdigit() and len(value) <= MAX_DIGITS):
                yield error(
                    f"{shard.label}: its counter {name} is {text(value)[:40]!r}: another program wrote to it",
                    f"HDEL {text(shard.keys.meta)} {name}; the counter starts at 0 again",
                )


def lifetime(survey: Survey) -> Iterator[Finding]:
    """No permanent key has a TTL."""
    for key in keys_with_ttl(survey):
        yield error(f"{text(key)} has a TTL: Redis will delete it", "redis-queue doctor --fix", repairable=True)


def keys_with_ttl(survey: Survey) -> Iterator[bytes]:
    """Yield the permanent keys that have a TTL."""
    lasting = [key for shard in survey.shards for key in shard.keys.all() if key != shard.keys.leader]
    for key in (*lasting, PrefixKeys(survey.prefix).registry):
        if int(survey.scripts.command("PTTL", key)) >= 0:
            yield key


def registry(survey: Survey) -> Iterator[Finding]:
    """The registry lists every queue."""
    for field in survey.unreadable:
        yield error(
            f"the registry's field {text(field)} cannot be read: put-back skips this queue",
            "HDEL the field; the first put of a new process restores it",
        )
    for row in survey.known.values():
        try:
            Settings(max_deliveries=row.max_deliveries, shards=row.shards)
        except ConfigurationError as reason:
            yield error(
                f"{row.kind} {row.name} has invalid settings in the registry: {reason}",
                "HDEL its field of the registry; the first put of a new process restores it",
            )
    unknown = {(kind, name) for kind, name, _ in survey.stored} - survey.known.keys()
    unknown -= {_queue_of(field) for field in survey.unreadable}
    for kind, name in sorted(unknown):
        yield warning(
            f"{kind} {name} is not in the registry: put-back skips it",
            "put a message from a new process: the first put adds the queue",
        )
    for kind, name, number in sorted(survey.stored, key=str):
        known = survey.known.get((kind, name))
        if known is not None and number is not None and number >= known.shards:
            yield error(
                f"{kind} {name} has keys of shard {number}, but only {known.shards} shards in the registry: "
                "nobody reads those keys",
                f"open it with shards={number + 1} or more, empty it, then use one number everywhere",
            )


def _queue_of(field: bytes) -> tuple[str, str]:
    kind, _, name = text(field).partition(":")
    return kind, name


CHECKS: Final[dict[str, Check[Survey]]] = {
    "types": types,
    "schema": schema,
    "counters": counters,
    "lifetime": lifetime,
    "registry": registry,
}
