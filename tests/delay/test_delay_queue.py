"""Every public method of a DelayQueue."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis

from redis_queue import CancelOutcome, DelayQueue, Entry, EntryExistsError, InvalidValueError, PutBack
from redis_queue.delay.model import MAX_LISTS, Delivery, Push
from redis_queue.store.chunks import CHUNK, MAX_CALL_BYTES
from redis_queue.store.keys import Keys
from redis_queue.store.registry import Registry, RegistryRow
from redis_queue.store.scripts import Scripts
from tests.support.clock import Clock, when
from tests.support.recording import record_reads
from tests.support.wait import must, wait_until


@pytest.fixture
def make(client: redis.Redis, clock: Clock) -> Callable[..., DelayQueue]:
    return lambda **settings: DelayQueue("timed", client, clock=clock, **settings)


@pytest.fixture(params=[1, 3], ids=["1 shard", "3 shards"])
def timed(request: pytest.FixtureRequest, make: Callable[..., DelayQueue]) -> DelayQueue:
    """A queue on the manual clock, with one and with three shards."""
    return make(shards=request.param, max_deliveries=3)


def ids(entries: list[Entry]) -> list[str]:
    return [entry.id for entry in entries]


def payloads(entries: list[Entry]) -> list[Any]:
    """Return the sorted payloads of *entries*: shards are claimed one after the other."""
    return sorted(entry.payload for entry in entries)


def keys_left(client: redis.Redis) -> list[bytes]:
    """Return all keys but slots, counters and the registry."""
    kept = (b":slot:", b":meta", b":registry")
    return sorted(key for key in client.scan_iter() if not any(part in key for part in kept))


def calls(client: redis.Redis) -> int:
    """Return the number of scripts that the server has run."""
    return int(client.info("commandstats")["cmdstat_evalsha"]["calls"])


class TestPush:
    def test_an_entry_is_due_after_its_delay_and_not_before(self, timed: DelayQueue, clock: Clock) -> None:
        timed.push("a", delay=10)
        timed.push("b", delay=timedelta(seconds=2.5))
        timed.push("c", due_at=when(4))
        timed.push("d")
        assert payloads(timed.claim(9)) == ["d"]
        for seconds, name in ((2.5, "b"), (1.5, "c"), (6, "a")):
            clock.forward(seconds - 0.001)
            assert timed.claim(9) == []
            clock.forward(0.001)
            assert payloads(timed.claim(9)) == [name]

    def test_an_entry_has_all_its_attributes(self, timed: DelayQueue, clock: Clock) -> None:
        id_ = timed.push({"a": 1}, delay=60, headers={"h": "é"}, destination="list")
        clock.forward(61)
        (entry,) = timed.claim()
        assert (entry.id, entry.payload, entry.headers, entry.destination) == (id_, {"a": 1}, {"h": "é"}, "list")
        assert (entry.put_at, entry.due_at, entry.deliveries) == (when(0), when(60), 1)
        assert entry.lease is not None
        assert entry.lease.expires_at == when(121)

    def test_due_at_may_have_any_time_zone(self, timed: DelayQueue) -> None:
        tokyo = timezone(timedelta(hours=9))
        timed.push("a", id="a", due_at=when(60).astimezone(tokyo))
        assert must(timed.get("a")).due_at == when(60)

    def test_a_fraction_of_a_millisecond_is_rounded_up(self, timed: DelayQueue) -> None:
        timed.push("a", id="a", due_at=when(1) + timedelta(microseconds=1))
        timed.push("b", id="b", delay=1.0001)
        assert [entry.due_at for entry in timed.list()] == [when(1.001), when(1.001)]

    def test_many_are_pushed_in_one_call(self, timed: DelayQueue, clock: Clock) -> None:
        items: list[Any] = ["now", Push("later", delay=5), Push("named", id="n", due_at=when(9)), {"plain": "dict"}]
        pushed = timed.push_many(items)
        assert pushed[2] == "n"
        assert len(set(pushed)) == 4
        assert [timed.get(id_).payload for id_ in pushed] == ["now", "later", "named", {"plain": "dict"}]  # type: ignore[union-attr]
        assert timed.push_many([]) == []

    def test_thousands_may_come_from_a_generator(self, timed: DelayQueue) -> None:
        pushed = timed.push_many(Push(number, delay=number) for number in range(1201))
        assert len(timed) == 1201
        assert [entry.payload for entry in timed] == list(range(1201))
        assert [entry.id for entry in timed] == pushed

    def test_entries_with_the_same_due_time_keep_their_order(self, make: Callable[..., DelayQueue]) -> None:
        timed = make()
        timed.push_many(range(700))
        assert [entry.payload for entry in timed.claim(500)] == list(range(500))

    def test_the_same_id_replaces_keeps_or_fails(self, timed: DelayQueue) -> None:
        timed.push("old", id="x", delay=10)
        timed.push("kept out", id="x", delay=20, on_conflict="keep")
        with pytest.raises(EntryExistsError, match="timed: an entry with id 'x' is already stored"):
            timed.push("refused", id="x", delay=20, on_conflict="error")
        (entry,) = timed.list()
        assert (entry.payload, entry.due_at) == ("old", when(10))
        timed.push("new", id="x", delay=30)
        (entry,) = timed.list()
        assert (entry.payload, entry.due_at) == ("new", when(30))

    @pytest.mark.parametrize("dead", [False, True])
    def test_an_entry_replaces_only_older_ones_without_its_mark(
        self, make: Callable[..., DelayQueue], clock: Clock, dead: bool
    ) -> None:
        timed = make()
        if dead:
            timed.foreign.bury(Push("old", id="x"), reason="none", deliveries=1)
        else:
            timed.push("old", id="x")
        clock.forward(2)
        assert timed.marked.replace_older(Push("other", id="y"), age=0)
        assert not timed.marked.replace_older(Push("new", id="x"), age=2.001)
        assert not timed.marked.replace_older(Push("new", id="x", mark='"old"'), age=2)
        assert timed.marked.replace_older(Push("new", id="x", mark='"new"'), age=2)
        assert sorted(entry.payload for entry in timed) == ["new", "other"]
        assert timed.dead_letters() == []

    def test_the_same_id_twice_in_one_call_is_stored_once(self, timed: DelayQueue) -> None:
        timed.push_many([Push("first", id="x", delay=1), Push("last", id="x", delay=2)])
        timed.push_many([Push("first", id="y", delay=1), Push("last", id="y", delay=2)], on_conflict="keep")
        assert [(entry.payload, entry.due_at) for entry in timed] == [("first", when(1)), ("last", when(2))]

    def test_a_conflict_in_a_chunk_stores_none_of_it(self, make: Callable[..., DelayQueue]) -> None:
        timed = make()
        timed.push("old", id="x")
        with pytest.raises(EntryExistsError, match="'x'"):
            timed.push_many([Push("a", id="a"), Push("new", id="x"), Push("b", id="b")], on_conflict="error")
        with pytest.raises(EntryExistsError, match="'a'"):
            timed.push_many([Push("a", id="a"), Push("b", id="a")], on_conflict="error")
        assert payloads(timed.list()) == ["old"]

    @pytest.mark.parametrize("where", ["in flight", "dead"])
    def test_an_id_in_use_elsewhere_conflicts_too(self, timed: DelayQueue, where: str) -> None:
        timed.push("old", id="x")
        (held,) = timed.claim()
        if where == "dead":
            timed.nack(held, dead=True)
        timed.push("kept out", id="x", on_conflict="keep")
        with pytest.raises(EntryExistsError):
            timed.push("refused", id="x", on_conflict="error")
        assert len(timed) == 0
        timed.push("new", id="x")
        assert not timed.ack(held)
        assert timed.stats().dead == timed.stats().in_flight == 0
        assert [(entry.payload, entry.deliveries) for entry in timed.claim(5)] == [("new", 1)]


class TestChange:
    def test_a_cancelled_entry_is_not_claimed(self, timed: DelayQueue, client: redis.Redis) -> None:
        timed.push_many([Push(name, id=name) for name in "abcd"])
        assert timed.cancel("b")
        assert not timed.cancel("b")
        assert timed.cancel_many(["a", "unknown", "d", "a"]) == [True, False, True, False]
        assert payloads(timed.claim(9)) == ["c"]
        assert timed.stats().waiting == 0

    def test_a_claimed_entry_cannot_be_cancelled(self, timed: DelayQueue) -> None:
        timed.push("a", id="a")
        (entry,) = timed.claim()
        assert not timed.cancel("a")
        assert timed.ack(entry)
        assert not timed.cancel("a")

    def test_cancel_tells_whether_an_entry_may_have_been_sent(
        self, timed: DelayQueue, clock: Clock, client: redis.Redis
    ) -> None:
        timed.push_many([Push(name, id=name) for name in ("died", "refused", "returned", "unanswered")])
        entries = {entry.id: entry for entry in timed.claim(9)}
        assert timed.nack(entries["refused"])
        assert timed.nack(entries["returned"], counted=False)
        assert timed.nack(entries["unanswered"], counted=False, reason="the broker did not answer")
        clock.forward(61)
        assert timed.put_back() == PutBack(1, 0)
        outcomes = timed.cancel_many(["died", "refused", "unanswered", "returned", "unknown"])
        maybe = CancelOutcome.MAYBE_SENT
        assert outcomes == [maybe, maybe, maybe, CancelOutcome.CANCELLED, CancelOutcome.NOT_FOUND]
        assert [bool(outcome) for outcome in outcomes] == [False, False, False, True, False]
        assert [outcome.taken_out for outcome in outcomes] == [True, True, True, True, False]
        assert keys_left(client) == []

    def test_a_replaced_entry_is_cancelled_for_certain(self, timed: DelayQueue) -> None:
        timed.push("a", id="a")
        timed.claim()
        timed.push("b", id="a", delay=60)
        assert timed.cancel("a") is CancelOutcome.CANCELLED
        assert f"{CancelOutcome.CANCELLED} {CancelOutcome.NOT_FOUND!s}" == "CANCELLED NOT_FOUND"

    def test_a_dead_letter_can_be_cancelled(self, timed: DelayQueue, client: redis.Redis) -> None:
        timed.push("a", id="a")
        timed.nack(timed.claim()[0], dead=True, reason="x")
        assert timed.cancel("a").taken_out
        assert timed.dead_letters() == []
        assert keys_left(client) == []

    def test_thousands_may_be_cancelled_at_once(self, timed: DelayQueue) -> None:
        pushed = timed.push_many(range(1100))
        assert timed.cancel_many(iter(pushed)) == [True] * 1100
        assert len(timed) == 0

    def test_an_entry_can_be_rescheduled(self, timed: DelayQueue, clock: Clock) -> None:
        timed.push("a", id="a", delay=60)
        for change, due in (
            ({"delay": 5}, 5),
            ({"due_at": when(90)}, 90),
            ({"delay": timedelta(minutes=1)}, 60),
            ({}, 0),
        ):
            assert timed.reschedule("a", **change)
            assert timed.next_due() == when(due)
        assert timed.reschedule("a", delay=60)
        clock.forward(10)
        assert timed.run_now("a")
        (entry,) = timed.claim()
        assert (entry.payload, entry.due_at) == ("a", when(10))

    def test_only_waiting_entries_are_rescheduled(self, timed: DelayQueue) -> None:
        assert not timed.reschedule("unknown", delay=1)
        assert not timed.run_now("unknown")
        timed.push("a", id="a")
        (entry,) = timed.claim()
        assert not timed.reschedule("a", delay=1)
        assert timed.ack(entry)
        assert not timed.reschedule("a", delay=1)
        assert len(timed) == 0


class TestLook:
    def test_get_finds_an_entry_that_waits_or_is_held(self, timed: DelayQueue) -> None:
        assert timed.get("a") is None
        timed.push("x", id="a", delay=5)
        waiting = must(timed.get("a"))
        assert (waiting.payload, waiting.due_at, waiting.deliveries, waiting.lease) == ("x", when(5), 0, None)
        timed.run_now("a")
        (entry,) = timed.claim()
        held = must(timed.get("a"))
        assert (held.due_at, held.deliveries) == (when(60), 1)
        timed.nack(entry, dead=True)
        assert timed.get("a") is None

    def test_a_list_is_ordered_by_due_time_then_id(self, timed: DelayQueue) -> None:
        timed.push_many([Push(name, id=name, delay=delay) for name, delay in (("c", 2), ("b", 2), ("d", 1), ("a", 3))])
        assert ids(timed.list()) == ["d", "b", "c", "a"]
        assert ids(timed.list(limit=2)) == ["d", "b"]

    def test_windows_include_their_start_but_not_their_end(self, timed: DelayQueue) -> None:
        timed.push_many([Push(number, id=str(number), delay=number) for number in range(6)])
        assert ids(timed.list(due_after=when(2), due_before=when(4))) == ["2", "3"]
        assert ids(timed.list(due_after=when(4))) == ["4", "5"]
        assert ids(timed.list(due_before=when(1.001))) == ["0", "1"]
        assert timed.count() == len(timed) == 6
        assert timed.count(due_after=when(2), due_before=when(4)) == 2
        assert timed.count(due_after=when(6)) == timed.count(due_before=when(0)) == 0

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
    def test_pages_list_each_entry_once(self, timed: DelayQueue, limit: int) -> None:
        names = [f"{name}{number}" for number in range(4) for name in ("a", "Z", "é", "0")]
        timed.push_many([Push(None, id=name, delay=int(name[-1]) // 2) for name in names])
        seen: list[Entry] = []
        while page := timed.list(limit=limit, after=timed.cursor(seen[-1]) if seen else None):
            assert len(page) <= limit
            seen += page
        assert ids(seen) == sorted(names, key=lambda name: (int(name[-1]) // 2, name.encode()))

    def test_pages_stay_within_a_window(self, timed: DelayQueue) -> None:
        timed.push_many([Push(number, id=f"{number:02}", delay=number) for number in range(20)])
        window = {"due_after": when(5), "due_before": when(9)}
        first = timed.list(limit=3, **window)
        rest = timed.list(limit=3, after=timed.cursor(first[-1]), **window)
        assert ids(first + rest) == ["05", "06", "07", "08"]
        assert timed.list(after=timed.cursor(rest[-1]), **window) == []

    def test_pages_are_stable_while_entries_come_and_go(self, timed: DelayQueue) -> None:
        timed.push_many([Push(None, id=f"m{number}", delay=9) for number in range(10)])
        first = timed.list(limit=5)
        assert ids(first) == ["m0", "m1", "m2", "m3", "m4"]
        timed.cancel_many(["m0", "m4", "m7"])
        timed.push_many([Push(None, id="m44", delay=9), Push(None, id="a", delay=9), Push(None, id="early", delay=1)])
        assert ids(timed.list(limit=9, after=timed.cursor(first[-1]))) == ["m44", "m5", "m6", "m8", "m9"]

    @pytest.mark.parametrize("limit", [1, 100])
    def test_a_page_after_many_unreadable_entries_takes_few_round_trips(
        self, timed: DelayQueue, client: redis.Redis, limit: int
    ) -> None:
        timed.push_many([Push(None, id=f"bad{number}", delay=1) for number in range(1200)])
        for entry in timed:
            client.hset(timed._shards.of(entry.id).keys.records, entry.id, "unreadable")
        good = sorted(f"good{number}" for number in range(101))
        timed.push_many([Push(None, id=name, delay=2) for name in good])
        before = calls(client)

        assert ids(timed.list(limit=limit)) == good[:limit]

        # Pages grow: twice as many entries each time, up to 500.
        assert calls(client) - before <= (9 + 1200 // CHUNK) * timed.settings.shards

    def test_a_page_that_is_not_full_takes_one_round_trip(self, timed: DelayQueue, client: redis.Redis) -> None:
        timed.push_many(["a", "b"])
        timed.list()
        before = calls(client)

        assert len(timed.list(limit=3)) == 2

        assert calls(client) - before == timed.settings.shards

    def test_a_page_of_large_entries_comes_in_several_round_trips(self, timed: DelayQueue, client: redis.Redis) -> None:
        timed.push_many([Push("x" * 200_000, id=f"{number:02}", delay=number // 2) for number in range(40)])
        timed.list(limit=1)
        before = calls(client)

        assert ids(timed.list()) == [f"{number:02}" for number in range(40)]

        # Six of them make a MiB; the last call finds the end.
        assert 40 / 6 <= calls(client) - before <= (40 / 6 + 1) * timed.settings.shards**2
        assert ids(timed.list(limit=9, after=timed.cursor(timed.list(limit=9)[-1]))) == [
            f"{number:02}" for number in range(9, 18)
        ]

    def test_iteration_goes_over_all_pages(self, timed: DelayQueue) -> None:
        timed.push_many([Push(number, delay=number // 300) for number in range(1300)])
        assert [entry.payload for entry in timed] == list(range(1300))

    def test_next_due_is_the_soonest(self, timed: DelayQueue) -> None:
        assert timed.next_due() is None
        for delay in (30, 10, 20, 40):
            timed.push(delay, delay=delay)
        assert timed.next_due() == when(10)

    def test_a_forecast_counts_due_entries(self, timed: DelayQueue, clock: Clock) -> None:
        for delay in (0, 5, 59.999, 60, 61, 179, 180, 3600):
            timed.push(delay, delay=delay)
        clock.forward(0)
        assert timed.forecast(3) == [(when(0), 3), (when(60), 2), (when(120), 1)]
        clock.forward(61)
        assert timed.forecast(2, width=timedelta(minutes=2)) == [(when(61), 7), (when(181), 0)]
        assert sum(count for _, count in timed.forecast(500, width=8)) == 8

    def test_stats_count_everything(self, timed: DelayQueue) -> None:
        timed.push_many([Push(number, id=str(number)) for number in range(9)])
        timed.push("later", delay=5)
        first, second, third = timed.claim(3)
        timed.ack(first)
        timed.nack(second, dead=True)
        stats = timed.stats()
        assert (stats.waiting, stats.due, stats.in_flight, stats.dead, stats.quarantined) == (7, 6, 1, 1, 0)
        assert stats.next_due == when(0)
        assert timed.extend(third)

    def test_an_empty_queue_is_true(self, timed: DelayQueue) -> None:
        assert timed
        assert list(timed) == timed.list() == timed.claim() == timed.pop() == []
        assert repr(timed) == f"DelayQueue('timed', prefix='redis_queue', shards={timed.settings.shards})"


class TestClaim:
    def test_an_ack_ends_it(self, timed: DelayQueue, client: redis.Redis) -> None:
        timed.push_many(range(10))
        entries = timed.claim(10)
        assert payloads(entries) == list(range(10))
        assert timed.claim(10) == []
        assert timed.ack(entries[0])
        assert not timed.ack(entries[0])
        assert timed.ack_many(entries) == [False] + [True] * 9
        assert keys_left(client) == []

    def test_it_takes_at_most_its_limit(self, timed: DelayQueue) -> None:
        timed.push_many(range(600))
        assert len(timed.claim(7)) == 7
        assert len(timed.claim(500)) == 500
        assert len(timed.claim(500)) == 93

    def test_the_longest_due_entries_come_first(self, make: Callable[..., DelayQueue], clock: Clock) -> None:
        timed = make()
        timed.push_many([Push(delay, delay=delay) for delay in (3, 1, 2)])
        clock.forward(9)
        assert [entry.payload for entry in timed.claim(9)] == [1, 2, 3]

    def test_pop_deletes_the_entries(self, timed: DelayQueue, client: redis.Redis) -> None:
        timed.push_many(range(5))
        timed.push("later", delay=5)
        assert payloads(timed.pop(3) + timed.pop(9)) == list(range(5))
        assert timed.pop() == []
        timed.purge()
        assert keys_left(client) == []

    def test_older_than_takes_only_entries_due_for_long_enough(self, timed: DelayQueue, clock: Clock) -> None:
        timed.push("old", delay=1)
        timed.push("new", delay=5)
        clock.forward(8)
        assert payloads(timed.claim(9, older_than=7)) == ["old"]
        assert timed.claim(9, older_than=timedelta(seconds=3.001)) == []
        assert payloads(timed.pop(9, older_than=3)) == ["new"]


class TestMoveDue:
    def test_due_entries_go_to_their_lists_in_order(
        self, make: Callable[..., DelayQueue], client: redis.Redis, clock: Clock
    ) -> None:
        timed = make()
        timed.push("two", delay=2, destination="left")
        timed.push(b"\x00one", delay=1, destination="left")
        timed.push({"three": 3}, delay=2, destination="right")
        timed.push("late", delay=3, destination="right")
        timed.push("stays", delay=1)
        clock.forward(2)
        assert timed.move_due() == 3
        assert timed.move_due() == 0
        assert client.lrange("left", 0, -1) == [b'"two"', b"\x00one"]
        assert client.lrange("right", 0, -1) == [b'{"three":3}']
        assert [entry.payload for entry in timed] == ["stays", "late"]

    def test_entries_without_a_destination_do_not_block_others(self, timed: DelayQueue, client: redis.Redis) -> None:
        timed.push_many([Push(number, id=f"stays{number}") for number in range(1100)])
        timed.push_many([Push(number, id=f"x{number}", destination="list") for number in range(30)])
        assert timed.move_due(20) == 20
        assert timed.move_due() == 10
        assert sorted(int(payload) for payload in client.lrange("list", 0, -1)) == list(range(30))
        assert len(timed) == 1100

    def test_thousands_move_in_one_call(self, timed: DelayQueue, client: redis.Redis) -> None:
        timed.push_many([Push(number, destination="list") for number in range(1234)])
        assert timed.move_due() == 1234
        assert client.llen("list") == 1234
        assert keys_left(client) == [b"list"]

    def test_a_destination_of_another_type_is_skipped(self, timed: DelayQueue, client: redis.Redis) -> None:
        client.set("taken", "precious")
        timed.push("a", id="a", destination="taken")
        timed.push("b", id="b", destination="free")
        assert timed.move_due() == 1
        assert client.get("taken") == b"precious"
        assert (timed.dead_letters(), len(timed)) == ([], 1)
        client.delete("taken")
        assert timed.move_due() == 1
        assert client.lrange("taken", 0, -1) == [b'"a"']

    def test_only_the_given_lists_are_written(self, timed: DelayQueue, client: redis.Redis) -> None:
        timed.push_many([Push(name, id=name, destination=name) for name in ("one", "two", "three")])
        assert timed.move_due(lists=[]) == 0
        assert timed.move_due(lists=["two", "other"]) == 1
        assert client.lrange("two", 0, -1) == [b'"two"']
        assert not client.exists("one", "three", "other")
        assert timed.move_due(lists=["one", "two", "three"]) == 2
        with pytest.raises(InvalidValueError, match="2001 lists: must be at most 2000"):
            timed.move_due(lists=["one"] * 2001)

    def test_only_waiting_entries_move(self, timed: DelayQueue, client: redis.Redis) -> None:
        timed.push("a", destination="list")
        (entry,) = timed.claim()
        assert timed.move_due() == 0
        assert timed.nack(entry)
        assert timed.move_due() == 1
        assert not timed.ack(entry)
        assert keys_left(client) == [b"list"]


LARGE = 240_000
"""Bytes per payload; five payloads exceed a MiB."""


class TestLargeEntries:
    """A script stops reading after the record that completes a MiB."""

    @pytest.fixture
    def large(self, make: Callable[..., DelayQueue]) -> DelayQueue:
        timed = make(max_deliveries=3)
        timed.push_many([Push(bytes(LARGE), id=f"{number:02}", destination="list") for number in range(28)])
        return timed

    def test_a_claim_reads_no_further(self, large: DelayQueue, client: redis.Redis) -> None:
        for limit in (1, 500):
            with record_reads(client) as read:
                claimed = large.moves.claim_batch(limit)
            assert (len(claimed.entries), claimed.more) == (min(limit, 5), True)
            assert read == ids(claimed.entries)

    def test_draining_takes_a_call_for_each_mebibyte(self, large: DelayQueue, client: redis.Redis) -> None:
        scripts, found, more = calls(client), 0, True
        with record_reads(client) as read:
            while more:
                claimed = large.moves.claim_batch()
                found, more = found + len(claimed.entries), claimed.more
        assert (found, len(read)) == (28, 28)
        assert calls(client) - scripts == 6

    def test_moving_takes_a_call_for_each_mebibyte(self, large: DelayQueue, client: redis.Redis) -> None:
        scripts = calls(client)
        with record_reads(client) as read:
            assert large.move_due() == 28
        assert [len(element) for element in client.lrange("list", 0, -1)] == [LARGE] * 28
        assert len(read) == 28
        assert calls(client) - scripts == 6

    def test_replacing_them_reads_none(self, large: DelayQueue, client: redis.Redis) -> None:
        with record_reads(client) as read:
            large.push_many([Push(b"small", id=f"{number:02}") for number in range(28)])
        assert read == []
        assert payloads(large.claim(500)) == [b"small"] * 28

    def test_a_packed_payload_is_unpacked(self, make: Callable[..., DelayQueue], client: redis.Redis) -> None:
        timed = make()
        plain = b"x" * 5000
        timed.push(b"\x01\x82" + plain + b"\x80\x81\x83\xff" + plain + b"\x82", id="a", destination="list")
        assert timed.moves.move(phrases=[b"first", b"second"]).sent == 1
        (element,) = client.lrange("list", 0, -1)
        tag = element.split(plain)[1].removeprefix(b"a").removesuffix(b"second\xff")
        assert element == b"first" + plain + b"a" + tag + b"second\xff" + plain + b"first"
        assert len(tag) > 16


class TestDeliver:
    def test_many_entries_go_to_many_lists(self, make: Callable[..., DelayQueue], client: redis.Redis) -> None:
        timed = make()
        timed.push_many(range(CHUNK))
        lists = [f"list{number}" for number in range(40)]
        rows = [Delivery(entry, str(entry.payload).encode(), lists) for entry in timed.claim(CHUNK)]
        assert timed.moves.deliver(rows) == [True] * CHUNK
        arrived = [str(number).encode() for number in reversed(range(CHUNK))]
        assert {name: client.lrange(name, 0, -1) == arrived for name in lists} == dict.fromkeys(lists, True)
        assert keys_left(client) == sorted(name.encode() for name in lists)

    def test_an_entry_with_too_many_lists_is_refused(self, make: Callable[..., DelayQueue]) -> None:
        timed = make()
        timed.push_many([1, 2])
        small, wide = timed.claim(2)
        lists = [f"list{number}" for number in range(MAX_LISTS)]
        with pytest.raises(InvalidValueError, match=f"goes to {MAX_LISTS + 1} lists: must be at most {MAX_LISTS}"):
            timed.moves.deliver([Delivery(small, b"x", ["list"]), Delivery(wide, b"x", [*lists, "list"])])
        assert timed.stats().in_flight == 2
        assert timed.moves.deliver([Delivery(small, b"x", ["list"]), Delivery(wide, b"x", lists)]) == [True, True]

    def test_large_deliveries_take_several_calls(self, make: Callable[..., DelayQueue], client: redis.Redis) -> None:
        timed = make()
        timed.push_many(range(9))
        rows = [Delivery(entry, b"x" * (MAX_CALL_BYTES // 8), ["one", "two"]) for entry in timed.claim(9)]
        timed.moves.deliver(rows[:1])
        before = calls(client)
        assert timed.moves.deliver(rows[1:]) == [True] * 8
        assert calls(client) - before == 2


class TestShards:
    def test_entries_are_spread_over_the_hash_tags(self, make: Callable[..., DelayQueue], client: redis.Redis) -> None:
        timed = make(shards=3)
        timed.push_many(range(300))
        sizes = [client.zcard(Keys("redis_queue", "delay", "timed", number).waiting) for number in range(3)]
        assert sum(sizes) == 300
        assert min(sizes) > 50

    def test_a_claim_begins_with_another_shard_each_time(self, make: Callable[..., DelayQueue]) -> None:
        timed = make(shards=3)
        timed.push_many([Push(number, id=str(number)) for number in range(300)])
        shards = [list(timed._shards).index(timed._shards.of(timed.claim(1)[0].id)) for _ in range(6)]
        assert sorted(shards) == [0, 0, 1, 1, 2, 2]

    def test_a_claim_fills_up_from_all_shards(self, make: Callable[..., DelayQueue]) -> None:
        timed = make(shards=16)
        timed.push_many(range(40))
        assert payloads(timed.claim(40)) == list(range(40))

    def test_the_registry_has_the_number_of_shards(self, make: Callable[..., DelayQueue], client: redis.Redis) -> None:
        make(shards=3, max_deliveries=7).push("a")
        assert Registry(Scripts(client), "redis_queue").all() == [RegistryRow("delay", "timed", 7, 3)]


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_the_time_is_that_of_the_server(client: redis.Redis, monkeypatch: pytest.MonkeyPatch, hours: int) -> None:
    timed = DelayQueue("timed", client)
    host = time.time()
    monkeypatch.setattr(time, "time", lambda: host + 3600 * hours)
    seconds, micros = client.time()
    now = datetime.fromtimestamp(seconds, timezone.utc) + timedelta(microseconds=micros - 1000)
    timed.push("a", id="a", delay=60)
    entry = must(timed.get("a"))
    assert now <= entry.put_at < now + timedelta(seconds=5)
    assert entry.due_at - entry.put_at == timedelta(seconds=60)
    assert timed.claim() == []


def test_a_redrive_wakes_a_dispatcher_once(client: redis.Redis) -> None:
    queue = DelayQueue("timed", client)
    queue.push_many([Push(number, delay=0) for number in range(3)])
    queue.nack_many(queue.claim(3), dead=True)
    (channel,) = queue.moves.wake_channels()
    with client.pubsub(ignore_subscribe_messages=True) as heard:
        heard.subscribe(channel)
        wait_until(lambda: client.pubsub_numsub(channel) == [(channel, 1)], description="the subscription")
        assert queue.redrive() == 3
        client.publish(channel, "end")
        data = (message["data"] for message in heard.listen())
        assert list(itertools.takewhile(lambda text: text != b"end", data)) == [b"1"]
