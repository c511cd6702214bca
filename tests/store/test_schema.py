"""Releases that share data: this one reads the data of the first release and leaves that of newer ones alone."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator

import pytest
import redis

from redis_queue import DelayQueue, Lease, PutBack, RedisQueue
from redis_queue.basics.times import from_ms
from redis_queue.store.keys import Keys
from redis_queue.store.registry import Registry, RegistryRow
from redis_queue.store.scripts import Scripts
from tests.support.paths import ROOT
from tests.support.store.schema import MOMENT, write_schema_1
from tests.support.wait import must, wait_until


class TestFirstRelease:
    @pytest.fixture(autouse=True)
    def data(self, client: redis.Redis) -> None:
        """The data that the first release wrote."""
        write_schema_1(client)

    def queue(self, client: redis.Redis, later: int = 0) -> RedisQueue:
        """Return its queue *later* milliseconds after the data was written."""
        return RedisQueue("orders", client, clock=lambda: MOMENT + later, max_deliveries=3, put_back_on_get=0)

    def timed(self, client: redis.Redis, later: int = 0) -> DelayQueue:
        """Return its delay queue *later* milliseconds after the data was written."""
        return DelayQueue("orders", client, clock=lambda: MOMENT + later, max_deliveries=3)

    def test_messages_can_be_claimed(self, client: redis.Redis) -> None:
        queue = self.queue(client)
        nacked, bare = queue.get_many(10)
        assert (nacked.id, nacked.body, nacked.deliveries) == ("nacked", "nacked", 2)
        assert (bare.id, bare.body, bare.deliveries) == ("bytes", b"\x00\xff raw", 1)
        assert [(item.id, item.raw) for item in queue.quarantined()] == [("broken", b"garbage")]
        assert queue.ack_many([nacked, bare]) == [True, True]
        assert queue.get(block=False) is None
        assert [message.body for message in self.queue(client, 60_000).get_many(5)] == ["delayed"]

    def test_leases_are_valid(self, client: redis.Redis) -> None:
        queue = self.queue(client)
        (held,) = queue.get_many(1)
        held = type(held)(
            id="held",
            body=held.body,
            headers=held.headers,
            deliveries=1,
            put_at=held.put_at,
            lease=Lease("1-fdb59ee84e1096a7", from_ms(MOMENT + 60_000)),
        )
        assert queue.still_mine(held)
        assert queue.put_back() == PutBack()
        assert queue.ack(held)
        assert not queue.ack(held)

    def test_leases_expire(self, client: redis.Redis) -> None:
        late = self.queue(client, 60_001)
        assert late.put_back() == PutBack(returned=1)
        (held,) = late.get_many(1)
        assert (held.id, held.body, held.deliveries) == ("held", {"n": 1, "name": "Zoë"}, 2)
        assert held.headers == {"trace": "abc"}
        assert held.put_at == from_ms(MOMENT)

    def test_dead_letters_can_be_redriven(self, client: redis.Redis) -> None:
        for queue in (self.queue(client), self.timed(client)):
            (letter,) = queue.dead_letters()
            assert (letter.id, letter.body, letter.deliveries, letter.reason) == ("dead", "dead", 1, "on purpose")
            assert queue.redrive() == 1

    def test_entries_can_be_claimed_and_moved(self, client: redis.Redis) -> None:
        timed = self.timed(client, 60_001)
        waiting = must(timed.get("waiting"))
        assert (waiting.payload, waiting.due_at) == ({"n": 2}, from_ms(MOMENT + 60_000))
        assert timed.move_due() == 1
        assert client.lrange("target", 0, -1) == [b"to a list"]
        assert timed.put_back() == PutBack(returned=1)
        found = {entry.id: entry for entry in timed.claim(10)}
        assert found.keys() == {"waiting", "held"}
        assert (found["held"].payload, found["held"].headers) == ("held", {"trace": "abc"})
        assert found["held"].deliveries == 2

    def test_the_registry_is_read(self, client: redis.Redis) -> None:
        assert Registry(Scripts(client), "redis_queue").all() == [
            RegistryRow("delay", "celery", max_deliveries=20, shards=1),
            RegistryRow("delay", "orders", max_deliveries=3, shards=1),
            RegistryRow("queue", "orders", max_deliveries=3, shards=1),
        ]


@contextlib.contextmanager
def working(role: str, url: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process of `tests.support.store.schema`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.store.schema", role, url], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


ROLES = ("put", "consume", "push", "pop")


class TestNewerRelease:
    """A newer release raises the schema while processes of this release work."""

    def raise_schema(self, client: redis.Redis, schema: int) -> None:
        """Write a schema number as another release would."""
        for keys in (Keys("redis_queue", "queue", "orders"), Keys("redis_queue", "delay", "orders", 0)):
            client.hset(keys.meta, "schema", schema)

    def test_stops_older_processes_and_a_downgrade_loses_nothing(self, client: redis.Redis, redis_url: str) -> None:
        with contextlib.ExitStack() as running:
            processes = {role: running.enter_context(working(role, redis_url)) for role in ROLES}
            wait_until(
                lambda: client.llen("popped") > 50 and client.llen("consumed") > 50,
                description="all roles to work",
            )
            self.raise_schema(client, 2)
            for role, process in processes.items():
                output, _ = process.communicate(timeout=60)
                assert (process.returncode, role, "newer redis_queue" in output) == (3, role, True), output
        queue, timed = RedisQueue("orders", client), DelayQueue("orders", client)
        assert (queue.stats().in_flight, timed.stats().in_flight) == (0, 0)

        self.raise_schema(client, 1)
        left = [message.body for message in iter(lambda: queue.get(block=False), None)]
        done = [json.loads(row) for row in client.lrange("consumed", 0, -1)]
        assert Counter(done + left) == Counter(map(int, client.lrange("put", 0, -1)))
        left = [entry.payload for page in iter(lambda: timed.claim(500), []) for entry in page]
        done = [json.loads(row) for row in client.lrange("popped", 0, -1)]
        assert Counter(done + left) == Counter(map(int, client.lrange("pushed", 0, -1)))
