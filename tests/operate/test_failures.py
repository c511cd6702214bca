"""Retries of failures: each once, whoever asks, and none is lost."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis

from redis_queue import DelayQueue, StoreRefusedError
from redis_queue.basics.options import Conditions
from redis_queue.basics.times import from_ms
from redis_queue.celery.message.envelope import Envelope
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Choice
from redis_queue.operate.actions.failures import BATCH, NOT_MINE, delete, retry
from redis_queue.operate.failure_groups import failure_groups
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.items import FailureList, point
from tests.support.clock import Clock, when
from tests.support.servers import RedisServer
from tests.support.wait import must

NUMBER = 3 * BATCH + 7


def fill(client: redis.Redis, number: int = NUMBER) -> Access:
    """Keep *number* failures; return the access to them, with a DelayQueue."""
    DelayQueue("scheduled", client).push("known", id="known", delay=3600)
    failures = Failures(client, "redis_queue")
    for start in range(0, number, 100):
        failures.keep([failure(n) for n in range(start, min(number, start + 100))], 1000, 7)
    return Access(Inspector(client))


def failure(number: int) -> Failure:
    headers = {"id": f"id{number}", "task": "shop.mail", "retries": 3}
    body = Envelope(b"[[], {}, {}]", "application/json", "utf-8", headers, {}, "", "celery").pack("")
    now = datetime.now(timezone.utc)
    return Failure(f"id{number}", "shop.mail", "celery", "one", now, exception="a.b.Error", message="bad", body=body)


def waiting(client: redis.Redis) -> list[str]:
    return sorted(entry.id for entry in DelayQueue("scheduled", client).scan() if entry.id != "known")


@pytest.fixture
def access(client: redis.Redis) -> Access:
    return fill(client)


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server that the test may fill."""
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        yield server


def groups_of(access: Access, **conditions: Any) -> list[tuple[str, int, list[int], str]]:
    """Return exception, count, the last two hours and release of each group."""
    found = failure_groups(access, Conditions(**conditions)).groups
    return [(one.row.group.exception, one.row.count, list(one.hours[-2:]), one.release) for one in found]


class TestGroups:
    @pytest.fixture
    def access(self, client: redis.Redis, clock: Clock) -> Access:
        """Five failures of one exception an hour ago; then a release, and four failures of another one."""
        failures, reports = Failures(client, "redis_queue", clock), Reports(client, "redis_queue", clock)

        def keep(exception: str, count: int) -> None:
            rows = [replace(failure(n), id=f"{exception}-{n}", exception=exception) for n in range(count)]
            now = from_ms(clock())
            failures.keep([replace(row, failed_at=now, args=f"('{row.id}',)") for row in rows], 1000, 7)

        reports.write(WorkerRow("one", when(0), when(0), release="v1"))
        keep("OldError", 5)
        clock.forward(3700)
        reports.write(WorkerRow("one", when(0), when(0), release="v2"))
        keep("NewError", 4)
        return Access(Inspector(client, clock=clock))

    def test_say_how_many_when_and_since_which_release(self, access: Access) -> None:
        assert groups_of(access) == [("NewError", 4, [0, 4], "v2"), ("OldError", 5, [5, 0], "")]

    @pytest.mark.parametrize(
        ("conditions", "expected"),
        [
            ({"exception": "OldError"}, [("OldError", 5, [5, 0], "")]),
            ({"text": "Error-3"}, [("NewError", 1, [0, 1], "v2"), ("OldError", 1, [1, 0], "")]),
            ({"text": "Error-4"}, [("OldError", 1, [1, 0], "")]),
            ({"worker": "one", "due_after": timedelta(minutes=30)}, [("NewError", 4, [0, 4], "v2")]),
            ({"worker": "two"}, []),
        ],
    )
    def test_under_every_filter(self, access: Access, conditions: Any, expected: Any) -> None:
        assert groups_of(access, **conditions) == expected

    def test_a_bounded_look_says_so(self, access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("redis_queue.operate.failure_groups.MAX_LOOKED_AT", 4)
        found = failure_groups(access, Conditions(worker="one"))
        assert ([one.row.count for one in found.groups], found.looked, found.is_all) == ([4], 4, False)


def test_retries_at_the_same_time_store_each_once(access: Access, client: redis.Redis) -> None:
    found = list(FailureList(access, Conditions()).all())
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: list(retry(access, found, Choice())), range(4)))
    assert sum(batch.count for batches in done for batch in batches) == NUMBER
    assert {reason for batches in done for batch in batches for reason in batch.skipped} == {NOT_MINE}
    assert waiting(client) == sorted(each.id for each in found)
    assert access.monitor.failures.count() == 0


def test_the_rate_holds_over_batches(access: Access, client: redis.Redis) -> None:
    began = datetime.now(timezone.utc)
    found = list(FailureList(access, Conditions()).all())
    assert [batch.tried for batch in retry(access, found, Choice(arguments={"rate": 50}))] == [BATCH, BATCH, BATCH, 7]
    due = [entry.due_at for entry in DelayQueue("scheduled", client).scan() if entry.id != "known"]
    assert len(due) == NUMBER
    span = timedelta(seconds=(NUMBER - 1) / 50)
    assert span - timedelta(milliseconds=50) <= max(due) - min(due) <= span + (datetime.now(timezone.utc) - began)


def test_a_full_redis_loses_no_failure(own_server: RedisServer) -> None:
    with own_server.client() as client:
        access = fill(client, 20)
        found = list(FailureList(access, Conditions()).all())
        client.config_set("maxmemory", 1)
        with pytest.raises(StoreRefusedError):
            list(retry(access, found, Choice()))
        client.config_set("maxmemory", 0)
        assert access.monitor.failures.count() == 20
        assert sum(batch.count for batch in retry(access, found, Choice())) == 20


def test_a_retry_that_dies_before_the_failure_is_removed(
    access: Access, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(FailureList(access, Conditions(text="bad")).all())[:3]

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Failures, "delete", die)
        with pytest.raises(KeyboardInterrupt):
            list(retry(access, found, Choice()))
    assert (len(waiting(client)), access.monitor.failures.count()) == (3, NUMBER)
    # Its claim lasts for a minute.
    (batch,) = retry(access, found, Choice())
    assert (batch.count, batch.skipped) == (0, {NOT_MINE: 3})
    access.monitor.failures.give_back(found, client.hget("{redis_queue:monitor}:retrying", found[0].id).decode()[14:])  # type: ignore[union-attr]
    (batch,) = retry(access, found, Choice())
    assert (batch.count, len(waiting(client)), access.monitor.failures.count()) == (3, 3, NUMBER - 3)


def test_delete_leaves_those_that_failed_again(access: Access) -> None:
    store = access.monitor.failures
    first, second, *_ = FailureList(access, Conditions()).all()
    store.keep([replace(failure(0), id=first.id)], 1000, 7)
    assert [each.id for done in delete(access, [first, second], Choice()) for each in done.subjects] == [second.id]


@pytest.mark.parametrize(
    ("only", "matches"),
    [
        (Conditions(), True),
        (Conditions(exception="Error"), True),
        (Conditions(exception="a.b.Error"), True),
        (Conditions(exception="b.Error"), False),
        (Conditions(exception="Err"), False),
        (Conditions(task="shop"), False),
        (Conditions(worker="one", text="ba"), True),
        (Conditions(worker="one", text="no"), False),
    ],
)
def test_conditions(only: Conditions, matches: bool) -> None:
    assert only.match(failure(1)) == matches
    assert bool(only) == (only != Conditions())


def test_a_page_reads_a_limited_number(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis_queue.operate.listing.MAX_LOOKED_AT", 100)
    monkeypatch.setattr("redis_queue.operate.listing.CHUNK", 50)
    page = FailureList(access, Conditions(text="nothing")).page(None, 10)
    assert (page.items, page.looked, page.next is not None) == ([], 100, True)
    assert list(FailureList(access, Conditions(text="nothing")).all()) == []
    assert len(list(FailureList(access, Conditions()).all())) == NUMBER


def test_a_time_span_counts_back_whatever_its_sign(access: Access) -> None:
    now = access.inspector.now()
    for span in (timedelta(hours=2), timedelta(hours=-2)):
        assert abs(now - timedelta(hours=2) - must(point(access, span))) < timedelta(seconds=5)
    assert point(access, None) is None
    assert point(access, now) == now
