"""Depths of queues on a Redis broker."""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from celery import Celery

from redis_queue.admission.backlog import sent_at
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.keys import InFlightKeys, ListNames
from redis_queue.celery.queues.depth import BrokerQueues, Depth
from redis_queue.celery.queues.names import QueueNames
from redis_queue.store.chunks import chunks, rows_of
from redis_queue.store.scripts import Scripts

MAX_RECORDS: Final = 1000
"""Maximum number of messages in flight that are read to count them for each queue."""

LISTS: Final = 400
"""Maximum number of lists of one call."""

BINDINGS: Final = "_kombu.binding."
MAX_SCANS: Final = 20
SCAN: Final = 1000
MAX_BOUND: Final = 10_000
"""Maximum number of queues that are found by their bindings."""

MAX_LISTS: Final = 2000
"""Maximum number of lists of one call that only reads their lengths."""

NOT_A_LIST: Final = "its key in the broker is not a list: another program has written it"

_ROUTE: Final = re.compile(rb'("(?:[^"\\]|\\.)*"), ?("(?:[^"\\]|\\.)*")\]$')


class RedisQueues(BrokerQueues):
    """Reads queues through kombu's *channel*. All methods raise StoreError."""

    def __init__(self, app: Celery, channel: Any) -> None:
        self._names = QueueNames(app)
        self._lists = ListNames.of(channel.connection.client.transport_options)
        self._scripts = Scripts(client_of(channel))
        unacked = InFlightKeys.of(channel).unacked
        self._script = self._scripts.bind("broker/depth", None, unacked=unacked)
        self._sizes = self._scripts.bind("broker/sizes", None, unacked=unacked)

    def bound(self, known: Collection[str] = ()) -> set[str]:
        """Return the names of queues that kombu has bound, of the first 20,000 keys of the broker.

        The bindings of an exchange with the same name as one of the *known* queues are not read.
        """
        root = f"{self._lists.prefix}{BINDINGS}"
        names: set[str] = set()
        unknown: list[bytes] = []
        cursor: Any = 0
        for _ in range(MAX_SCANS):
            cursor, keys = self._scripts.command("SCAN", cursor, "MATCH", f"{root}*", "COUNT", SCAN, "TYPE", "set")
            for key in keys:
                exchange = key.decode(errors="replace").removeprefix(root)
                if exchange in known:
                    names.add(exchange)
                else:
                    unknown.append(key)
            if not int(cursor) or len(names) + len(unknown) >= MAX_BOUND:
                break
        for member in self._members(unknown):
            # Names that are not UTF-8 are those of another program.
            with contextlib.suppress(UnicodeDecodeError):
                names.add(member.decode().rpartition(self._lists.separator)[2])
        return names

    def _members(self, keys: Sequence[bytes]) -> Iterator[bytes]:
        sizes = self._scripts.each([self._scripts.read_call("SCARD", key) for key in keys])
        small = [key for key, size in zip(keys, sizes, strict=True) if size() <= SCAN]
        for members in self._scripts.each([self._scripts.read_call("SMEMBERS", key) for key in small]):
            yield from members()

    def sizes(self, queues: Sequence[str]) -> tuple[list[int | None], int]:
        """Return how many messages wait in the lists of each queue, and how many are in flight at the broker."""
        width, in_flight, found = len(self._lists.steps), 0, list[int | None]()
        for chunk in chunks(queues, MAX_LISTS // width):
            lists = [key.encode() for queue in chunk for key in self._lists.all_of(queue)]
            in_flight, *counts = self._sizes(width=width, more=lists)
            found += counts
        return found, in_flight

    def depths(self, queues: Sequence[str]) -> list[Depth]:
        """Return the depth of each queue; a few commands for each 100 queues.

        The messages in flight are counted for each queue up to :data:`MAX_RECORDS` in all; of more, in_flight is None.
        """
        found: list[Depth] = []
        held: Counter[str] | None = Counter()
        for number, chunk in enumerate(chunks(queues, LISTS // len(self._lists.steps))):
            lists = [key.encode() for queue in chunk for key in self._lists.all_of(queue)]
            limit = MAX_RECORDS if number == 0 else -1
            (size, *records), *counts = self._script(limit=limit, more=lists)
            if number == 0:
                held = self._held(records) if size == len(records) else None
            rows = rows_of(counts, 3)
            for queue in chunk:
                found.append(_depth([next(rows) for _ in self._lists.steps], None if held is None else held[queue]))
        return found

    def _held(self, records: Sequence[bytes]) -> Counter[str]:
        found: Counter[str] = Counter()
        for record in records:
            route = _ROUTE.search(record)
            if route is not None:
                with contextlib.suppress(ValueError):
                    exchange, key = (json.loads(part) for part in route.groups())
                    found[self._names.of({"exchange": exchange, "routing_key": key})] += 1
        return found


def _depth(rows: Sequence[Any], held: int | None) -> Depth:
    lengths = [length for length, _, _ in rows]
    error = NOT_A_LIST if min(lengths) < 0 else ""
    times = [at for at in (sent_at(sent, due) for _, sent, due in rows) if at is not None]
    return Depth(sum(max(0, length) for length in lengths), held, None, min(times, default=None), error=error)
