"""The messages of one queue on a Redis broker, and of its flows: read, delete, move; and those in flight."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from redis_queue.admission.backlog import Backlog
from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.keys import InFlightKeys, ListNames
from redis_queue.celery.queues.message import Element, queue_of, with_route
from redis_queue.celery.queues.names import QueueNames
from redis_queue.errors import InvalidValueError
from redis_queue.store.chunks import CHUNK, MAX_CALL_BYTES, by_size, check_limit, check_offset, rows_of
from redis_queue.store.codec import read_document
from redis_queue.store.ids import id_bytes
from redis_queue.store.keys import BrokerKeys
from redis_queue.store.scripts import Scripts

REACH: Final = 10_000
"""How many of the oldest messages of each priority can be read, deleted and moved; a purge reaches all."""

MAX_AT_ONCE: Final = 100
"""Maximum number of messages of one call that removes."""

BATCH_BYTES: Final = 512 * 1024
"""Maximum bytes of messages of one call that removes."""

GROUP_PARTS: Final = 5

PASSES: Final = 3
"""How often the queue is searched for messages that workers move nearer to the end meanwhile."""


@dataclass(frozen=True, slots=True)
class Place:
    """A list of messages: that of a priority, or that of a *group* whose messages wait for a place in a flow."""

    step: int
    key: bytes
    scripts: Scripts
    group: bytes = b""


class QueueContents:
    """The messages of *queue* at a Redis broker, through kombu's *channel*. All methods raise StoreError.

    Without a channel, those of another broker are not known.
    The lists of its priorities are numbered in the order in which workers take from them: number 0 first. Behind them
    come those of the groups of *backlog*, the one that waits longest first; only numbers of this queue have messages.
    With *groups*, which may be of several queues, there are only their lists.
    """

    def __init__(
        self, channel: Any | None, queue: str, backlog: Backlog | None = None, groups: Sequence[bytes] | None = None
    ) -> None:
        self.queue = queue
        self._lists: list[Place] = []
        if channel is not None:
            self._names = ListNames.of(channel.connection.client.transport_options)
            self._scripts = Scripts(client_of(channel))
            self._slot = BrokerKeys(self._names.prefix).slot(os.urandom(8).hex())
            rows = zip(self._names.steps, self._names.all_of(queue), strict=True)
            self._lists = [Place(step, key.encode(), self._scripts) for step, key in rows]
        self._backlog = backlog
        self._has_ranks = backlog is not None and groups is None
        self._lists += [place for group in groups or () if (place := self._place_of(group)) is not None]
        self._pages: dict[int, list[bytes]] = {}
        self._numbers = itertools.count(1)

    @LazyProperty
    def lists(self) -> int:
        """The number of lists; of those of flows, the first :data:`REACH`."""
        ranks = min(REACH, self._backlog.groups()) if self._has_ranks and self._backlog is not None else 0
        return len(self._lists) + ranks

    def read(self, number: int, offset: int = 0, limit: int = CHUNK) -> list[Element]:
        """Return up to *limit* (1 to 500) messages of list *number*, the oldest first, without the *offset* oldest.

        Stops after 1 MiB. No message is returned from beyond the :data:`REACH` oldest.
        """
        check_limit(limit, CHUNK)
        check_offset(offset)
        place = self._place(number)
        if place is None:
            return []
        script = place.scripts.bind("broker/look", None, list=place.key)
        _, *rows = script(first=offset, limit=min(limit, REACH - offset))
        return [
            Element(place.step, older, int(size), head, tail, place.group)
            for older, (size, head, tail) in enumerate(rows_of(rows, 3), offset)
        ]

    def _place(self, number: int) -> Place | None:
        """Return list *number*; None for that of another queue."""
        rank = number - len(self._lists)
        if rank < 0 or self._backlog is None:
            return self._lists[number]
        page, at = divmod(rank, CHUNK)
        if page not in self._pages:
            self._pages[page] = self._backlog.oldest_groups(page * CHUNK, CHUNK)
        group = next(iter(self._pages[page][at : at + 1]), b"")
        return self._place_of(group) if queue_of(group) == id_bytes(self.queue) else None

    def _place_of(self, group: bytes) -> Place | None:
        """Return the list of *group*; None for one of another program."""
        if self._backlog is None or not group[:1].isdigit() or group.count(b"\0") != GROUP_PARTS - 1:
            return None
        return Place(int(group[:1]), self._backlog.messages(group), self._backlog.scripts, group)

    def size(self) -> int:
        """Return how many messages wait."""
        return sum(self._scripts.command("LLEN", place.key) for place in self._lists)

    def remove(self, references: Sequence[str], target: str | None = None) -> Iterator[tuple[list[Element], int]]:
        """Delete the messages with these *references*, or move them to the queue *target*, batch by batch.

        Yield the messages of each batch that were removed, and the number of those that cannot be moved: messages of
        other programs, those of *target* itself, and those larger than 1 MiB. Messages that have changed, or are gone,
        are left out. Moved ones keep their order and their priority, and those that wait for a place their keys.
        """
        steps = itertools.groupby(sorted(references), lambda reference: reference.partition(".")[0])
        wanted = {step: {*some} for step, some in steps}
        for number in range(self.lists):
            place = self._place(number) if any(wanted.values()) else None
            if place is None:
                continue
            of_list = wanted.get(str(place.step), set())
            for _ in range(1 if place.group else PASSES):
                if of_list:
                    yield from self._pass(number, place, of_list, target)

    def purge(self, limit: int) -> Iterator[int]:
        """Delete up to *limit* messages, the next ones first; yield the number of each batch."""
        for place in self._lists:
            script = self._scripts.bind("broker/drop", None, list=place.key, slot=self._slot)
            while limit > 0:
                count = int(script(sequence=next(self._numbers), limit=min(CHUNK, limit)))
                if not count:
                    break
                limit -= count
                yield count

    def _pass(
        self, number: int, place: Place, wanted: set[str], target: str | None
    ) -> Iterator[tuple[list[Element], int]]:
        """Remove those of *wanted* that are found, and remove their references from *wanted*."""
        offset = 0
        while wanted:
            read = self.read(number, offset, MAX_AT_ONCE)
            if not read:
                return
            chosen = [element for element in read if element.reference in wanted]
            removed: list[Element] = []
            if chosen:
                removed, refused = self._take(place, chosen, target)
                wanted.difference_update(element.reference for element in (*removed, *refused))
                yield removed, len(refused)
            offset += len(read) - len(removed)

    def _take(
        self, place: Place, elements: Sequence[Element], target: str | None
    ) -> tuple[list[Element], list[Element]]:
        """Remove *elements* from *place*; return those that were removed, and those that cannot be moved."""
        rows: list[tuple[Element, tuple[bytes, ...]]] = []
        refused: list[Element] = []
        for element in elements:
            try:
                rows.append((element, self._moved(place, element, target)))
            except InvalidValueError:
                refused.append(element)
        remove = self._remover(place, target)
        removed: list[Element] = []
        for batch in by_size(rows, lambda row: row[0].size + sum(map(len, row[1])), BATCH_BYTES):
            # Those that this call has removed were older.
            more = [
                part
                for element, data in batch
                for part in (element.older - len(removed), element.size, element.head, element.tail, *data)
            ]
            flags = remove(more)
            removed += [element for (element, _), flag in zip(batch, flags, strict=True) if flag == ord("1")]
        return removed, refused

    def _remover(self, place: Place, target: str | None) -> Callable[[list[Any]], bytes]:
        """Return a call of the script that removes messages from *place*, and moves them to the queue *target*."""
        if place.group and self._backlog is not None:
            return partial(self._backlog.remove, place.group, target)
        to = place.key if target is None else self._names.of_queue(target, place.step).encode()
        script = self._scripts.bind("broker/remove", None, list=place.key, target=to, slot=self._slot)
        return lambda more: bytes(script(sequence=next(self._numbers), more=more))

    def _moved(self, place: Place, element: Element, target: str | None) -> tuple[bytes, ...]:
        """Return what the script takes beside *element*: the message that the queue *target* gets, or b""."""
        if target is None:
            return (b"",)
        if queue_of(place.group) == id_bytes(target):
            raise InvalidValueError("it is there")
        if element.size > MAX_CALL_BYTES:
            raise InvalidValueError(f"{element.size:,} bytes: must be at most {MAX_CALL_BYTES:,} to be moved")
        data = element.head if not element.tail else place.scripts.command("LINDEX", place.key, -1 - element.older)
        if not data or not data.startswith(element.head) or not data.endswith(element.tail):
            raise InvalidValueError("it has changed")
        return (with_route(data, target),)


class InFlightMessages:
    """The messages that workers have taken and not settled, by the records at *keys*; *names* finds their queues.

    All methods raise StoreError.
    """

    def __init__(self, scripts: Scripts, keys: InFlightKeys, names: QueueNames) -> None:
        self._scripts, self._keys, self._names = scripts, keys, names

    def size(self) -> int:
        """Return how many messages are in flight."""
        return int(self._scripts.command("ZCARD", self._keys.index))

    def read(self, offset: int, limit: int, budget: int) -> list[tuple[str, Element]]:
        """Return up to *limit* messages, each with its queue, without the *offset* first ones.

        It stops before the message that would make more than *budget* bytes. If that is the first one, its contents are
        left out.
        """
        tags = self._scripts.command("ZRANGE", self._keys.index, offset, offset + limit - 1)
        calls = [self._scripts.read_call("HSTRLEN", self._keys.unacked, tag) for tag in tags]
        sizes = [int(size()) for size in self._scripts.each(calls)]
        fitting = sum(1 for total in itertools.accumulate(sizes) if total <= budget)
        if tags and not fitting:
            return [("", Element(0, offset, sizes[0], b""))]
        calls = [self._scripts.read_call("HGET", self._keys.unacked, tag) for tag in tags[:fitting]]
        records = [record() for record in self._scripts.each(calls)]
        return [self._element(offset + number, record or b"") for number, record in enumerate(records)]

    def _element(self, number: int, record: bytes) -> tuple[str, Element]:
        try:
            message, exchange, routing_key = read_document(record)
        except (ValueError, TypeError):
            # Settled meanwhile, or of another program.
            return "", Element(0, number, len(record), b"{}")
        queue = self._names.of({"exchange": exchange, "routing_key": routing_key})
        return queue, Element(0, number, len(record), json.dumps(message).encode())
