"""look() and in_flight(): a single message or entry, and those in flight."""

from __future__ import annotations

from datetime import timedelta

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue
from redis_queue.delay.model import Push
from redis_queue.errors import InvalidNameError
from redis_queue.store.keys import Keys
from tests.support.wait import must


def queue_of(client: redis.Redis) -> RedisQueue:
    """Return a queue with messages in every state."""
    queue = RedisQueue("orders", client, max_deliveries=5)
    for id_ in ("dead", "held", "ready"):
        queue.put({"order": id_}, headers={"trace": "abc"}, dedupe_key=id_)
    queue.put("later", delay=60, dedupe_key="later")
    dead, held = queue.get_many(2)
    queue.nack(dead, dead=True, reason="no answer")
    assert held.lease is not None
    return queue


def test_a_message_is_found_in_every_state(client: redis.Redis) -> None:
    queue = queue_of(client)
    ready = must(queue.look(queue.peek()[0].id))
    assert (ready.state, ready.at, ready.body, ready.headers) == ("ready", None, {"order": "ready"}, {"trace": "abc"})
    (held,) = queue.in_flight()
    found = must(queue.look(held.id))
    assert (found.state, found.at, found.deliveries) == ("in_flight", held.expires_at, 1)
    (letter,) = queue.dead_letters()
    died = must(queue.look(letter.id))
    assert (died.state, died.at, died.reason) == ("dead", letter.died_at, "no answer")
    assert queue.look("unknown") is None


@pytest.mark.parametrize("shards", [1, 3])
def test_an_entry_is_found_in_every_state(client: redis.Redis, shards: int) -> None:
    queue = DelayQueue("timed", client, shards=shards)
    queue.push_many([Push({"n": number}, id=f"e{number}", destination="list") for number in range(6)])
    queue.push("later", delay=60, id="later")
    waiting = queue.look("later")
    entry = queue.get("later")
    assert waiting is not None
    assert entry is not None
    assert (waiting.state, waiting.at, waiting.put_at) == ("delayed", entry.due_at, entry.put_at)
    claimed = queue.claim(6)
    held = queue.in_flight(limit=4)
    assert len(held) == 4
    assert [row.expires_at for row in held] == sorted(row.expires_at for row in held)
    assert {row.id for row in [*held, *queue.in_flight(offset=4)]} == {entry.id for entry in claimed}
    found = must(queue.look(claimed[0].id))
    assert (found.state, found.destination, found.deliveries) == ("in_flight", "list", 1)


def test_an_unreadable_entry_is_shown_with_the_problem(client: redis.Redis) -> None:
    queue = DelayQueue("timed", client)
    queue.push("later", delay=timedelta(minutes=1), id="later")
    keys = Keys("redis_queue", "delay", "timed", 0)
    client.hset(keys.records, "later", b"\x80\x05 pickle")
    broken = must(queue.look("later"))
    assert (broken.state, broken.body, broken.put_at) == ("delayed", None, None)
    assert broken.problem
    client.hdel(keys.records, "later")
    gone = must(queue.look("later"))
    assert (gone.state, gone.put_at) == ("delayed", None)


@pytest.mark.parametrize("id_", ["", "a\nb", "x" * 256])
def test_an_invalid_id_is_refused(client: redis.Redis, id_: str) -> None:
    with pytest.raises(InvalidNameError):
        RedisQueue("orders", client).look(id_)
    with pytest.raises(InvalidNameError):
        DelayQueue("timed", client).look(id_)
