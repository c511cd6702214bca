"""Truncated, edited or deleted records are quarantined with their bytes, and all other entries are processed."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redis_queue import Consumer, DelayQueue, RedisQueue
from redis_queue.basics.times import END_OF_CALENDAR_MS
from redis_queue.delay.model import Push
from redis_queue.store.ids import id_bytes
from redis_queue.store.keys import Keys
from tests.support.mutations import damaged_bytes, framed_records, fuzzed
from tests.support.store.stage import VERBS, Stage
from tests.support.wait import must, wait_until

QUEUE = Keys("redis_queue", "queue", "orders")
TIMED = Keys("redis_queue", "delay", "orders", 0)

WHOLE = b'v1 1700000000000 json 7 7\n{"a":1}"hello"'
DEEP = b"[" * 100_000

DAMAGED: dict[str, bytes | None] = {
    "gone": None,
    "empty": b"",
    "one byte short": WHOLE[:-1],
    "one byte more": WHOLE + b" ",
    "cut in the headers": WHOLE[:30],
    "cut in the frame": WHOLE[:12],
    "no line feed": WHOLE.replace(b"\n", b" "),
    "a future version": b"v2" + WHOLE[2:],
    "no version": WHOLE[3:],
    "a negative length": b"v1 5 json -7 14\n" + b"x" * 7,
    "a length in hex": b"v1 5 json 0 0x2\n{}",
    "lengths that do not add up": b"v1 5 json 9 9\n{}",
    "a length of fifty digits": b"v1 5 json 0 " + b"9" * 50 + b"\n{}",
    "a pickle": pickle.dumps({"a": 1}),
    "text": b"hello",
    "binary": bytes(range(256)),
    "nothing but zeros": bytes(100),
}
UNREADABLE: dict[str, bytes] = {
    "not JSON": b"v1 1700000000000 json 0 3\n{x}",
    "not UTF-8": b'v1 1700000000000 json 0 3\n"\xff"',
    "NaN": b"v1 1700000000000 json 0 3\nNaN",
    "half a document": b'v1 1700000000000 json 0 5\n{"a":',
    "two documents": b"v1 1700000000000 json 0 5\n{} {}",
    "an empty document": b"v1 1700000000000 json 0 0\n",
    "nested too deeply": b"v1 1700000000000 json 0 %d\n%b" % (len(DEEP), DEEP),
    "a number of 9999 digits": b"v1 1700000000000 json 0 9999\n" + b"9" * 9999,
    "an unknown serializer": b"v1 1700000000000 pickle 0 2\n{}",
    "a strange serializer": b"v1 1700000000000 \xff\xfe 0 2\n{}",
    "headers that are not JSON": b"v1 1700000000000 json 2 2\n{x{}",
    "headers that are a list": b"v1 1700000000000 json 2 2\n[]{}",
    "headers that are not UTF-8": b"v1 1700000000000 json 2 2\n\xff\xff{}",
    "a time after the end of all calendars": b"v1 99999999999999999999 json 0 2\n{}",
    "a time of a hundred digits": b"v1 " + b"9" * 100 + b" json 0 2\n{}",
}
ALL = {**DAMAGED, **UNREADABLE}

damaged = pytest.mark.parametrize("damage", ALL)


def damage_record(client: redis.Redis, keys: Keys, id_: str, record: bytes | None) -> None:
    if record is None:
        client.hdel(keys.records, id_)
    else:
        client.hset(keys.records, id_, record)


@pytest.fixture
def queue(client: redis.Redis) -> RedisQueue:
    """A queue with three messages; tests damage the second."""
    queue = RedisQueue("orders", client)
    queue.put_many(["one", "bad", "three"], dedupe_key=str)
    return queue


@pytest.fixture
def timed(client: redis.Redis) -> DelayQueue:
    """A delay queue with three due entries; tests damage the first."""
    timed = DelayQueue("orders", client)
    timed.push_many([Push(name, id=name, destination="target") for name in ("bad", "one", "three")])
    return timed


def only_in_quarantine(client: redis.Redis, keys: Keys, id_: str) -> bool:
    """Return whether *id_* is in no state but the quarantine."""
    places = (client.zscore(keys.waiting, id_), client.zscore(keys.in_flight, id_), client.zscore(keys.dead, id_))
    held = client.hget(keys.records, id_), client.hget(keys.leases, id_), client.lpos(keys.ready, id_)
    return not any(value is not None for value in (*places, *held))


class TestQueue:
    @damaged
    def test_get_skips_it(self, client: redis.Redis, queue: RedisQueue, damage: str) -> None:
        damage_record(client, QUEUE, "bad", ALL[damage])
        bodies = []
        while message := queue.get(block=False):
            bodies.append(message.body)
            assert queue.ack(message)
        assert bodies == ["one", "three"]
        (found,) = queue.quarantined()
        assert (found.id, found.raw) == ("bad", ALL[damage] or b"")
        assert found.reason
        assert only_in_quarantine(client, QUEUE, "bad")
        stats = queue.stats()
        assert (stats.ready, stats.in_flight, stats.quarantined, stats.acked) == (0, 0, 1, 2)

    @damaged
    def test_get_many_returns_the_others(self, client: redis.Redis, queue: RedisQueue, damage: str) -> None:
        damage_record(client, QUEUE, "bad", ALL[damage])
        messages = queue.get_many(10)
        assert [message.body for message in messages] == ["one", "three"]
        assert queue.ack_many(messages) == [True, True]
        assert [found.raw for found in queue.quarantined()] == [ALL[damage] or b""]

    @damaged
    def test_a_blocking_get_continues_to_wait(self, client: redis.Redis, queue: RedisQueue, damage: str) -> None:
        queue.ack_many(queue.get_many(10))
        queue.put("bad", dedupe_key="bad")
        damage_record(client, QUEUE, "bad", ALL[damage])
        assert queue.get(timeout=0.01) is None
        assert len(queue.quarantined()) == 1

    @damaged
    def test_reading_the_queue_does_not_fail(self, client: redis.Redis, queue: RedisQueue, damage: str) -> None:
        queue.ack_many(queue.get_many(1))
        damage_record(client, QUEUE, "bad", ALL[damage])
        assert [message.body for message in queue.peek(10)] == ["three"]
        assert queue.stats().ready == 2
        assert len(queue) == 2

    @damaged
    def test_an_ack_needs_no_record(self, client: redis.Redis, queue: RedisQueue, damage: str) -> None:
        messages = queue.get_many(3)
        damage_record(client, QUEUE, "bad", ALL[damage])
        assert queue.ack_many(messages) == [True] * 3
        assert queue.quarantined() == []

    @damaged
    def test_put_back_and_the_next_get_quarantine_it(self, client: redis.Redis, damage: str) -> None:
        now = 1_700_000_000_000
        queue = RedisQueue("orders", client, clock=lambda: now)
        queue.put_many(["one", "bad", "three"], dedupe_key=str)
        queue.get_many(3)
        damage_record(client, QUEUE, "bad", ALL[damage])
        now += 60_000
        queue.put_back()
        assert [message.body for message in queue.get_many(10)] == ["one", "three"]
        assert [(found.id, found.raw) for found in queue.quarantined()] == [("bad", ALL[damage] or b"")]

    @damaged
    def test_a_dead_letter_stays_a_dead_letter(self, client: redis.Redis, queue: RedisQueue, damage: str) -> None:
        queue.nack_many(queue.get_many(3), dead=True, reason="died")
        damage_record(client, QUEUE, "bad", ALL[damage])
        letters = {letter.id: letter for letter in queue.dead_letters()}
        assert letters.keys() == {"one", "bad", "three"}
        assert letters["one"].body == "one"
        assert letters["bad"].body is None
        assert "died (unreadable: " in letters["bad"].reason
        queue.redrive()
        assert sorted(message.body for message in queue.get_many(10)) == ["one", "three"]

    def test_a_delayed_message_is_quarantined_when_it_is_due(self, client: redis.Redis) -> None:
        queue = RedisQueue("orders", client)
        queue.put("bad", dedupe_key="bad", delay=0.001)
        queue.put("good", delay=0.002)
        client.hset(QUEUE.records, "bad", b"garbage")
        assert must(queue.get(timeout=5)).body == "good"
        assert [found.id for found in queue.quarantined()] == ["bad"]

    def test_hundreds_of_them_do_not_hide_one_good_message(self, client: redis.Redis) -> None:
        queue = RedisQueue("orders", client)
        ids = queue.put_many(range(1200))
        for number, id_ in enumerate(ids[:-1]):
            client.hset(QUEUE.records, id_, (b"garbage", b"v1 5 json 0 3\n{x}")[number % 2])
        assert must(queue.get(block=False)).body == 1199
        assert queue.stats().quarantined == 1199
        assert len(queue.quarantined(offset=1000, limit=500)) == 199
        assert queue.purge("quarantine") == 1199

    @pytest.mark.parametrize(
        "lease",
        [None, b"", b"abc", b"-5", b"1", b" ", b"99999999999999999999 x", b"1.5 x", b"abc x", b"-5 x", b"%d x" % 2**63],
    )
    def test_an_edited_lease_settles_nothing_and_is_put_back(self, client: redis.Redis, lease: bytes | None) -> None:
        now = 1_700_000_000_000
        queue = RedisQueue("orders", client, clock=lambda: now, max_deliveries=0)
        queue.put("hello")
        message = must(queue.get(block=False))
        if lease is None:
            client.hdel(QUEUE.leases, message.id)
        else:
            client.hset(QUEUE.leases, message.id, lease)
        assert not queue.ack(message)
        assert not queue.nack(message)
        now += 60_000
        assert queue.put_back().returned == 1
        again = must(queue.get(block=False))
        assert again.body == "hello"
        assert queue.ack(again)
        assert client.hlen(QUEUE.leases) == client.hlen(QUEUE.records) == client.zcard(QUEUE.in_flight) == 0

    @pytest.mark.parametrize("score", ["-inf", "-1", "0"])
    def test_a_lease_with_a_negative_end_is_put_back(self, client: redis.Redis, queue: RedisQueue, score: str) -> None:
        first = must(queue.get(block=False))
        client.zadd(QUEUE.in_flight, {first.id: score})
        found = [message for _ in range(3) if (message := queue.get(timeout=0.01))]
        assert sorted(message.body for message in found) == ["bad", "one", "three"]
        assert not queue.ack(first)
        assert queue.ack_many(found) == [True] * 3

    def test_a_lease_of_a_message_not_in_flight_is_harmless(self, client: redis.Redis, queue: RedisQueue) -> None:
        client.hset(QUEUE.leases, mapping={"one": b"3 3-abc", "nobody": b"1 1-abc"})
        assert [(message.body, message.deliveries) for message in queue.get_many(3)] == [
            ("one", 4),
            ("bad", 1),
            ("three", 1),
        ]

    @pytest.mark.parametrize("score", ["1.7e15", "1e300", "1e308", "+inf"])
    def test_an_endless_lease_does_not_block_other_messages(
        self, client: redis.Redis, queue: RedisQueue, score: str
    ) -> None:
        first = must(queue.get(block=False))
        client.zadd(QUEUE.in_flight, {first.id: score})
        assert [message.body for message in queue.get_many(10)] == ["bad", "three"]
        assert queue.get(timeout=0.01) is None
        assert queue.extend(first)
        assert queue.ack(first)

    @pytest.mark.parametrize("score", ["-inf", "-1e308", "-1", "0", "1.7e15", "1e300", "1e308", "+inf"])
    def test_an_invalid_due_time_does_not_block_other_messages(
        self, client: redis.Redis, queue: RedisQueue, score: str
    ) -> None:
        queue.put("delayed", dedupe_key="delayed", delay=60)
        client.zadd(QUEUE.waiting, {"delayed": score})
        bodies = [queue.get(timeout=0.01) for _ in range(4)]
        found = [message.body for message in bodies if message is not None]
        assert found[:3] == ["one", "bad", "three"]
        assert found[3:] == (["delayed"] if float(score) <= 0 else [])

    def test_an_id_twice_in_the_list_is_acked_once(self, client: redis.Redis, queue: RedisQueue) -> None:
        client.lpush(QUEUE.ready, "one")
        messages = queue.get_many(10)
        assert [message.id for message in messages] == ["one", "bad", "three", "one"]
        assert queue.ack_many(messages) == [True, True, True, False]
        assert queue.stats().acked == 3
        assert client.hlen(QUEUE.records) == 0

    def test_an_id_in_flight_and_in_the_list_is_acked_once(self, client: redis.Redis, queue: RedisQueue) -> None:
        first = must(queue.get(block=False))
        client.rpush(QUEUE.ready, first.id)
        again = must(queue.get(block=False))
        assert (again.id, again.deliveries) == (first.id, 2)
        assert [queue.ack(first), queue.ack(again)] == [False, True]
        assert [message.body for message in queue.get_many(5)] == ["bad", "three"]

    def test_an_orphan_record_is_kept_and_does_not_block(self, client: redis.Redis, queue: RedisQueue) -> None:
        client.hset(QUEUE.records, "orphan", WHOLE)
        assert [message.body for message in queue.get_many(5)] == ["one", "bad", "three"]
        queue.put_back()
        queue.purge("ready", "delayed", "dead", "quarantine")
        assert client.hget(QUEUE.records, "orphan") == WHOLE

    def test_a_body_of_20_megabytes_is_delivered(self, client: redis.Redis, queue: RedisQueue) -> None:
        body = b"x" * 20_000_000
        client.hset(QUEUE.records, "bad", b"v1 5 bytes 0 %d\n%b" % (len(body), body))
        found = [message.body for _ in range(3) if (message := queue.get(block=False))]
        assert found == ["one", body, "three"]

    def test_an_id_that_is_not_utf_8_works(self, client: redis.Redis) -> None:
        queue = RedisQueue("orders", client, max_deliveries=1)
        client.hset(QUEUE.records, b"\xff\xfe", WHOLE)
        client.rpush(QUEUE.ready, b"\xff\xfe")
        message = must(queue.get(block=False))
        assert (message.body, message.headers) == ("hello", {"a": 1})
        assert queue.extend(message)
        assert queue.nack(message)
        assert [letter.id for letter in queue.dead_letters()] == [message.id]
        assert queue.redrive() == 1
        again = must(queue.get(block=False))
        assert queue.ack(again)

    @pytest.mark.parametrize("value", [b"", b"abc", b"-1", b"\xff"])
    def test_an_edited_schema_does_not_stop_the_queue(
        self, client: redis.Redis, queue: RedisQueue, value: bytes
    ) -> None:
        client.hset(QUEUE.meta, "schema", value)
        assert queue.get(block=False) is not None
        queue.put("four")
        assert [message.body for message in queue.get_many(10)] == ["bad", "three", "four"]

    @pytest.mark.parametrize("raw", [b"", b"garbage", b"\n", b"1 2\n", b"x y z\n", b"5 100 100\nshort", b"\xff" * 50])
    def test_an_edited_quarantine_can_be_read(self, client: redis.Redis, queue: RedisQueue, raw: bytes) -> None:
        client.rpush(QUEUE.quarantine, raw)
        client.hset(QUEUE.records, "bad", b"garbage")
        queue.get_many(10)
        edited, real = queue.quarantined()
        assert edited.raw in raw
        assert (real.id, real.raw) == ("bad", b"garbage")


class TestDelay:
    @damaged
    def test_claim_returns_the_others(self, client: redis.Redis, timed: DelayQueue, damage: str) -> None:
        damage_record(client, TIMED, "bad", ALL[damage])
        entries = timed.claim(10)
        assert [entry.payload for entry in entries] == ["one", "three"]
        assert timed.ack_many(entries) == [True, True]
        (found,) = timed.quarantined()
        assert (found.id, found.raw) == ("bad", ALL[damage] or b"")
        assert only_in_quarantine(client, TIMED, "bad")

    @damaged
    def test_claim_of_one_skips_it(self, client: redis.Redis, timed: DelayQueue, damage: str) -> None:
        damage_record(client, TIMED, "bad", ALL[damage])
        assert [entry.payload for entry in timed.claim(1)] == ["one"]
        assert [entry.payload for entry in timed.pop(1)] == ["three"]
        assert timed.pop(1) == []

    @damaged
    def test_reading_the_queue_does_not_fail(self, client: redis.Redis, timed: DelayQueue, damage: str) -> None:
        damage_record(client, TIMED, "bad", ALL[damage])
        assert timed.get("bad") is None
        assert [entry.id for entry in timed.list()] == ["one", "three"]
        assert [entry.id for entry in timed] == ["one", "three"]
        assert timed.stats().waiting == len(timed) == 3

    @damaged
    def test_a_damaged_entry_can_be_cancelled_and_replaced(
        self, client: redis.Redis, timed: DelayQueue, damage: str
    ) -> None:
        damage_record(client, TIMED, "bad", ALL[damage])
        timed.push("good", id="bad")
        damage_record(client, TIMED, "one", ALL[damage])
        assert timed.cancel("one")
        assert sorted(entry.payload for entry in timed.claim(5)) == ["good", "three"]
        assert timed.quarantined() == []

    @pytest.mark.parametrize("damage", DAMAGED)
    def test_move_due_moves_the_others(self, client: redis.Redis, timed: DelayQueue, damage: str) -> None:
        damage_record(client, TIMED, "bad", DAMAGED[damage])
        assert timed.move_due() == 2
        assert client.lrange("target", 0, -1) == [b'"three"', b'"one"']
        (found,) = timed.quarantined()
        assert (found.id, found.raw) == ("bad", DAMAGED[damage] or b"")
        assert only_in_quarantine(client, TIMED, "bad")

    def test_a_destination_longer_than_the_record_is_quarantined(self, client: redis.Redis, timed: DelayQueue) -> None:
        client.hset(TIMED.records, "bad", b"v1 5 json 0 99 6\ntarget{}")
        client.hset(TIMED.records, "one", b"v1 5 json 0 -4 6\ntarget{}")
        assert timed.move_due() == 1
        assert {found.id for found in timed.quarantined()} == {"bad", "one"}

    @pytest.mark.parametrize("score", ["-inf", "-1", "0", "1e300", "-1e300", "+inf", "1.5"])
    def test_an_edited_due_time_hides_no_other_entry(self, client: redis.Redis, score: str) -> None:
        timed = DelayQueue("orders", client)
        timed.push_many([Push("one", id="one"), Push("two", id="two", delay=60)])
        client.zadd(TIMED.waiting, {"one": score})
        assert timed.stats().waiting == 2
        assert timed.next_due() is not None or float(score) < 0
        assert {entry.id for entry in timed.list()} >= {"two"}
        assert timed.get("two") is not None
        timed.get("one")
        timed.push("three", id="three")
        assert "three" in [entry.id for entry in timed.claim(5)]
        assert timed.cancel("one") or float(score) <= 1.5
        assert timed.run_now("two")
        assert [entry.id for entry in timed.claim(5)] == ["two"]

    @pytest.mark.parametrize("shards", [1, 2])
    @pytest.mark.parametrize(
        "score", ["-inf", "-1e308", "-5", "0.5", "1.7e9", "1893456000.25", "253402300799001", "1.7e15", "1e308", "+inf"]
    )
    def test_iterating_over_edited_due_times_ends_and_lists_each_once(
        self, client: redis.Redis, score: str, shards: int
    ) -> None:
        """Seconds or microseconds instead of milliseconds, fractions, and times outside any calendar."""
        timed = DelayQueue("orders", client, shards=shards)
        timed.push_many([Push(name, id=name, delay=60) for name in "abcdef"])
        for number in range(shards):
            keys = Keys("redis_queue", "delay", "orders", number)
            client.zadd(keys.waiting, {name: score for name in "bdf" if client.hexists(keys.records, name)})
        impossible = float(score) > END_OF_CALENDAR_MS
        expected = sorted("ace" if impossible else "abcdef")
        assert sorted(entry.id for entry in islice(timed, 20)) == expected
        found, after = [], None
        while (page := timed.list(limit=1, after=after)) and len(found) < 20:
            found.append(page[0].id)
            after = timed.cursor(page[0])
        assert sorted(found) == expected
        assert timed.stats().waiting == 6
        assert timed.cancel_many("abcdef") == [True] * 6

    def test_an_id_that_is_not_utf_8_works(self, client: redis.Redis, timed: DelayQueue) -> None:
        client.hset(TIMED.records, b"\xff\xfe", WHOLE)
        client.zadd(TIMED.waiting, {b"\xff\xfe": 1})
        assert [entry.id for entry in timed] == ["\udcff\udcfe", "bad", "one", "three"]
        entry = timed.claim()[0]
        assert entry.payload == "hello"
        assert timed.extend(entry)
        assert timed.nack(entry)
        assert timed.ack_many(timed.claim(5)) == [True] * 4
        assert client.hlen(TIMED.records) == 0

    def test_an_entry_in_flight_and_waiting_is_acked_once(self, client: redis.Redis, timed: DelayQueue) -> None:
        first = timed.claim()[0]
        client.zadd(TIMED.waiting, {first.id: 1})
        again = timed.claim()[0]
        assert (again.id, again.deliveries) == (first.id, 2)
        assert timed.ack_many([first, again]) == [False, True]
        assert client.hget(TIMED.records, first.id) is None

    def test_an_orphan_record_is_kept_and_can_be_replaced(self, client: redis.Redis, timed: DelayQueue) -> None:
        client.hset(TIMED.records, "orphan", WHOLE)
        assert len(timed.claim(10)) == 3
        assert timed.move_due() == 0
        assert client.hget(TIMED.records, "orphan") == WHOLE
        timed.push("new", id="orphan")
        assert [entry.payload for entry in timed.claim(5)] == ["new"]

    def test_a_page_is_not_empty_while_entries_follow(self, client: redis.Redis, timed: DelayQueue) -> None:
        client.hset(TIMED.records, "bad", b"garbage")
        page = timed.list(limit=1)
        assert [entry.id for entry in page] == ["one"]
        assert [entry.id for entry in timed.list(limit=1, after=timed.cursor(page[0]))] == ["three"]

    def test_hundreds_of_them_do_not_hide_one_good_entry(self, client: redis.Redis) -> None:
        timed = DelayQueue("orders", client)
        ids = timed.push_many(range(1100))
        for id_ in ids[:-1]:
            client.hset(TIMED.records, id_, b"garbage")
        assert [entry.payload for entry in timed] == [1099]
        assert [entry.payload for entry in timed.claim(500)] == [1099]
        assert timed.stats().quarantined == 1099

    def test_dead_letters_without_a_record_do_not_keep_others_dead(self, client: redis.Redis) -> None:
        timed = DelayQueue("orders", client, max_deliveries=1)
        ids = timed.push_many(range(1001))
        for _ in range(3):
            timed.nack_many(timed.claim(500))
        assert timed.stats().dead == 1001
        client.hdel(TIMED.records, *ids[:600])
        assert timed.redrive() == 401
        assert [entry.payload for entry in timed.claim(500)] == list(range(600, 1001))


edited = settings(
    fuzzed, max_examples=fuzzed.max_examples // 3, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
rows = st.dictionaries(
    st.binary(min_size=1, max_size=20),
    st.binary(max_size=80) | framed_records() | damaged_bytes(framed_records()) | damaged_bytes(st.just(WHOLE)),
    min_size=1,
    max_size=6,
)


@edited
@given(rows)
def test_any_bytes_in_a_queue_are_delivered_or_quarantined_unchanged(
    client: redis.Redis, rows: dict[bytes, bytes]
) -> None:
    client.flushall()
    queue = RedisQueue("orders", client)
    queue.put("good", dedupe_key="a good one")
    client.hset(QUEUE.records, mapping=rows)
    client.lpush(QUEUE.ready, *rows)
    found = []
    while message := queue.get(block=False):
        found.append(message)
    read = {id_bytes(message.id) for message in found}
    assert b"a good one" in read
    left = {id_: record for id_, record in rows.items() if id_ not in read}
    assert {id_bytes(item.id): item.raw for item in queue.quarantined()} == left
    assert queue.ack_many(found) == [True] * len(found)
    assert client.hlen(QUEUE.records) == 0


@edited
@given(rows, st.booleans())
def test_any_bytes_in_a_delay_queue_are_delivered_or_quarantined_unchanged(
    client: redis.Redis, rows: dict[bytes, bytes], moves: bool
) -> None:
    client.flushall()
    timed = DelayQueue("orders", client)
    timed.push("good", id="a good one")
    client.hset(TIMED.records, mapping=rows)
    client.zadd(TIMED.waiting, dict.fromkeys(rows, 1))
    assert "a good one" in [entry.id for entry in timed]
    if moves:
        timed.moves.move(phrases=[b"phrase"])
    lists = [key for key in client.scan_iter(_type="list") if key != TIMED.quarantine]
    moved = sum(client.llen(key) for key in lists)
    found = timed.claim(20)
    read = {id_bytes(entry.id) for entry in found}
    assert b"a good one" in read
    quarantined = {id_bytes(item.id): item.raw for item in timed.quarantined()}
    dead = {id_bytes(letter.id) for letter in timed.dead_letters()}
    assert all(rows[id_] == raw for id_, raw in quarantined.items())
    assert len(read) - 1 + len(quarantined) + len(dead) + moved == len(rows)
    assert all(client.hget(TIMED.records, id_) == rows[id_] for id_ in dead)


def remove(client: redis.Redis, key: bytes, how: str) -> None:
    if how == "deleted":
        client.delete(key)
    elif how == "expired":
        client.pexpire(key, 1)
        wait_until(lambda: not client.exists(key), description="the key to expire")
    elif client.exists(key):
        client.rename(key, b"elsewhere")


@pytest.mark.parametrize("how", ["deleted", "expired", "renamed"])
@pytest.mark.parametrize("part", [key.decode().partition("}:")[2] for key in QUEUE.all()])
def test_a_removed_key_does_not_stop_the_queues(client: redis.Redis, stage: Stage, part: str, how: str) -> None:
    queue, timed = stage.queue, stage.timed
    for keys in (QUEUE, TIMED):
        remove(client, getattr(keys, part), how)
        client.delete("elsewhere")
    for verb in VERBS.values():
        verb.call(stage)
    queue.put("afterwards")
    timed.push("afterwards")
    assert "afterwards" in [message.body for message in queue.get_many(100)]
    assert "afterwards" in [entry.payload for entry in timed.claim(100)]


def test_records_renamed_forth_and_back_are_quarantined_and_not_lost(client: redis.Redis, queue: RedisQueue) -> None:
    before = client.hgetall(QUEUE.records)
    client.rename(QUEUE.records, "elsewhere")
    assert queue.get_many(5) == []
    assert {item.id for item in queue.quarantined()} == {"one", "bad", "three"}
    client.rename("elsewhere", QUEUE.records)
    assert client.hgetall(QUEUE.records) == before


def flush(client: redis.Redis) -> None:
    client.flushall()
    client.script_flush()


@pytest.mark.parametrize(
    "call",
    [
        lambda queue, _timed: queue.get(block=False),
        lambda queue, _timed: queue.put_back(),
        lambda queue, _timed: queue.stats(),
        lambda queue, _timed: queue.redrive(),
        lambda queue, _timed: queue.purge(),
        lambda _queue, timed: timed.claim(),
        lambda _queue, timed: timed.move_due(),
        lambda _queue, timed: timed.list(),
        lambda _queue, timed: timed.cancel("one"),
        lambda _queue, timed: timed.stats(),
    ],
)
def test_the_queues_work_after_a_flushall(
    client: redis.Redis, queue: RedisQueue, timed: DelayQueue, call: Callable[[RedisQueue, DelayQueue], Any]
) -> None:
    flush(client)
    call(queue, timed)
    assert queue.put("new")
    assert timed.push("new")
    assert client.hlen("redis_queue:registry") == 2
    assert [message.body for message in queue.get_many(5)] == ["new"]
    assert [entry.payload for entry in timed.claim(5)] == ["new"]


def test_a_consumer_continues_after_a_flushall(client: redis.Redis) -> None:
    queue = RedisQueue("orders", client, poll_interval=0.05)
    seen: list[Any] = []
    release = threading.Event()

    def handle(message: Any) -> None:
        seen.append(message.body)
        assert release.wait(10)

    consumer = Consumer(queue, handle)
    thread = threading.Thread(target=consumer.run)
    queue.put("before")
    thread.start()
    try:
        wait_until(lambda: seen, description="the first message")
        flush(client)
        release.set()
        queue.put("after")
        wait_until(lambda: seen == ["before", "after"], description="the message after the flush")
    finally:
        release.set()
        consumer.stop()
        thread.join()
    assert queue.stats().acked == 1
