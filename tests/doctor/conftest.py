"""A server that nothing is wrong with, and two queues in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue
from redis_queue.doctor import examine
from redis_queue.store.keys import Keys
from tests.support.servers import RedisServer, client_options

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
        """Return severities of what is found, by check."""
        return wrong(self.client)


def wrong(client: redis.Redis) -> dict[str, str]:
    """Return severities of what is found, by check; the version is what the machine has."""
    return {
        finding.check: finding.severity
        for finding in examine(client)
        if finding.severity != "ok" and finding.check != "version"
    }


def fill(client: redis.Redis) -> Stage:
    """Put both queues into Redis."""
    queue = RedisQueue("orders", client, visibility_timeout=LATER)
    delayed = DelayQueue("reminders", client, visibility_timeout=LATER)
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


@pytest.fixture(scope="package")
def sound() -> Iterator[RedisServer]:
    """A server with an append-only file."""
    with RedisServer(aof="everysec") as server:
        yield server


@pytest.fixture
def client(sound: RedisServer) -> Iterator[redis.Redis]:
    """A client of it, emptied before the test."""
    with sound.client() as client:
        client.flushall()
        yield client


@pytest.fixture
def stage(client: redis.Redis) -> Stage:
    """Both queues, filled."""
    return fill(client)


Setting = Callable[[str, Any], None]


@pytest.fixture
def setting(client: redis.Redis) -> Iterator[Setting]:
    """Set an option of the server until the end of the test."""
    before: dict[str, Any] = {}

    def change(name: str, value: Any) -> None:
        before.setdefault(name, client.config_get(name)[name])
        client.config_set(name, value)

    yield change
    for name, value in before.items():
        client.config_set(name, value)


Limit = Callable[[str], redis.Redis]


@pytest.fixture
def limited(sound: RedisServer, client: redis.Redis) -> Iterator[Limit]:
    """Return a client of a user with these rules and no others."""
    clients: list[redis.Redis] = []

    def make(rules: str) -> redis.Redis:
        client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">secret", *rules.split())
        found = redis.Redis(
            unix_socket_path=str(sound.socket), username="limited", password="secret", **client_options()
        )
        clients.append(found)
        return found

    yield make
    for made in clients:
        made.close()
    client.execute_command("ACL", "DELUSER", "limited")
