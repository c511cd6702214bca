"""A DelayQueue with one broken shard: the other shards keep working, and a warning is logged."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from functools import partial

import pytest
import redis

from redis_queue import DelayQueue, PutBack, StoreUnavailableError, WrongTypeError
from redis_queue.delay.model import Push
from redis_queue.model import Entry
from redis_queue.store.keys import Keys
from redis_queue.store.records import Records
from tests.support.clock import Clock, when

BROKEN = 1
"""The index of the broken shard, neither the first nor the last."""


@pytest.fixture
def timed(client: redis.Redis, clock: Clock) -> DelayQueue:
    """A queue of three shards with entries in each, due now."""
    timed = DelayQueue("timed", client, clock=clock, shards=3, max_deliveries=3)
    timed.push_many([Push(number, id=str(number), destination="list") for number in range(30)])
    return timed


@pytest.fixture
def break_shard(client: redis.Redis) -> Callable[[str], None]:
    """Replace a key of the broken shard, named by its part, by one of another type."""

    def break_shard(part: str) -> None:
        key = getattr(Keys("redis_queue", "delay", "timed", BROKEN), part)
        client.delete(key)
        client.set(key, "something else")

    return break_shard


def shards_of(timed: DelayQueue, entries: Iterable[Entry]) -> set[int]:
    return {list(timed._shards).index(timed._shards.of(entry.id)) for entry in entries}


def test_claims_from_other_shards_are_returned(
    timed: DelayQueue, break_shard: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    break_shard("quarantine")

    entries = timed.claim(100)

    assert shards_of(timed, entries) == {0, 2}
    assert timed.ack_many(entries) == [True] * len(entries)
    assert "timed: cannot claim from every shard: A key of the queue has another Redis type" in caplog.text
    with pytest.raises(WrongTypeError):
        timed.claim(100)


def test_the_warning_is_logged_once(
    timed: DelayQueue, break_shard: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    break_shard("quarantine")
    for _ in range(5):
        assert timed.claim(1)
    timed.purge("waiting")
    assert [record.message.partition(":")[0] for record in caplog.records] == ["timed"]


def test_pop_returns_entries_of_other_shards(
    timed: DelayQueue, break_shard: Callable[[str], None], client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    break_shard("errors")

    popped = timed.pop(100)

    assert shards_of(timed, popped) == {0, 2}
    left = sum(client.hlen(shard.keys.records) for shard in timed._shards)
    assert len(popped) + left == 30, "each entry is stored or was returned"
    assert "cannot ack in every shard" in caplog.text


def test_a_pop_without_entries_raises(timed: DelayQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_shard: Records, _held: object) -> list[bool]:
        raise StoreUnavailableError

    monkeypatch.setattr(Records, "ack", away)
    with pytest.raises(StoreUnavailableError):
        timed.pop(100)
    assert timed.stats().in_flight == 30


def test_an_ack_reaches_the_other_shards_and_the_error_is_raised(
    timed: DelayQueue, break_shard: Callable[[str], None]
) -> None:
    entries = timed.claim(100)
    break_shard("errors")
    with pytest.raises(WrongTypeError):
        timed.ack_many(entries)
    assert [shard.run("delay/stats", now=1)[2] > 0 for shard in timed._shards] == [False, True, False]


def test_leases_in_the_other_shards_are_put_back(
    timed: DelayQueue, break_shard: Callable[[str], None], clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    claimed = len(timed.claim(100))
    clock.forward(60)
    break_shard("errors")

    back = timed.put_back()

    assert 0 < back.returned < claimed
    assert shards_of(timed, timed) == {0, 2}
    assert "cannot put back in every shard" in caplog.text
    with pytest.raises(WrongTypeError):
        timed.put_back()


def test_due_entries_of_other_shards_are_moved(
    timed: DelayQueue, break_shard: Callable[[str], None], client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    break_shard("errors")

    moved = timed.move_due()

    assert moved == client.llen("list")
    assert shards_of(timed, timed) == {BROKEN}
    assert "cannot move from every shard" in caplog.text
    assert timed.move_due() == 0


def test_overdue_entries_of_other_shards_are_buried(
    timed: DelayQueue, break_shard: Callable[[str], None], clock: Clock
) -> None:
    break_shard("errors")
    clock.forward(61)
    assert timed.moves.bury_overdue(60, reason="late") > 0
    assert shards_of(timed, timed) == {BROKEN}
    assert timed.moves.bury_overdue(60, reason="late") == 0


def test_the_next_due_time_is_that_of_the_other_shards(
    timed: DelayQueue, break_shard: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    timed.purge()
    timed.push_many([Push(number, id=str(number), due_at=when(5)) for number in range(9)])
    break_shard("waiting")
    assert timed.moves.due_in() == 5
    assert "cannot ask every shard" in caplog.text


@pytest.mark.parametrize("part", ["waiting", "meta"])
def test_a_queue_that_is_broken_everywhere_raises(timed: DelayQueue, client: redis.Redis, part: str) -> None:
    for shard in timed._shards:
        client.set(getattr(shard.keys, part), "something else")
    for call in (timed.claim, timed.pop, timed.move_due):
        with pytest.raises(WrongTypeError):
            call()
    if part == "waiting":
        with pytest.raises(WrongTypeError):
            timed.moves.due_in()


def test_an_unreachable_server_is_asked_only_once(
    timed: DelayQueue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[Records] = []

    def away(shard: Records, *_arguments: object, **_named: object) -> None:
        asked.append(shard)
        raise StoreUnavailableError

    monkeypatch.setattr(Records, "run", away)
    for shard in timed._shards:
        monkeypatch.setattr(shard, "call", partial(away, shard))
    monkeypatch.setattr(Records, "put_back", away)
    for call in (timed.moves.due_in, timed.claim, timed.move_due, timed.put_back):
        with pytest.raises(StoreUnavailableError):
            call()
    assert len(asked) == 4
    caplog.set_level(logging.WARNING)
    assert caplog.records == []


def test_an_empty_queue_has_nothing_to_put_back(timed: DelayQueue) -> None:
    timed.purge()
    assert timed.put_back() == PutBack()
    assert timed.moves.due_in() == math.inf
