"""A healthy server with two queues, and the findings of the doctor about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import redis

from redis_queue import DelayQueue, RedisQueue
from redis_queue.doctor import Finding, examine
from redis_queue.operate.access import Access
from redis_queue.operate.diagnosis import examine as examine_all
from redis_queue.store.keys import Keys

Setting = Callable[[str, Any], None]
"""Set an option of the server until the end of the test."""

Limit = Callable[[str], redis.Redis]
"""Return a client of a user with exactly these ACL rules."""

LATER = 3600


@dataclass
class Stage:
    """A queue with messages ready, delayed and in flight, and a delay queue with entries waiting and in flight."""

    client: redis.Redis
    queue: RedisQueue
    delayed: DelayQueue
    at: Keys
    delayed_at: Keys

    def wrong(self) -> dict[str, str]:
        """Return the severity of each finding, by check."""
        return wrong(self.client)


def wrong(client: redis.Redis) -> dict[str, str]:
    """Return the severity of each finding, by check, without the check of the server version."""
    return {
        finding.check: finding.severity
        for finding in examine(client)
        if finding.severity != "ok" and finding.check != "version"
    }


def problems(access: Access, check: str, *, ask: bool = False) -> list[Finding]:
    """Return what *check* has found for an app or a Redis."""
    return [finding for finding in examine_all(access, ask=ask) if finding.check == check and finding.severity != "ok"]


def fill(client: redis.Redis) -> Stage:
    queue = RedisQueue("orders", client, lease=LATER)
    delayed = DelayQueue("reminders", client, lease=LATER)
    queue.put_many([f"m{number}" for number in range(8)], dedupe_key=str)
    queue.put("delayed", delay=LATER, dedupe_key="delayed")
    assert len(queue.get_many(3)) == 3
    for number in range(4):
        delayed.push(f"e{number}", id=f"e{number}", delay=LATER + number)
    delayed.push("held", id="held")
    assert len(delayed.claim(1)) == 1
    return Stage(
        client, queue, delayed, Keys("redis_queue", "queue", "orders"), Keys("redis_queue", "delay", "reminders", 0)
    )


def keyspace(client: redis.Redis) -> dict[Any, tuple[bytes | None, bool]]:
    """Return the dump of each key and whether it has a TTL."""
    return {key: (client.dump(key), client.pttl(key) >= 0) for key in client.keys("*")}
