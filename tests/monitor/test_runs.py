"""The latest runs: kept, found by id and by tree, and trimmed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import redis

from redis_queue.monitor.model import Run
from redis_queue.monitor.monitor import Runs
from redis_queue.monitor.report import MAX_ENDED, Reports
from redis_queue.monitor.rows import MAX_ARGUMENTS
from redis_queue.store.keys import MonitorKeys
from tests.support.clock import Clock, when

KEYS = MonitorKeys("redis_queue")
DAY = 86400
RUN = Run(
    "id1",
    "shop.mail",
    "mail",
    "one@host",
    "succeeded",
    when(10),
    started_at=when(8),
    sent_at=when(5),
    due_at=when(6),
    retries=1,
    parent="id0",
    root="id0",
    group="g",
    args="('ORD-55555', 'é')",
    kwargs="{'token': ***}",
)


@pytest.fixture
def runs(client: redis.Redis) -> Runs:
    return Runs(client, "redis_queue")


def test_a_run_is_read_as_it_was_written(reports: Reports, runs: Runs) -> None:
    reports.write(ended=[RUN])
    assert runs.get("id1") == [RUN]
    assert runs.get("nobody") == []


def test_runs_of_other_versions_are_read(reports: Reports, runs: Runs, client: redis.Redis) -> None:
    reports.write(ended=[RUN])
    root, line = client.hget(KEYS.runs, "id1").split(b"\0")
    row = json.loads(line)
    earlier = {name: value for name, value in row.items() if name not in ("args", "kwargs", "release")}
    for stored, expected in ((earlier, replace(RUN, args="", kwargs="")), ({**row, "newer": ["field"]}, RUN)):
        client.hset(KEYS.runs, "id1", root + b"\0" + json.dumps(stored).encode())
        assert runs.get("id1") == [expected]


def test_the_bytes_of_a_run_are_bounded(reports: Reports, runs: Runs, client: redis.Redis) -> None:
    texts = ("task", "queue", "worker", "parent", "root", "group", "error", "args", "kwargs", "release")
    long: dict[str, Any] = dict.fromkeys(texts, "\U0001f600" * 10_000)
    reports.write(ended=[replace(RUN, **long)] * 20)
    assert client.hstrlen(KEYS.runs, "id1") <= 102_000
    assert len(runs.get("id1")[0].args.encode()) == MAX_ARGUMENTS


def test_a_run_that_never_started_has_no_times(reports: Reports, runs: Runs) -> None:
    revoked = Run("id1", "shop.mail", "mail", "one@host", "revoked", when(1))
    reports.write(ended=[revoked])
    assert runs.get("id1") == [revoked]


def test_up_to_ten_runs_of_a_task_are_kept(reports: Reports, runs: Runs) -> None:
    for number in range(14):
        reports.write(ended=[replace(RUN, retries=number)])
    assert [run.retries for run in runs.get("id1")] == list(range(13, 3, -1))
    assert [run.retries for run in runs.latest()] == [13]


def test_a_retry_comes_before_the_run_that_sent_it(reports: Reports, runs: Runs) -> None:
    first = replace(RUN, outcome="retried")
    assert first.started_at is not None
    retry = replace(RUN, outcome="failed", retries=1, started_at=first.started_at + timedelta(milliseconds=1))
    retry = replace(retry, ended_at=first.ended_at - timedelta(milliseconds=5))
    reports.write(ended=[first, retry])
    assert [run.outcome for run in runs.get("id1")] == ["failed", "retried"]


def test_the_latest_runs_come_first(reports: Reports, runs: Runs, clock: Clock) -> None:
    for name in "abc":
        reports.write(ended=[replace(RUN, id=name)])
        clock.forward(1)
    assert [run.id for run in runs.latest(2)] == ["c", "b"]


def test_a_tree_has_the_runs_of_one_root(reports: Reports, runs: Runs) -> None:
    reports.write(ended=[replace(RUN, id="r", root="", parent=""), replace(RUN, id="child", root="r", parent="r")])
    reports.write(ended=[replace(RUN, id="other", root="r2")])
    assert sorted(run.id for run in runs.tree("r")) == ["child", "r"]
    assert runs.tree("") == []


def test_a_report_has_a_limited_number_of_runs(reports: Reports, runs: Runs) -> None:
    reports.write(ended=[replace(RUN, id=str(number)) for number in range(100)])
    assert len(runs.latest()) == MAX_ENDED


def test_runs_are_removed_after_two_days(reports: Reports, runs: Runs, clock: Clock, client: redis.Redis) -> None:
    for number in range(5):
        reports.write(ended=[replace(RUN, id=f"old{number}")])
    clock.forward(2 * DAY + 1)
    reports.write(ended=[RUN])
    assert [run.id for run in runs.latest()] == ["id1"]
    assert (client.hlen(KEYS.runs), client.zcard(KEYS.runs_order), client.zcard(KEYS.trees)) == (1, 1, 1)


def test_at_most_20_000_tasks_are_kept(reports: Reports, runs: Runs, client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipe:
        for number in range(20_000):
            pipe.hset(KEYS.runs, f"n{number}", "root\0{}")
            pipe.zadd(KEYS.runs_order, {f"n{number}": 1})
            pipe.zadd(KEYS.trees, {f"root\0n{number}": 0})
        pipe.execute()
    reports.write(ended=[replace(RUN, id=f"new{number}") for number in range(MAX_ENDED)])
    sizes = client.hlen(KEYS.runs), client.zcard(KEYS.runs_order), client.zcard(KEYS.trees)
    assert max(sizes) <= 20_000
    assert len(set(sizes)) == 1
    assert len(runs.get("new0")) == 1


@pytest.mark.parametrize("value", [b"", b"\xff", b"root", b"root\0", b"root\0[]", b'root\0{"outcome": "eaten"}'])
def test_unreadable_runs_are_left_out(reports: Reports, runs: Runs, client: redis.Redis, value: bytes) -> None:
    reports.write(ended=[RUN])
    client.hset(KEYS.runs, "id1", value)
    assert (runs.get("id1"), runs.latest(), runs.tree("id0")) == ([], [], [])
    reports.write(ended=[RUN])
    assert runs.latest() == [RUN]


def test_an_id_that_is_used_again_is_in_its_last_tree_only(reports: Reports, runs: Runs, client: redis.Redis) -> None:
    for root in ("first", "second"):
        reports.write(ended=[replace(RUN, root=root)])
    assert (runs.tree("first"), [run.id for run in runs.tree("second")]) == ([], ["id1"])
    assert client.zcard(KEYS.trees) == 1


def test_a_hostile_root_leaves_nothing(reports: Reports, clock: Clock, client: redis.Redis) -> None:
    reports.write(ended=[replace(RUN, root="a\0b")])
    clock.forward(3 * DAY)
    reports.write(ended=[replace(RUN, id="id2", root="id2")])
    assert client.zrange(KEYS.trees, 0, -1) == [b"id2\0id2"]


def test_runs_of_one_report_are_in_the_order_of_their_starts(client: redis.Redis, clock: Clock) -> None:
    first = Run("a", "shop.mail", "mail", "one@host", "retried", when(0), when(-2))
    last = replace(first, outcome="failed", started_at=when(-1), retries=1)
    Reports(client, "redis_queue", clock).write(ended=[last, first])
    assert [run.outcome for run in Runs(client, "redis_queue").get("a")] == ["failed", "retried"]
