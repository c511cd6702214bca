"""Invariants of the keys of one queue, each checked in a consistent view."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from redis_queue.store.connection import Client
from redis_queue.store.keys import Keys


def misplaced(client: Client, keys: Keys) -> Iterator[str]:
    """Yield each fault: an id in two places, a record without a place, a place without a record."""
    with client.pipeline(transaction=True) as pipe:
        pipe.hkeys(keys.records)
        pipe.lrange(keys.ready, 0, -1)
        for place in (keys.waiting, keys.in_flight, keys.dead):
            pipe.zrange(place, 0, -1)
        records, *places = pipe.execute()
    found = Counter(id_ for place in places for id_ in place)
    for id_, count in found.items():
        if count > 1:
            yield f"{id_.decode()} is in {count} places"
    for id_ in set(records) - set(found):
        yield f"{id_.decode()} is in no place"
    for id_ in set(found) - set(records):
        yield f"{id_.decode()} has no record"


def miscounted(client: Client, keys: Keys, *, foreign: str) -> Iterator[str]:
    """Yield a fault unless the records of a RedisQueue are those put and not acked; *foreign* ids are ignored."""
    with client.pipeline(transaction=True) as pipe:
        pipe.hkeys(keys.records)
        pipe.hmget(keys.meta, "put", "acked")
        records, (put, acked) = pipe.execute()
    expected, found = int(put or 0) - int(acked or 0), sum(not id_.startswith(foreign.encode()) for id_ in records)
    if found != expected:
        yield f"expected {expected} records, got {found}"
