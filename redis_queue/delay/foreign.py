"""Store messages that this queue did not write: found elsewhere in Redis, or dead before they got here."""

from __future__ import annotations

import itertools
import os
from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Any, Final

from redis_queue.delay.model import ForeignMessage, Push
from redis_queue.delay.shards import OUTCOMES, Shards
from redis_queue.delay.writer import EntryWriter
from redis_queue.store.chunks import by_size, chunks
from redis_queue.store.connection import Client
from redis_queue.store.ids import id_bytes
from redis_queue.store.records import reason_bytes
from redis_queue.store.scripts import Scripts

AT_ONCE: Final = 100
"""Most messages in one call: Redis walks along a list to each of them."""


class Foreign:
    """Operations with foreign messages of one DelayQueue: ``queue.foreign``."""

    def __init__(self, shards: Shards, writer: EntryWriter) -> None:
        self._shards = shards
        self._writer = writer

    def adopt(self, found: Sequence[tuple[Push, ForeignMessage]]) -> list[bool | None]:
        """Store messages as entries and remove them from their old place in this Redis, each in one atomic step.

        True: done. False: the message is not there any more. None: an entry with its id is stored already. With False
        and None nothing happened. Raises ConfigurationError on Cluster.
        """
        self._shards.check_one_server("adopt")
        rows = [self._writer.row(push, iter([""])) for push, _ in found]
        flags: list[bool | None] = [False] * len(rows)
        gaps = _Gaps()
        for shard, group in self._shards.grouped([row[0] for row in rows]):
            sized = (
                part
                for chunk in chunks(group, AT_ONCE)
                for part in by_size((index, rows[index][-1]) for index in chunk)
            )
            for part in sized:
                chosen = [index for index, _ in part]
                fields: list[Any] = []
                for index in chosen:
                    id_, _, due, _, record = rows[index]
                    message = found[index][1]
                    fields += [id_bytes(id_), due, *message.fields(gaps.right_of(message)), record]
                reply = self._writer.call(shard, "delay/adopt", more=fields)
                for index, flag in zip(chosen, reply, strict=True):
                    flags[index] = OUTCOMES[flag]
                gaps.add([found[index][1] for index in chosen if flags[index]])
        return flags

    def take_out(self, found: Sequence[ForeignMessage], server: Client) -> list[bool]:
        """Remove messages from their place in *server*. False: the message is not there any more."""
        keys, gaps = self._shards[0].keys, _Gaps()
        script = Scripts(server).bind("delay/adopt", keys, slot=keys.slot(os.urandom(8).hex()))
        flags: list[bool] = []
        calls = itertools.count(1)
        sized = (part for chunk in chunks(found, AT_ONCE) for part in by_size((item, item.element) for item in chunk))
        for part in sized:
            fields = [field for item, _ in part for field in ("", 0, *item.fields(gaps.right_of(item)), "")]
            _, reply = script(now=1, sequence=next(calls), more=fields)
            flags += [OUTCOMES[flag] is True for flag in reply]
            gaps.add([item for (item, _), flag in zip(part, reply, strict=True) if OUTCOMES[flag]])
        return flags

    def bury(self, item: Push, *, reason: str, deliveries: int) -> bool:
        """Store *item*, which has an id, as a dead letter with so many deliveries; replace an older one with its id.

        False: an entry with its id waits or is in flight; nothing was stored.
        """
        id_, *_, record = self._writer.row(item, iter(()))
        stored = self._writer.call(
            self._shards.of(id_),
            "dead/add",
            id=id_bytes(id_),
            record=record,
            deliveries=deliveries,
            reason=reason_bytes(reason),
        )
        return bool(stored)


class _Gaps:
    """The places that were emptied in lists: whatever stands to the left of a gap moves to the right."""

    def __init__(self) -> None:
        self._places: dict[str, list[int]] = {}

    def right_of(self, item: ForeignMessage) -> int:
        """Return the number of gaps to the right of *item*."""
        places = self._places.get(item.key)
        return len(places) - bisect_right(places, item.place) if places and isinstance(item.place, int) else 0

    def add(self, taken: Sequence[ForeignMessage]) -> None:
        for item in taken:
            if isinstance(item.place, int):
                insort(self._places.setdefault(item.key, []), item.place)
