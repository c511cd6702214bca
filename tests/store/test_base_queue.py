"""What a RedisQueue and a DelayQueue, of one shard or of several, do in the same way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

import pytest
import redis

from redis_queue import DelayQueue, Entry, Message, PutBack, RedisQueue
from redis_queue.catalog import AnyQueue
from redis_queue.delay.model import Push
from redis_queue.store.registry import Registry
from redis_queue.store.scripts import Scripts
from tests.support.clock import Clock, when
from tests.support.wait import must

KINDS: Final[dict[str, Callable[..., AnyQueue]]] = {
    "RedisQueue": RedisQueue,
    "1 shard": DelayQueue,
    "3 shards": lambda *arguments, **settings: DelayQueue(*arguments, **settings, shards=3),
}


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, client: redis.Redis, clock: Clock) -> Callable[..., AnyQueue]:
    return lambda **settings: KINDS[request.param]("orders", client, clock=clock, **settings)


@pytest.fixture
def queue(make: Callable[..., AnyQueue]) -> AnyQueue:
    return make(max_deliveries=3)


def add(queue: AnyQueue, *bodies: Any, delay: float = 0, headers: dict[str, Any] | None = None) -> list[str]:
    """Put or push *bodies*; return the ids."""
    if isinstance(queue, DelayQueue):
        return queue.push_many([Push(body, delay=delay, headers=headers) for body in bodies])
    return queue.put_many(bodies, delay=delay, headers=headers)


def claim(queue: AnyQueue, limit: int = 500) -> list[Any]:
    return queue.claim(limit) if isinstance(queue, DelayQueue) else queue.get_many(limit)


def bodies(items: Sequence[Message | Entry]) -> list[Any]:
    """Return the bodies of *items*; those of entries sorted, since shards are claimed one after the other."""
    found = [item.body if isinstance(item, Message) else item.payload for item in items]
    return found if all(isinstance(item, Message) for item in items) else sorted(found)


def data_left(client: redis.Redis) -> list[bytes]:
    """Return all keys but slots, counters, tokens that wake consumers, and the registry."""
    kept = (b":slot:", b":meta", b":registry", b":wake")
    return sorted(key for key in client.scan_iter() if not any(part in key for part in kept))


class TestLease:
    def test_it_ends_after_its_time_and_not_before(self, queue: AnyQueue, clock: Clock) -> None:
        add(queue, "a")
        (late,) = claim(queue)
        clock.forward(59.999)
        assert queue.put_back() == PutBack()
        clock.forward(0.001)
        assert queue.put_back() == PutBack(returned=1)
        assert queue.put_back() == PutBack()
        assert not isinstance(queue, RedisQueue) or queue.stats().redelivered == 1
        (item,) = claim(queue)
        assert (bodies([item]), item.deliveries) == (["a"], 2)
        assert not queue.ack(late)
        assert not queue.nack(late)
        assert not queue.extend(late)
        assert queue.ack(item)

    def test_a_put_back_returns_at_most_its_limit(self, queue: AnyQueue, clock: Clock) -> None:
        add(queue, *range(700))
        for _ in range(2):
            claim(queue)
        clock.forward(60)
        assert queue.put_back(510) == PutBack(returned=510)
        assert queue.put_back() == PutBack(returned=190)

    def test_an_extended_one_lasts_longer(self, queue: AnyQueue, clock: Clock) -> None:
        add(queue, "a")
        (item,) = claim(queue)
        clock.forward(50)
        assert queue.extend(item, timedelta(minutes=10))
        clock.forward(599)
        assert queue.put_back() == PutBack()
        assert not isinstance(queue, RedisQueue) or queue.still_mine(item)
        clock.forward(1)
        assert queue.put_back() == PutBack(returned=1)
        assert not isinstance(queue, RedisQueue) or not queue.still_mine(item)

    def test_an_ended_one_can_be_extended_until_it_is_put_back(self, queue: AnyQueue, clock: Clock) -> None:
        add(queue, "a")
        (item,) = claim(queue)
        clock.forward(600)
        assert not isinstance(queue, RedisQueue) or queue.still_mine(item)
        assert queue.extend(item, 10)
        clock.forward(9)
        assert queue.put_back() == PutBack()
        assert queue.ack(item)

    def test_an_extension_never_shortens_it(self, queue: AnyQueue) -> None:
        add(queue, "a")
        (item,) = claim(queue)
        for length in (timedelta(hours=1), 1, 0):
            assert queue.extend_many([item], length) == [True]
        assert [held.expires_at for held in queue.in_flight()] == [when(3600)]


class TestNack:
    def test_with_a_delay_it_comes_back_later(self, queue: AnyQueue, clock: Clock) -> None:
        add(queue, "a", "b")
        first, second = claim(queue)
        assert queue.nack(first, delay=timedelta(seconds=5))
        assert queue.nack(second)
        assert not isinstance(queue, DelayQueue) or len(queue.list(due_after=when(5))) == 1
        assert bodies(claim(queue)) == bodies([second])
        clock.forward(4.999)
        assert claim(queue) == []
        clock.forward(0.001)
        assert [(bodies([item]), item.deliveries) for item in claim(queue)] == [(bodies([first]), 2)]

    def test_uncounted_it_does_not_count_the_delivery(self, make: Callable[..., AnyQueue]) -> None:
        queue = make(max_deliveries=1)
        add(queue, "a")
        for _ in range(5):
            (item,) = claim(queue)
            assert item.deliveries == 1
            assert queue.nack(item, counted=False)
        assert queue.stats().dead == 0

    def test_dead_it_is_a_dead_letter_at_once(self, queue: AnyQueue, clock: Clock) -> None:
        add(queue, {"a": 1}, headers={"h": 1})
        clock.forward(7)
        (item,) = claim(queue)
        assert queue.nack(item, dead=True, counted=False, reason="not for us")
        (letter,) = queue.dead_letters()
        assert (letter.id, letter.body, letter.headers) == (item.id, {"a": 1}, {"h": 1})
        assert (letter.died_at, letter.deliveries, letter.reason) == (when(7), 1, "not for us")
        assert claim(queue) == []

    def test_after_its_last_delivery_it_is_a_dead_letter_with_the_last_reason(self, queue: AnyQueue) -> None:
        add(queue, "a", "b")
        for reason in ("first", "second", ""):
            assert queue.nack_many(claim(queue), reason=reason) == [True, True]
        assert [(letter.deliveries, letter.reason) for letter in queue.dead_letters()] == [(3, "second")] * 2

    def test_after_its_last_delivery_the_end_of_its_lease_makes_it_a_dead_letter(
        self, make: Callable[..., AnyQueue], clock: Clock
    ) -> None:
        queue = make(max_deliveries=2)
        slow, bare = add(queue, "slow", "bare")
        queue.nack_many([item for item in claim(queue) if item.id == slow], reason="slow")
        claim(queue)
        clock.forward(60)
        assert queue.put_back() == PutBack(returned=1, dead=1)
        claim(queue)
        clock.forward(60)
        assert queue.put_back() == PutBack(dead=1)
        assert [(letter.id, letter.body, letter.reason, letter.died_at) for letter in queue.dead_letters()] == [
            (slow, "slow", "lease expired; before that: slow", when(60)),
            (bare, "bare", "lease expired", when(120)),
        ]

    def test_the_end_of_a_lease_keeps_the_reason_before_it(self, make: Callable[..., AnyQueue], clock: Clock) -> None:
        queue = make(max_deliveries=0)
        (id_,) = add(queue, "a")
        queue.nack_many(claim(queue), reason="slow")
        for _ in range(3):
            claim(queue)
            clock.forward(60)
            queue.put_back()
        assert must(queue.look(id_)).reason == "lease expired; before that: slow"
        queue.nack_many(claim(queue), reason="busy")
        assert must(queue.look(id_)).reason == "busy"

    def test_a_long_reason_is_cut(self, queue: AnyQueue) -> None:
        add(queue, "a")
        queue.nack_many(claim(queue), dead=True, reason="é" * 5000 + "\ud800")
        assert queue.dead_letters()[0].reason == "é" * 2000

    def test_without_a_limit_it_never_dies(self, make: Callable[..., AnyQueue], clock: Clock) -> None:
        queue = make(max_deliveries=0)
        add(queue, "a")
        for count in range(1, 50):
            (item,) = claim(queue)
            assert item.deliveries == count
            if count % 2:
                assert queue.nack(item, reason="again")
            else:
                clock.forward(60)
                assert queue.put_back() == PutBack(returned=1)


class TestDeadLetters:
    @pytest.fixture
    def dead(self, queue: AnyQueue, clock: Clock) -> list[str]:
        """The ids of ten dead letters, oldest first."""
        ids = []
        for number in range(10):
            ids += add(queue, number)
            clock.forward(1)
            queue.nack_many(claim(queue), dead=True, reason=f"reason {number}")
        return ids

    def test_pages_start_with_the_oldest(self, queue: AnyQueue, dead: list[str]) -> None:
        assert [letter.id for letter in queue.dead_letters()] == dead
        assert [letter.id for letter in queue.dead_letters(offset=2, limit=3)] == dead[2:5]
        assert queue.dead_letters(offset=10) == []

    def test_a_redrive_resets_the_deliveries(self, queue: AnyQueue, dead: list[str]) -> None:
        assert queue.redrive([dead[3], "unknown", dead[1], dead[3]]) == 2
        found = claim(queue)
        in_order = [3, 1] if isinstance(queue, RedisQueue) else [1, 3]
        assert (bodies(found), {item.deliveries for item in found}) == (in_order, {1})
        assert queue.redrive() == 8
        assert queue.redrive() == 0
        assert bodies(claim(queue)) == [0, 2, 4, 5, 6, 7, 8, 9]

    def test_single_ones_are_deleted(self, queue: AnyQueue, client: redis.Redis, dead: list[str]) -> None:
        (ready,) = add(queue, "ready")
        assert queue.delete_dead([dead[3], "unknown", ready, dead[1], dead[3]]) == 2
        assert [letter.id for letter in queue.dead_letters()] == [dead[0], dead[2], *dead[4:]]
        assert queue.versions(dead).keys() == {*dead} - {dead[3], dead[1]}
        for shard in queue._shards:
            assert not client.hexists(shard.keys.errors, dead[3])
            assert not client.hexists(shard.keys.leases, dead[3])
        assert bodies(claim(queue)) == ["ready"]

    def test_a_newer_one_with_the_same_id_stays(self, queue: AnyQueue, clock: Clock, dead: list[str]) -> None:
        seen = queue.dead_letters()[0].died_at
        assert queue.delete_dead(dead[:2], until=seen) == 1
        queue.redrive([dead[2]])
        clock.forward(1)
        queue.nack_many(claim(queue), dead=True, reason="again")
        assert queue.delete_dead([dead[2]], until=seen) == 0
        assert [(letter.id, letter.reason) for letter in queue.dead_letters(offset=8)] == [(dead[2], "again")]

    def test_a_rate_spreads_them_over_time(self, queue: AnyQueue, clock: Clock, dead: list[str]) -> None:
        assert queue.redrive(rate=2) == 10
        seconds = 0
        taken = len(claim(queue))
        assert 1 <= taken <= 3
        while taken < 10:
            seconds += 1
            clock.forward(1)
            taken += len(claim(queue))
        assert 3 <= seconds <= 5, "ten of them at two per second must take about five seconds"

    def test_a_purge_deletes_at_most_its_limit(self, queue: AnyQueue, dead: list[str]) -> None:
        add(queue, *range(700))
        assert queue.purge(limit=600) == 600
        place = "waiting" if isinstance(queue, DelayQueue) else "ready"
        assert queue.purge(place, "dead", limit=105) == 105  # type: ignore[arg-type]
        assert (claim(queue), queue.stats().dead) == ([], 5)
        with pytest.raises(ValueError, match="limit=0"):
            queue.purge(limit=0)

    def test_a_purge_deletes_the_given_states(self, queue: AnyQueue, dead: list[str], client: redis.Redis) -> None:
        add(queue, *range(1234))
        add(queue, "later", delay=9)
        assert queue.purge() == 1235
        assert queue.stats().dead == 10
        assert queue.purge("dead", "quarantine") == 10
        assert queue.purge("dead") == 0
        assert data_left(client) == []

    def test_destroy_leaves_no_keys_and_the_queue_can_be_used_again(
        self, queue: AnyQueue, dead: list[str], client: redis.Redis
    ) -> None:
        registry = Registry(Scripts(client), "redis_queue")
        add(queue, "held")
        (held,) = claim(queue)
        queue.destroy()
        assert [key for key in client.scan_iter() if b":slot:" not in key] == []
        assert registry.all() == []
        assert not queue.ack(held)
        add(queue, "new")
        assert [known.name for known in registry.all()] == ["orders"]
        assert bodies(claim(queue)) == ["new"]
