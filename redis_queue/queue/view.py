"""QueueView: everything that only looks into a RedisQueue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from redis_queue.model import DeadLetter, InFlight, Item, Lease, Message, Quarantined, QueueStats, Unread
from redis_queue.store.chunks import CHUNK, check_budget, check_limit, check_offset
from redis_queue.store.codec import UnreadableError
from redis_queue.store.connection import Client, connect, longest_wait
from redis_queue.store.ids import check_id, id_text
from redis_queue.store.keys import Keys
from redis_queue.store.records import Clock, Shard, server_clock
from redis_queue.store.registry import Registry
from redis_queue.store.scripts import Scripts
from redis_queue.store.settings import QueueOverrides, Settings
from redis_queue.times import from_ms

if TYPE_CHECKING:
    from typing_extensions import Unpack


class QueueView:
    """The keys of one RedisQueue, and the looks into them."""

    def __init__(
        self,
        name: str,
        redis: str | Client,
        *,
        settings: Settings | None = None,
        clock: Clock = server_clock,
        **overrides: Unpack[QueueOverrides],
    ) -> None:
        self.name = name
        self.settings = Settings.choose(settings, overrides)
        keys = Keys(self.settings.prefix, "queue", name)
        self.client = connect(redis, check=isinstance(redis, str))
        self._scripts = Scripts(self.client)
        self._registry = Registry(self._scripts, self.settings.prefix)
        self._registered = False
        self._lease_ms = self.settings.lease_ms
        self._poll = self.settings.poll_seconds
        self._longest_wait = longest_wait(self.client)
        self._keys = keys
        self._shard = Shard(self._scripts, keys, self.settings, listed=True, clock=clock)

    def __repr__(self) -> str:
        return f"RedisQueue({self.name!r}, prefix={self.settings.prefix!r})"

    def peek(self, limit: int = 1, *, max_bytes: int | None = None) -> list[Message]:
        """Return the next messages without claiming them; unreadable ones are left out.

        More than 1 MiB takes several calls, between which messages may be claimed. With *max_bytes* only so much is
        read: the body of a message that does not fit is an :class:`Unread`.
        """
        rows = self._shard.pages("queue/peek", 3, 0, check_limit(limit, CHUNK), check_budget(max_bytes))
        found = (self._read(id_, count, record, None) for id_, count, record in rows)
        return [message for message in found if isinstance(message, Message)]

    def stats(self) -> QueueStats:
        """Count everything in one consistent look."""
        return read_stats(self._shard.run("queue/stats"))

    def __len__(self) -> int:
        """Count messages that wait: ready and delayed."""
        stats = self.stats()
        return stats.ready + stats.delayed

    def __bool__(self) -> bool:
        return True

    def dead_letters(self, *, offset: int = 0, limit: int = 100, max_bytes: int | None = None) -> list[DeadLetter]:
        """Return a page of dead letters, oldest first. More than 1 MiB takes several calls.

        With *max_bytes* only so much is read: the body of a letter that does not fit is an :class:`Unread`.
        """
        return self._shard.dead_letters(check_offset(offset), check_limit(limit, CHUNK), check_budget(max_bytes))

    def quarantined(self, *, offset: int = 0, limit: int = 100, max_bytes: int | None = None) -> list[Quarantined]:
        """Return a page of records that could not be read, oldest first.

        With *max_bytes* only so much is read: *raw* of a record that does not fit is empty.
        """
        return self._shard.quarantined(check_offset(offset), check_limit(limit, CHUNK), check_budget(max_bytes))

    def look(self, id: str, *, max_bytes: int | None = None) -> Item | None:
        """Return the message *id* in any state, also a dead letter; None if it does not exist.

        With *max_bytes* the body of a larger record is an :class:`Unread`.
        """
        return self._shard.look(check_id(id), check_budget(max_bytes))

    def versions(self, ids: Iterable[str]) -> dict[str, str]:
        """Return the versions of existing *ids*; a version changes when another message is put under the id."""
        return self._shard.versions([check_id(id_) for id_ in ids])

    def in_flight(self, *, offset: int = 0, limit: int = 100) -> list[InFlight]:
        """Return a page of what is in flight, the lease that ends first before the others."""
        return self._shard.in_flight(check_offset(offset), check_limit(limit, CHUNK))

    def _read(self, raw_id: bytes, deliveries: int, record: bytes | int, lease: Lease | None) -> Message | None:
        id_ = id_text(raw_id)
        if isinstance(record, int):
            return Message(id_, Unread(record), {}, from_ms(0), deliveries, lease)
        try:
            put_at, headers, body, _ = self._shard.codec.decode(record)
        except UnreadableError as error:
            if lease is not None:
                self._shard.set_aside(Message(id_, None, {}, from_ms(0), deliveries, lease), str(error))
            return None
        return Message(id_, body, headers, from_ms(put_at), deliveries, lease)


def read_stats(reply: Sequence[Any]) -> QueueStats:
    """Return what the script ``queue/stats`` answered."""
    ready, delayed, in_flight, dead, quarantined, put, acked, redelivered, paused, oldest, put_back = reply
    return QueueStats(
        ready,
        delayed,
        in_flight,
        dead,
        quarantined,
        put,
        acked,
        redelivered,
        bool(paused),
        from_ms(oldest) if oldest else None,
        put_back,
    )
