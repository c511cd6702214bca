"""Failures in the store: kept once each, bounded by number and age, read in pages and groups."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis

from redis_queue.errors import InvalidValueError, StoreError
from redis_queue.monitor.failure_rows import MAX_FAILURE, MAX_FAILURE_TEXT, MAX_MESSAGE, MAX_TRACEBACK, cut, cut_middle
from redis_queue.monitor.failures import MAX_GROUPS, Failures
from redis_queue.monitor.model import Failure, FailureGroup
from redis_queue.store.keys import MonitorKeys
from tests.support.clock import Clock, when
from tests.support.servers import RedisServer
from tests.support.wait import must

KEYS = MonitorKeys("p")
FAILURE = Failure(
    "id1",
    "shop.mail",
    "mail",
    "one@host",
    when(-5),
    "failed",
    "smtplib.SMTPException",
    "no route to\thost\nat all",
    'Traceback (most recent call last):\n  "é"',
    "(1, 'x')",
    "{'to': 'y'}",
    3,
    1.25,
    b"\x01packed \xff bytes",
    15,
)
EVIL = '\x1b[31m"\\<b>é\u202e😀\x00\ud800' * 200_000


@pytest.fixture
def failures(client: redis.Redis, clock: Clock) -> Failures:
    return Failures(client, "p", clock)


def failure(number: int, **fields: Any) -> Failure:
    """Return the failure *number*, which happened as many seconds after the start."""
    return replace(FAILURE, id=f"id{number}", failed_at=when(number), **fields)


def keep(failures: Failures, *found: Failure, most: int = 1000, days: float = 7, missed: int = 0) -> None:
    failures.keep(found, most, days, missed)


def ids(failures: Failures) -> list[str]:
    return [row.id for row in failures.list()[0]]


def counts(failures: Failures) -> dict[FailureGroup, int]:
    return {row.group: row.count for row in failures.groups()}


def test_a_failure_is_read_as_it_was_kept(failures: Failures) -> None:
    keep(failures, FAILURE)
    assert failures.get("id1") == FAILURE
    assert failures.list() == ([replace(FAILURE, traceback="", body=None)], None)
    assert failures.summaries(["id1", "unknown"]) == [replace(FAILURE, traceback="", body=None)]
    assert failures.get("unknown") is None
    (row,) = failures.groups()
    assert (row.group, row.count) == (FailureGroup("shop.mail", "smtplib.SMTPException"), 1)
    assert (row.first_at, row.last_at, row.last_id) == (when(-5), when(-5), "id1")


def test_a_later_failure_of_the_same_id_replaces_an_earlier_one(failures: Failures, client: redis.Redis) -> None:
    keep(failures, FAILURE)
    later = replace(FAILURE, exception="KeyError", failed_at=when(0), body=None, size=0)
    keep(failures, later)
    keep(failures, FAILURE)
    assert failures.get("id1") == later
    assert counts(failures) == {FailureGroup("shop.mail", "KeyError"): 1}
    assert [client.hlen(KEYS.failures), client.zcard(KEYS.failed_at), client.hlen(KEYS.tracebacks)] == [1, 1, 1]


def test_only_the_last_ones_are_kept(failures: Failures, clock: Clock, client: redis.Redis) -> None:
    clock.forward(300)
    for start in range(0, 250, 50):
        keep(failures, *(failure(start + number) for number in range(50)), most=20)
    assert ids(failures) == [f"id{number}" for number in range(249, 229, -1)]
    assert failures.count() == 20
    assert counts(failures) == {FailureGroup("shop.mail", "smtplib.SMTPException"): 20}
    assert [client.hlen(KEYS.failures), client.hlen(KEYS.tracebacks)] == [20, 20]


def test_a_smaller_limit_takes_effect_step_by_step(failures: Failures, clock: Clock) -> None:
    clock.forward(1000)
    for start in range(0, 500, 100):
        keep(failures, *(failure(start + number) for number in range(100)))
    for _ in range(5):
        keep(failures, most=10)
    assert failures.count() == 10


def test_old_failures_are_not_shown_and_are_removed(failures: Failures, clock: Clock, client: redis.Redis) -> None:
    keep(failures, failure(0), days=2)
    clock.forward(86_400)
    keep(failures, failure(86_400, exception="KeyError"), days=2)
    clock.forward(86_401)
    # No worker has removed it yet.
    assert client.zcard(KEYS.failed_at) == 2
    assert (ids(failures), failures.count()) == (["id86400"], 1)
    assert [row.group.exception for row in failures.groups()] == ["KeyError"]
    keep(failures, days=2)
    assert client.zcard(KEYS.failed_at) == 1
    assert all(0 < client.ttl(key) <= 3 * 86_400 for key in client.keys("*monitor*") if b"slot" not in key)


def test_the_time_of_a_failure_is_never_in_the_future(failures: Failures) -> None:
    keep(failures, failure(90))
    (found,), _ = failures.list()
    assert found.failed_at == when(0)


def test_failures_that_were_too_many_are_counted(failures: Failures, clock: Clock) -> None:
    assert failures.kept() is None
    keep(failures, FAILURE, missed=3)
    clock.forward(5)
    keep(failures, missed=4, most=500, days=0.5)
    kept = must(failures.kept())
    assert (kept.most, kept.days, kept.missed, kept.missed_at) == (500, 0.5, 7, when(5))


def test_a_repeated_call_has_one_effect(client: redis.Redis, clock: Clock) -> None:
    failures = Failures(client, "p", clock)
    prepare = failures._calls.prepare

    def twice(name: str, **arguments: Any) -> Any:
        call = prepare(name, **arguments)
        return lambda: (call(), call())[1]

    failures._calls.prepare = twice  # type: ignore[method-assign]
    keep(failures, FAILURE, missed=3)
    assert (must(failures.kept()).missed, list(counts(failures).values())) == (3, [1])
    assert len(failures.claim([FAILURE], "token")) == 1
    assert len(failures.delete([FAILURE], "token")) == 1


def test_pages_cover_all_failures_even_if_their_times_are_equal(failures: Failures) -> None:
    keep(failures, *(replace(FAILURE, id=f"id{number:03}") for number in range(100)))
    seen: list[str] = []
    cursor = None
    while True:
        page, cursor = failures.list(after=cursor, limit=7)
        seen += [row.id for row in page]
        if cursor is None:
            break
    assert seen == [f"id{number:03}" for number in range(99, -1, -1)]


def test_a_page_continues_after_a_failure_that_is_gone(failures: Failures, clock: Clock) -> None:
    clock.forward(100)
    keep(failures, *(failure(number) for number in range(10)))
    page, cursor = failures.list(limit=3)
    assert cursor == Failures.cursor(page[-1])
    failures.delete(page)
    keep(failures, failure(50))
    assert [row.id for row in failures.list(after=cursor, limit=3)[0]] == ["id6", "id5", "id4"]


def test_a_time_window(failures: Failures, clock: Clock) -> None:
    clock.forward(100)
    keep(failures, *(failure(number) for number in range(10)))
    page, cursor = failures.list(since=when(3), until=when(7))
    assert ([row.id for row in page], cursor) == (["id6", "id5", "id4", "id3"], None)


@pytest.mark.parametrize("after", ["", "x", "1", "1.", ".id1", f"{'9' * 16}.id1", "1." + "x" * 300])
def test_an_invalid_cursor_is_refused(failures: Failures, after: str) -> None:
    with pytest.raises(InvalidValueError, match="after="):
        failures.list(after=after)


@pytest.mark.parametrize(
    ("most", "days"), [(0, 7), (100_001, 7), (True, 7), (10.0, 7), (10, 0), (10, 91), (10, True), (10, float("nan"))]
)
def test_invalid_limits_are_refused(failures: Failures, client: redis.Redis, most: Any, days: Any) -> None:
    with pytest.raises(InvalidValueError, match=r"^(most|days)="):
        failures.keep([FAILURE], most, days)
    with pytest.raises(InvalidValueError, match="must be at most 100"):
        failures.keep([FAILURE] * 101, 10, 7)
    assert client.keys("*") == []


def test_groups_beyond_the_limit_are_counted_together(failures: Failures, clock: Clock) -> None:
    clock.forward(1000)
    # Two fields of the hash are not groups.
    for start in range(0, 600, 100):
        keep(failures, *(failure(start + n, task=f"task{start + n}") for n in range(100)), missed=1)
    other = FailureGroup("(other)", "(other)")
    found = counts(failures)
    assert len(found) <= MAX_GROUPS
    assert found[other] == 600 - (len(found) - 1)
    everything = [row for row in failures.list(limit=500)[0] if row.id != "id0"]
    failures.delete(everything)
    failures.delete(failures.list(limit=500)[0])
    assert counts(failures) == {}


def test_a_claim_keeps_others_off_until_its_lease_ends(failures: Failures, clock: Clock) -> None:
    keep(failures, FAILURE)
    assert failures.claim([FAILURE], "one") == [FAILURE]
    assert failures.claim([FAILURE], "one") == [FAILURE]
    assert failures.claim([FAILURE], "two") == []
    assert failures.delete([FAILURE]) == []
    failures.give_back([FAILURE], "two")
    assert failures.claim([FAILURE], "two") == []
    failures.give_back([FAILURE], "one")
    assert failures.claim([FAILURE], "two") == [FAILURE]
    clock.forward(61)
    assert failures.claim([FAILURE], "three") == [FAILURE]
    assert failures.delete([FAILURE], "three") == [FAILURE]
    assert failures.claim([FAILURE], "three") == []
    assert counts(failures) == {}


def test_a_later_failure_survives_what_was_meant_for_an_earlier_one(failures: Failures, clock: Clock) -> None:
    keep(failures, FAILURE)
    failures.claim([FAILURE], "token")
    clock.forward(3)
    keep(failures, replace(FAILURE, failed_at=when(1)))
    assert failures.delete([FAILURE], "token") == []
    assert failures.claim([FAILURE], "token") == []
    # The claim was for the earlier failure.
    assert len(failures.delete([replace(FAILURE, failed_at=when(1))])) == 1


def test_huge_and_hostile_texts_are_cut(failures: Failures, client: redis.Redis) -> None:
    names = dict.fromkeys(("task", "queue", "worker", "exception"), EVIL)
    texts = dict.fromkeys(("message", "args", "kwargs", "traceback"), EVIL)
    body = random.Random(1).randbytes(MAX_MESSAGE)
    huge = replace(FAILURE, id="x" * 255, body=body, size=len(body), **names, **texts)
    keep(failures, huge)
    found = must(failures.get("x" * 255))
    assert found.body == body
    assert max(len(text.encode()) for text in (found.message, found.args, found.kwargs)) <= MAX_FAILURE_TEXT
    assert len(found.traceback.encode()) <= MAX_TRACEBACK
    assert "are left out" in found.traceback
    shown = found.task + found.message + found.traceback
    assert not {"\x1b", "\x00", "\u202e"}.intersection(shown)
    used = sum(client.memory_usage(key, samples=0) or 0 for key in client.keys("*monitor*") if b"slot" not in key)
    assert used <= MAX_FAILURE


def test_a_message_beyond_the_limit_is_not_kept(failures: Failures) -> None:
    keep(failures, replace(FAILURE, body=b"x" * (MAX_MESSAGE + 1)))
    found = must(failures.get("id1"))
    assert (found.body, found.size, found.traceback) == (None, 0, FAILURE.traceback)


def test_a_long_traceback_keeps_its_beginning_and_its_end() -> None:
    text = cut_middle("first line\n" + "é é" * 2_000_000 + "\nlast line")
    assert len(text.encode()) <= MAX_TRACEBACK
    assert text.startswith("first line\n")
    assert text.endswith("é\nlast line")
    assert text.count("characters are left out") == 1
    short = "é" * (MAX_TRACEBACK // 2)
    assert cut_middle(short) == short


def test_cutting_never_splits_a_character() -> None:
    assert cut("aé" * 10, 4) == "aéa"
    assert cut("\ud800x", 10) == "?x"


def hostile_rows(row: bytes) -> Iterator[bytes]:
    """Yield rows that no worker writes."""
    task, exception, text = row.split(b"\0", 2)
    found = json.loads(text)
    yield from (b"", b"\0", b"\0\0", b"x", row[:-1], row + b"\0", b"\xff" * 30_000, row.replace(b"\0", b""))
    changes = {
        "kind": ["other", None, []],
        "attempts": ["1", 1.5, 10**40, True],
        "size": [None, "x"],
        "task": [1, {"a": 1}],
        "message": [["x"]],
    }
    for name, values in changes.items():
        for value in values:
            yield b"\0".join([task, exception, json.dumps({**found, name: value}).encode()])
    for name in ("kind", "attempts", "seconds", "size"):
        yield b"\0".join([task, exception, json.dumps({k: v for k, v in found.items() if k != name}).encode()])
    yield b"\0".join([task, exception, b"[" * 5000])


def test_unreadable_rows_are_left_out_and_can_be_removed(failures: Failures, client: redis.Redis) -> None:
    keep(failures, FAILURE)
    row: Any = client.hget(KEYS.failures, "id1")
    for hostile in hostile_rows(row):
        keep(failures, replace(FAILURE, id="bad"), replace(FAILURE, id="good"))
        client.hset(KEYS.failures, "bad", hostile)
        assert "good" in ids(failures), hostile
        assert "bad" not in ids(failures), hostile
        assert failures.get("bad") is None
    keep(failures, most=1)
    assert client.hlen(KEYS.failures) == 1


@pytest.mark.parametrize(
    "detail", [b"", b"5\n", b"99999\nx", b"-1\nx", b"x" * 70_000, b"1\nx" + b"y" * 70_000, b"\xff"]
)
def test_an_unreadable_traceback_hides_no_failure(failures: Failures, client: redis.Redis, detail: bytes) -> None:
    keep(failures, FAILURE)
    client.hset(KEYS.tracebacks, "id1", detail)
    assert failures.get("id1") == replace(FAILURE, traceback="", body=None)


def test_unreadable_groups_limits_and_times_are_left_out(failures: Failures, client: redis.Redis) -> None:
    keep(failures, FAILURE)
    for name, row in {
        b"x": b"1 2 3 id",
        b"a\0b": b"x",
        b"\0": b"",
        b"c\0d": b"9" * 30,
        b"e\0" + b"f" * 3000: b"1 1 1 x",
    }.items():
        client.hset(KEYS.groups, name, row)
    assert len(failures.groups()) == 1
    client.hset(KEYS.groups, "limits", "1e9 x")
    assert failures.kept() is None
    client.zadd(KEYS.failed_at, {b"id1": float("inf"), b"\xff": -1e300})
    assert [row.id for row in failures.list()[0]] == ["id1"]
    assert failures.get("id1") is not None


def test_unknown_fields_of_a_later_version_are_ignored(failures: Failures, client: redis.Redis) -> None:
    keep(failures, FAILURE)
    row: Any = client.hget(KEYS.failures, "id1")
    client.hset(KEYS.failures, "id1", row[:-1] + b', "later": [1]}')
    assert failures.get("id1") == FAILURE


def test_a_full_redis_refuses_new_failures_and_deletes_old_ones() -> None:
    with RedisServer() as server, server.client() as client:
        failures = Failures(client, "p")
        keep(failures, replace(FAILURE, failed_at=when(10**9)))
        client.config_set("maxmemory", 1)
        (found,), _ = failures.list()
        with pytest.raises(StoreError, match="memory"):
            keep(failures, failure(2))
        assert failures.delete([found]) == [found]


def test_a_page_of_a_hundred_thousand_failures_is_cheap(failures: Failures, client: redis.Redis, clock: Clock) -> None:
    clock.forward(timedelta(days=2).total_seconds())
    keep(failures, FAILURE, most=100_000)
    row: Any = client.hget(KEYS.failures, "id1")
    for start in range(0, 100_000, 10_000):
        known = [f"id{number}" for number in range(start, start + 10_000)]
        client.hset(KEYS.failures, mapping=dict.fromkeys(known, row))
        client.zadd(KEYS.failed_at, {id_: clock.now - 100_000 + start + n for n, id_ in enumerate(known)})
    client.config_resetstat()
    page, cursor = failures.list(limit=50)
    assert (len(page), cursor is not None, failures.count()) == (50, True, 100_000)
    spent: Any = client.info("commandstats")
    # Microseconds in Redis; a command that read all would take thousands.
    assert sum(command["usec"] for command in spent.values()) < 2000
    assert sum(command["calls"] for command in spent.values()) <= 8
