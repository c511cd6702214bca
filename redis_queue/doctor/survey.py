"""Survey: the queues under a prefix, by the registry and by existing keys."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from redis_queue.doctor.finding import COVERAGE, Finding
from redis_queue.doctor.server import ServerInfo
from redis_queue.errors import StoreRefusedError, WrongTypeError
from redis_queue.store import keys
from redis_queue.store.connection import Client
from redis_queue.store.keys import Keys, Kind, Part, PrefixKeys
from redis_queue.store.links import Argument
from redis_queue.store.registry import RegistryRow, row_of
from redis_queue.store.scripts import BoundScript, Scripts, now_ms, pairs

STEP: Final = 500
"""Elements per command."""

SAMPLE: Final = 10_000
"""Maximum number of elements read of one key."""

MAX_SHARDS: Final = 1000
MAX_FIELDS: Final = 10_000
MAX_SCANS: Final = 200
SCAN: Final = 1000

TRACES: Final = ("slot", "leader", "wake", "lateness", "minutes", "dispatchers", "revoked", "discarded")
"""Parts that a dispatcher or a consumer writes even for queues that were never used."""


@dataclass(frozen=True, slots=True)
class ShardView:
    """A RedisQueue, or one shard of a DelayQueue; *first*: the keys of its first shard, used by dispatchers."""

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
        """Kind, name and number of the shard, for findings."""
        number = f" shard {self.number}" if self.number else ""
        return f"{self.kind} {self.name}{number}"

    def command(self, *command: Argument) -> Any:
        """Send a command. Raises StoreError."""
        return self.scripts.command(*command)

    def script(self, name: str) -> BoundScript:
        """Return a script bound to the keys of this shard."""
        return self.scripts.bind(name, self.keys)

    def late_ms(self, key: bytes) -> float:
        """Return for how many ms the first member of a sorted set of times is overdue; 0 if there is none."""
        first = pairs(self.command("ZRANGE", key, 0, 0, "WITHSCORES"))
        return now_ms(self.scripts) - float(first[0][1]) if first else 0

    def fields(self, key: bytes, limit: int | None = SAMPLE) -> Iterator[tuple[bytes, bytes]]:
        """Yield about *limit* fields of a hash with small values; None: all."""
        return _scanned(self.scripts, "HSCAN", key, STEP, limit)

    def ids(self, limit: int | None = SAMPLE) -> Iterator[bytes]:
        """Yield about *limit* ids of records; None: all."""
        # HSCAN returns the records, too, and each may be large.
        return (id_ for id_, _ in _scanned(self.scripts, "HSCAN", self.keys.records, 20, limit))

    def placed(self, limit: int | None = SAMPLE) -> Iterator[bytes]:
        """Yield about *limit* ids of each place; None: all."""
        for key in (self.keys.waiting, self.keys.in_flight, self.keys.dead):
            yield from (id_ for id_, _ in _scanned(self.scripts, "ZSCAN", key, STEP, limit))
        yield from self.ready(limit)

    def ready(self, limit: int | None = SAMPLE) -> Iterator[bytes]:
        """Yield about *limit* ids of the ready list, next message first; None: all."""
        if self.kind != "queue":
            return
        end = -1
        while limit is None or -end <= limit:
            page = self.command("LRANGE", self.keys.ready, end - STEP + 1, end)
            yield from page
            if len(page) < STEP:
                return
            end -= STEP


def _scanned(scripts: Scripts, command: str, key: bytes, step: int, limit: int | None) -> Iterator[tuple[bytes, bytes]]:
    seen = 0
    for rows in scripts.scan(command, key, count=step):
        yield from rows
        seen += len(rows)
        if limit is not None and seen >= limit:
            return


Root = tuple[Kind, str, int | None]


@dataclass(slots=True)
class Survey:
    """Queues found under *prefix*; *notes* name the skipped parts.

    *known* are the queues of the registry, *unreadable* its invalid fields, *stored* the queues that have keys.
    """

    scripts: Scripts
    prefix: str
    known: dict[tuple[Kind, str], RegistryRow] = field(default_factory=dict)
    unreadable: list[bytes] = field(default_factory=list)
    stored: set[Root] = field(default_factory=set)
    shards: list[ShardView] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a note about a skipped part."""
        self.notes.append(Finding(COVERAGE, "ok", text))


def survey(client: Client, servers: list[ServerInfo], prefix: str) -> Survey:
    """Find the queues under *prefix*; raises StoreRefusedError if nothing can be read."""
    found = Survey(Scripts(client), prefix)
    _read_registry(found)
    try:
        found.stored = {part[:3] for server in servers for part in _parts(found, server)}
    except StoreRefusedError as error:
        found.notes.append(
            Finding(COVERAGE, "warning", f"only queues in the registry were checked: {error}", "allow SCAN")
        )
    registered = {root for known in found.known.values() for root in _roots(known)}
    roots = sorted(registered | found.stored, key=lambda root: (root[0], root[1], root[2] or 0))
    if len(roots) > MAX_SHARDS:
        found.note(f"checked {MAX_SHARDS:,} of {len(roots):,} queues and shards")
    found.shards = [_shard(found, root) for root in roots[:MAX_SHARDS]]
    return found


def _read_registry(found: Survey) -> None:
    # The check of types reports a key of another type.
    with contextlib.suppress(WrongTypeError):
        for name, value in _scanned(found.scripts, "HSCAN", PrefixKeys(found.prefix).registry, STEP, None):
            if len(found.known) + len(found.unreadable) >= MAX_FIELDS:
                found.note(f"read only {MAX_FIELDS:,} fields of the registry")
                return
            known = row_of(name, value)
            if known is None:
                found.unreadable.append(name)
            else:
                found.known[known.kind, known.name] = known


def _parts(found: Survey, server: ServerInfo) -> Iterator[Part]:
    cursor: Argument = 0
    for _ in range(MAX_SCANS):
        cursor, rows = server.command("SCAN", cursor, "MATCH", keys.pattern(found.prefix), "COUNT", SCAN)
        for key in rows:
            part = keys.parse(found.prefix, key)
            # Slots and traces of dispatchers do not make a queue.
            if part is not None and part.name in Keys.declarations() and part.name not in TRACES:
                yield part
        if int(cursor) == 0:
            return
    found.note(f"{server.label}searched only about {MAX_SCANS * SCAN:,} keys of this Redis for queues")


def _roots(known: RegistryRow) -> list[Root]:
    if known.kind == "queue":
        return [("queue", known.name, None)]
    return [("delay", known.name, number) for number in range(min(max(known.shards, 1), MAX_SHARDS))]


def _shard(found: Survey, root: Root) -> ShardView:
    kind, name, number = root
    known = found.known.get((kind, name))
    # Without settings in the registry, no put-back makes a dead letter.
    most = known.max_deliveries if known else 0
    own, first = (Keys(found.prefix, kind, name, shard) for shard in (number, None if number is None else 0))
    return ShardView(found.scripts, kind, name, number, own, first, most)
