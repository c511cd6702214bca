"""Reports of workers: state, running tasks, and who is gone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import redis

from redis_queue.monitor.model import ReleaseRow, Run, RunningTask, Series, Tally, WorkerRow
from redis_queue.monitor.monitor import Monitor, Workers
from redis_queue.monitor.report import MAX_RUNNING, Reports
from redis_queue.store.chunks import CHUNK
from redis_queue.store.keys import MonitorKeys
from tests.support.clock import Clock, when

KEYS = MonitorKeys("redis_queue")
ROW = WorkerRow(
    "one@host",
    when(0),
    when(-60),
    host="host",
    pid=7,
    pool="prefork",
    concurrency=4,
    busy=2,
    prefetched=3,
    limited=2,
    queues=("mail", "default"),
    executed=100,
    failed=2,
    executed_per_minute=10,
    failed_per_minute=1,
    memory=70_000_000,
    versions={"celery": "5.7.0"},
    loop_age=0.2,
    settled_age=1.5,
    keeper=True,
    held={"mail": 5},
    lists=("mail", "mail\x06\x163"),
    release="abc123",
)
TASK = RunningTask("id1", "shop.mail", "mail", "one@host", when(-30), "(1,)", "{}", 2, 1, "held", "p", "r", "g")


@pytest.fixture
def workers(client: redis.Redis, clock: Clock) -> Workers:
    return Workers(client, "redis_queue", clock)


def test_a_report_is_read_as_it_was_written(reports: Reports, workers: Workers) -> None:
    reports.write(ROW, [TASK])
    assert workers.rows() == [ROW]
    assert workers.row("one@host") == ROW
    assert workers.running() == [TASK]
    assert workers.running_of("one@host") == [TASK]
    assert workers.find_running("id1") == TASK


def test_a_later_report_replaces_an_earlier_one(reports: Reports, workers: Workers, clock: Clock) -> None:
    reports.write(ROW, [TASK])
    clock.forward(1)
    reports.write(replace(ROW, busy=0))
    assert [(row.busy, row.seen_at) for row in workers.rows()] == [(0, when(1))]
    assert workers.running() == []
    assert workers.find_running("id1") is None


def test_a_worker_that_left_is_gone_at_once(reports: Reports, workers: Workers) -> None:
    reports.write(ROW, [TASK])
    reports.write(ROW, leaving=True)
    assert (workers.rows(), workers.running(), workers.row("one@host")) == ([], [], None)


def test_a_worker_that_was_killed_is_lost_after_a_minute(reports: Reports, workers: Workers, clock: Clock) -> None:
    reports.write(ROW, [TASK])
    clock.forward(60)
    assert workers.rows() == [ROW]
    clock.forward(0.001)
    assert (workers.rows(), workers.running()) == ([], [])
    assert workers.rows(lost=True) == [workers.row("one@host", lost=True)] == [ROW]
    assert workers.running_of("one@host") == [TASK]
    clock.forward(3540)
    assert workers.rows(lost=True) == []


def test_workers_that_were_not_seen_for_an_hour_are_removed(
    reports: Reports, clock: Clock, client: redis.Redis
) -> None:
    for number in range(25):
        reports.write(replace(ROW, name=f"old{number}"), [TASK])
    clock.forward(3601)
    for _ in range(200):
        reports.write(ROW)
    assert client.hkeys(KEYS.workers) == [b"one@host"]
    assert client.hkeys(KEYS.running) == []


def test_the_bytes_of_one_read_are_bounded(
    reports: Reports, workers: Workers, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports.write(ROW)
    row = client.hget(KEYS.workers, "one@host") or b""
    client.hset(KEYS.workers, mapping={f"w{number:04}": row for number in range(CHUNK)})
    assert len(workers.rows()) == CHUNK + 1
    monkeypatch.setattr("redis_queue.monitor.monitor.MAX_BYTES", len(row))
    assert len(workers.rows(lost=True)) == CHUNK


def test_rows_are_limited_and_ordered_by_name(reports: Reports, workers: Workers) -> None:
    for name in ("c", "a", "b"):
        reports.write(replace(ROW, name=name), [replace(TASK, id=name)])
    assert [row.name for row in workers.rows(limit=2)] == ["a", "b"]
    assert [task.id for task in workers.running(limit=2)] == ["a", "b"]


def test_long_texts_are_cut_when_they_are_written(reports: Reports, workers: Workers, client: redis.Redis) -> None:
    long = "x" * 100_000
    reports.write(
        replace(ROW, host=long, queues=(long,) * 1000, pool=long, lists=(long,) * 1000),
        [replace(TASK, args=long, kwargs=long, task=long)] * (MAX_RUNNING + 50),
    )
    assert len(workers.running()) == MAX_RUNNING
    assert len(client.hget(KEYS.workers, "one@host") or b"") < 200_000
    assert len(client.hget(KEYS.running, "one@host") or b"") < 200_000


HOSTILE: list[Any] = [
    b"",
    b"\xff",
    b"1700000000000 ",
    b"1700000000000 []",
    b"1700000000000 {}",
    b"9" * 100 + b" {}",
    b"1700000000000 " + b"[" * 5000,
    b'1700000000000 {"started": 1e400, "host": "", "pool": "", "queues": [], "versions": {}, "loop_age": 0}',
    b"1700000000000 " + json.dumps({"started": 1, "host": 5, "pool": "", "queues": 7}).encode(),
]


@pytest.mark.parametrize("value", HOSTILE)
def test_unreadable_rows_are_left_out(reports: Reports, workers: Workers, client: redis.Redis, value: bytes) -> None:
    reports.write(ROW, [TASK])
    client.hset(KEYS.workers, b"bad\xff", value)
    client.hset(KEYS.running, b"one@host", value.partition(b" ")[2])
    assert workers.rows() == [ROW]
    assert workers.running() == []


def test_fields_of_a_newer_version_are_ignored(reports: Reports, workers: Workers, client: redis.Redis) -> None:
    reports.write(ROW)
    stamp, _, text = (client.hget(KEYS.workers, "one@host") or b"").partition(b" ")
    newer = json.dumps({**json.loads(text), "brand_new": [1]}).encode()
    client.hset(KEYS.workers, "one@host", stamp + b" " + newer)
    assert workers.rows() == [ROW]


def test_releases_are_noted_when_they_change_and_once_a_minute(client: redis.Redis, clock: Clock) -> None:
    monitor, reports = Monitor(client, "redis_queue", clock), Reports(client, "redis_queue", clock)
    for release in ("one", "one", "two", "", "two"):
        reports.write(replace(ROW, release=release))
        clock.forward(10)
    assert monitor.releases() == [ReleaseRow("two", when(20), when(40)), ReleaseRow("one", when(0), when(0))]
    # Another worker notes its release with its first report.
    Reports(client, "redis_queue", clock).write(replace(ROW, release="one"))
    assert monitor.releases()[1] == ReleaseRow("one", when(0), when(50))


def test_the_release_that_was_reported_longest_ago_makes_room(client: redis.Redis, clock: Clock) -> None:
    reports = Reports(client, "redis_queue", clock)
    for number in [*range(100), 0, 100]:
        reports.write(replace(ROW, release=f"r{number}"))
        clock.forward(1)
    found = {row.release for row in Monitor(client, "redis_queue", clock).releases()}
    assert found == {f"r{number}" for number in range(101) if number != 1}


def test_names_of_releases_are_made_safe(reports: Reports, client: redis.Redis) -> None:
    client.hset(KEYS.releases, mapping={b"bad\xff" + b"x" * 500: "1 2", "a\x1b[2J": "3 4", "odd": "x", "big": "9" * 99})
    reports.write(replace(ROW, release="\n" * 99))
    found = [row.release for row in Monitor(client, "redis_queue").releases()]
    assert found == ["?" * 64, "a?[2J", "bad\ufffd" + "x" * 60]


def test_numbers_that_are_none_are_not_shown(reports: Reports, workers: Workers, client: redis.Redis) -> None:
    reports.write(ROW)
    stamp, _, text = (client.hget(KEYS.workers, "one@host") or b"").partition(b" ")
    odd = json.dumps({**json.loads(text), "loop_age": "x", "settled_age": -5, "keeper": "yes"}).encode()
    client.hset(KEYS.workers, "one@host", stamp + b" " + odd)
    assert [(row.loop_age, row.settled_age, row.keeper) for row in workers.rows()] == [(None, 0.0, None)]


def test_every_key_expires_if_no_worker_reports_any_longer(reports: Reports, client: redis.Redis, clock: Clock) -> None:
    run = Run("id", "task", "queue", "one@host", "failed", when(0))
    for _ in range(2):
        reports.write(ROW, [TASK], {Series("task", "queue"): Tally(1)}, [run])
        clock.forward(60)
    assert client.dbsize() > 8
    assert [key for key in client.scan_iter() if client.ttl(key) <= 0] == []
