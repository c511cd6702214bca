"""Check all promises of a history.

Those of messages, which ``redis-queue validate`` checks, too, and those of locks, flows, unique tasks and schedules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from chaos.flow_runs import OUTSIDE, broken_runs, is_run
from chaos.holds import broken_holds, is_hold
from chaos.schedule_runs import broken_schedules, is_schedule
from chaos.unique_runs import broken_uniques, is_unique
from redis_queue.store.connection import Client
from redis_queue.store.keys import Keys
from redis_queue.validation.history import CheckResult, Event, Violation
from redis_queue.validation.history import check as check_messages


def check(events: Sequence[Event], left: Iterable[str]) -> CheckResult:
    """Check the history *events* of a run; *left* are the ids that are still in Redis at its end.

    Besides the promises of messages: nobody takes a lock while another one holds it, and the fence of each holder is
    greater than those before. The runs of tasks have a place in their flows, and keep their limits, rates, order and
    turns. Calls of unique tasks have one task of a key at a time, and lose none. Of schedules, each due time is sent
    once or counted as skipped.
    """
    others = [event for event in events if not is_unique(event) and not is_schedule(event)]
    verdict = check_messages((event for event in others if not is_hold(event) and not is_run(event)), left)
    verdict.violations += [Violation(*broken) for broken in broken_holds(filter(is_hold, others))]
    verdict.violations += [Violation(*broken) for broken in broken_runs(others)]
    verdict.violations += [Violation(*broken) for broken in broken_uniques(events)]
    verdict.violations += [Violation(*broken) for broken in broken_schedules(filter(is_schedule, events))]
    outside = (event for event in events if event.op == OUTSIDE)
    verdict.violations += [Violation("ran outside its flow", event.id, [event]) for event in outside]
    return verdict


# Invariants of the keys of one queue, each checked in a consistent view.


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
