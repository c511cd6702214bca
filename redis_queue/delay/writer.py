"""Write entries into their shards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from redis_queue.basics.times import Seconds, duration_ms, point_ms
from redis_queue.delay.model import Conflict, Push
from redis_queue.delay.shards import Shards
from redis_queue.errors import EntryExistsError, InvalidDelayError, InvalidValueError
from redis_queue.store.chunks import by_size, chunks
from redis_queue.store.ids import check_id, id_text, new_ids
from redis_queue.store.records import Records
from redis_queue.store.registry import Registry

MAX_DESTINATION: Final = 512

KEPT: Final = ord("0")
"""Flag of an entry that was not stored: its id exists."""

REPLACED: Final = ord("2")
"""Flag of an entry that was stored instead of another one with its id, which was never claimed."""

RENEWED: Final = ord("3")
"""Flag of an entry that was stored after its id had been revoked."""


class EntryWriter:
    """Stores entries, and lists the queue in the registry before the first one."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._registry = Registry(shards.scripts, shards.settings.prefix)
        self._registered = False

    def push(self, items: Iterable[Push | Any], on_conflict: Conflict) -> Iterator[tuple[str, int]]:
        """Store *items*; yield the id and the flag of each, in order."""
        for chunk in chunks(items):
            names = iter(new_ids(sum(not isinstance(item, Push) or item.id is None for item in chunk)))
            rows = [self.row(item, names) for item in chunk]
            flags = [KEPT] * len(rows)
            for shard, group in self._shards.grouped([row[0] for row in rows]):
                positions = iter(group)
                for part in by_size([rows[index] for index in group]):
                    for flag in self._push(shard, part, on_conflict):
                        flags[next(positions)] = flag
            yield from zip([row[0] for row in rows], flags, strict=True)

    def row(self, item: Push | Any, names: Iterator[str]) -> tuple[str, int, int, str, bytes]:
        """Return id, delay, due time, mark and record of *item*; without an id it gets the next of *names*."""
        push = item if isinstance(item, Push) else Push(item)
        if push.destination is not None:
            _check_destination(push.destination)
        wait, due = when(push.delay, push.due_at)
        record = self._shards[0].codec.encode(push.payload, push.headers, push.destination)
        return (next(names) if push.id is None else check_id(push.id)), wait, due, push.mark, record

    def call(self, shard: Records, name: str, **arguments: Any) -> Any:
        """Call script *name*, whose first answer tells that the shard was new; return the second one."""
        if not self._registered:
            self._register()
            self._registered = True
        new, reply = shard.call(name, now=shard.clock(), **arguments)
        if new:
            # The first push ever, or the first after a FLUSHALL during the life of this object.
            self._register()
        return reply

    def forget(self) -> None:
        """Take the queue out of the registry."""
        self._registry.forget("delay", self._shards.name)
        self._registered = False

    def _register(self) -> None:
        self._registry.add("delay", self._shards.name, self._shards.settings)

    def _push(self, shard: Records, rows: Sequence[tuple[str, int, int, str, bytes]], on_conflict: Conflict) -> bytes:
        more = [field for row in rows for field in row]
        flags = bytes(self.call(shard, "delay/push", on_conflict=on_conflict, more=more))
        if flags.startswith(b"exists "):
            raise EntryExistsError(f"{self._shards.name}: an entry with id {id_text(flags[7:])!r} is already stored")
        return flags


def when(delay: Seconds | None, due_at: datetime | None) -> tuple[int, int]:
    """Return delay and due time in ms; one of them is 0. Raises InvalidDelayError for both, or an invalid one."""
    if delay is not None and due_at is not None:
        raise InvalidDelayError(f"delay={delay!r} and due_at={due_at!r}: must not both be given")
    if due_at is not None:
        # 0 means "use the delay", so a due time at the epoch becomes 1 ms later.
        return 0, max(1, point_ms(due_at))
    return duration_ms(0 if delay is None else delay), 0


def _check_destination(value: str) -> None:
    # A key may consist of any bytes, and some lists have control characters in their names: only surrogates cannot be
    # sent.
    valid = isinstance(value, str) and 0 < len(value.encode(errors="surrogatepass")) <= MAX_DESTINATION
    if not valid or value.encode(errors="replace").decode() != value:
        raise InvalidValueError(
            f"destination={value!r}: must be the name of a Redis list, up to {MAX_DESTINATION} bytes"
        )
