"""A store in another region: a Redis with a proxy that delays each round trip."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Final

from redis_queue import DelayQueue
from redis_queue.delay.model import Push
from redis_queue.model import Entry
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

ROUND_TRIP: Final = 0.08
BATCH: Final = 5000
CALLS: Final = 20


def figures() -> Iterator[tuple[str, float]]:
    """Yield the label and the figure of each measurement over a round trip of ROUND_TRIP seconds."""
    with RedisServer(tcp=True) as server, FaultProxy(server.address) as proxy:
        away, here = DelayQueue("regions", proxy.url), DelayQueue("regions", server.url)
        away.push("first", delay=3600)
        proxy.latency = ROUND_TRIP
        yield "stored one by one, entries/s", 1 / _seconds(lambda: away.push("x", delay=3600), CALLS)
        pushes = [Push("x" * 200, 3600) for _ in range(BATCH)]
        yield f"stored by push_many of {BATCH:,}, entries/s", BATCH / _seconds(lambda: list(away.push_many(pushes)), 1)
        yield "lateness with the dispatcher beside the store, ms", _late_ms(away, here)
        yield f"lateness with the dispatcher {1000 * ROUND_TRIP:.0f} ms away from it, ms", _late_ms(here, away)
        assert here.count() == CALLS + BATCH + 1


def _seconds(call: Callable[[], object], times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - started) / times


def _late_ms(sender: DelayQueue, dispatcher: DelayQueue) -> float:
    """Return the median lateness with which a dispatcher claims the entries of *sender*."""
    found: list[float] = []
    for _ in range(CALLS):
        sender.push("x", delay=0.3)
        (entry,) = _claimed(dispatcher)
        found.append(time.time() - entry.due_at.timestamp())
        dispatcher.ack(entry)
    return statistics.median(found) * 1000


def _claimed(queue: DelayQueue) -> list[Entry]:
    while True:
        if entries := queue.claim(1):
            return entries
        time.sleep(max(0, min(queue.moves.due_in() or 0, 1)))
