"""ShardView: the keys of a queue or shard, read in small steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from redis_queue.store.keys import Keys, Kind
from redis_queue.store.links import Argument
from redis_queue.store.replies import pairs
from redis_queue.store.scripts import BoundScript, Scripts

STEP: Final = 500
"""Elements per command."""

SAMPLE: Final = 10_000
"""Most elements read of one key."""


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

    def now(self) -> int:
        """Return the server's time in ms."""
        seconds, micros = self.command("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    def soonest(self, key: bytes) -> tuple[bytes, float] | None:
        """Return the member of a sorted set with the lowest score, and its score."""
        found = pairs(self.command("ZRANGE", key, 0, 0, "WITHSCORES"))
        return (found[0][0], float(found[0][1])) if found else None

    def fields(self, key: bytes, limit: int | None = SAMPLE) -> Iterator[tuple[bytes, bytes]]:
        """Yield about *limit* fields of a hash with small values; None: all."""
        yield from _scanned(self, "HSCAN", key, STEP, limit)

    def ids(self, limit: int | None = SAMPLE) -> Iterator[bytes]:
        """Yield about *limit* ids of records; None: all."""
        # HSCAN returns the records, too, and each may be large.
        yield from (id_ for id_, _ in _scanned(self, "HSCAN", self.keys.records, 20, limit))

    def placed(self, limit: int | None = SAMPLE) -> Iterator[bytes]:
        """Yield about *limit* ids of each place; None: all."""
        for key in (self.keys.waiting, self.keys.in_flight, self.keys.dead):
            yield from (id_ for id_, _ in _scanned(self, "ZSCAN", key, STEP, limit))
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


def _scanned(shard: ShardView, command: str, key: bytes, step: int, limit: int | None) -> Iterator[tuple[bytes, bytes]]:
    cursor: Argument = 0
    seen = 0
    while True:
        cursor, found = shard.command(command, key, cursor, "COUNT", step)
        rows = pairs(found)
        yield from rows
        seen += len(rows)
        if int(cursor) == 0 or (limit is not None and seen >= limit):
            return
