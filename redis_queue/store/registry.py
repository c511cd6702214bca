"""The registry of all queues: the first put adds a queue, put-back reads it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis_queue.errors import ConfigurationError
from redis_queue.store.chunks import CHUNK, chunks
from redis_queue.store.codec import read_document, small_integer
from redis_queue.store.keys import Kind, PrefixKeys, check_name
from redis_queue.store.scripts import Scripts
from redis_queue.store.settings import MAX_SHARDS, Settings

MAX_FIELDS: Final = 20_000
"""Maximum number of queues read to choose a page of them."""


@dataclass(frozen=True, slots=True)
class RegistryRow:
    """A queue in the registry, with its settings for put-back."""

    kind: Kind
    name: str
    max_deliveries: int
    shards: int


class Registry:
    """All queues under one prefix. A queue stays until :meth:`forget`."""

    def __init__(self, scripts: Scripts, prefix: str) -> None:
        self._scripts = scripts
        self._key = PrefixKeys(prefix).registry

    def add(self, kind: Kind, name: str, settings: Settings) -> None:
        """Add a queue to the registry; the settings of the last writer win, except the number of shards.

        A DelayQueue keeps its first number of shards. Raises ConfigurationError for another one and writes nothing.
        """
        field = f"{kind}:{name}"
        value = json.dumps({"max_deliveries": settings.max_deliveries, "shards": settings.shards})
        if kind == "delay":
            held = self._scripts.command("HGET", self._key, field)
            if held is None and self._scripts.command("HSETNX", self._key, field, value):
                return
            # Another process may have added it between the two commands.
            held = held or self._scripts.command("HGET", self._key, field)
            _check_shards(name, row_of(field.encode(), held), settings.shards)
            if held == value.encode():
                return
        self._scripts.command("HSET", self._key, field, value)

    def forget(self, kind: Kind, name: str) -> None:
        """Remove a queue from the registry; its keys stay."""
        self._scripts.command("HDEL", self._key, f"{kind}:{name}")

    def find(self, kind: Kind, name: str) -> RegistryRow | None:
        """Return the registry entry of one queue; None if it is missing or unreadable."""
        field = f"{kind}:{name}".encode(errors="surrogateescape")
        value = self._scripts.command("HGET", self._key, field)
        return None if value is None else row_of(field, value)

    def fields(self) -> tuple[list[bytes], int]:
        """Return ``kind:name`` of up to :data:`MAX_FIELDS` queues in order, and the number of all queues."""
        count = int(self._scripts.command("HLEN", self._key))
        if count <= MAX_FIELDS:
            return sorted(self._scripts.command("HKEYS", self._key)), count
        found: set[bytes] = set()
        for page in self._scripts.scan("HSCAN", self._key, count=CHUNK):
            found.update(field for field, _ in page)
            if len(found) >= MAX_FIELDS:
                break
        return sorted(found)[:MAX_FIELDS], count

    def read(self, fields: Sequence[bytes]) -> list[RegistryRow]:
        """Return the registry entries *fields*; unreadable ones are left out."""
        values = (self._scripts.command("HMGET", self._key, *chunk) for chunk in chunks(fields))
        found = map(row_of, fields, itertools.chain.from_iterable(values))
        return [known for known in found if known is not None]

    def all(self) -> list[RegistryRow]:
        """Return all queues by kind and name, a batch per round trip; unreadable ones are left out."""
        return self.read(sorted(self._scripts.command("HKEYS", self._key)))


def _check_shards(name: str, known: RegistryRow | None, shards: int) -> None:
    # An invalid number was written by hand: no queue was ever opened with it.
    if known is not None and 1 <= known.shards <= MAX_SHARDS and known.shards != shards:
        raise ConfigurationError(
            f"shards={shards}: must be {known.shards} as before for {name}, or other processes would not find its "
            f"entries; to change it, empty the queue, destroy() it and use one number everywhere"
        )


def row_of(field: bytes, value: bytes | None) -> RegistryRow | None:
    """Return the queue in a field of the registry, or None if it is unreadable."""
    try:
        kind, _, name = field.decode().partition(":")
        loaded: dict[str, Any] = read_document(value or b"")
        limits = {"max_deliveries": small_integer(loaded["max_deliveries"]), "shards": small_integer(loaded["shards"])}
        check_name(name)
    except (ValueError, KeyError, TypeError):
        return None
    if kind == "queue":
        return RegistryRow("queue", name, **limits)
    return RegistryRow("delay", name, **limits) if kind == "delay" else None
