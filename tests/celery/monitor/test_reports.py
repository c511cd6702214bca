"""Real workers report each run once, however it ended, and what they do at the moment."""

import os
import signal
import time
from datetime import datetime, timedelta, timezone
from functools import partial

import pytest

from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Series
from redis_queue.monitor.monitor import Monitor, Workers
from redis_queue.operate.access import AppAccess
from redis_queue.operate.liveness import worker_states
from redis_queue.operate.task_life import task_life
from redis_queue.store.keys import MonitorKeys
from tests.support.celery.observed_names import AGAIN, CRASH, DIE, FAIL, GATE, HEADERS, IGNORE, OK, REJECT, SEEN
from tests.support.celery.observing import PREFIX, Observed, observed_on_one_redis
from tests.support.marks import thorough
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(180)


@pytest.mark.parametrize("pool", ["prefork", "threads", *thorough("solo", "gevent", "eventlet")])
def test_each_run_is_counted_once(observed: Observed, pool: str) -> None:
    expired = observed.send(OK, expires=datetime.now(timezone.utc) - timedelta(seconds=5))
    for name in (OK, OK, OK, FAIL, AGAIN, REJECT, IGNORE):
        observed.send(name)
    observed.send(OK, countdown=0.1)
    with observed.worker(pool=pool):
        tallies = {
            OK: observed.wait_for(OK, 5),
            FAIL: observed.wait_for(FAIL, 1),
            AGAIN: observed.wait_for(AGAIN, 3),
            REJECT: observed.wait_for(REJECT, 1),
            IGNORE: observed.wait_for(IGNORE, 1),
        }
        wait_until(lambda: observed.runs.get(expired), description="the revoked run")
    counts = {name: (of.executed, of.failed, of.retried, of.revoked) for name, of in tallies.items()}
    assert counts == {
        OK: (4, 0, 0, 1),
        FAIL: (1, 1, 0, 0),
        AGAIN: (3, 1, 2, 0),
        REJECT: (1, 1, 0, 0),
        IGNORE: (1, 0, 0, 0),
    }
    assert (tallies[OK].duration.total, tallies[OK].waiting.total, tallies[OK].lateness.total) == (4, 4, 1)
    assert tallies[OK].lateness.quantile(1) < 60
    assert Series(OK, "celery") in observed.history.series()
    assert [run.outcome for run in observed.runs.get(expired)] == ["revoked"]


def test_a_task_does_not_see_the_header(observed: Observed) -> None:
    observed.send(HEADERS)
    observed.send(HEADERS, headers={"own": "1"})
    with observed.worker():
        observed.wait_for(HEADERS, 2)
    assert sorted(observed.client.lrange(SEEN, 0, -1)) == [b"None", b"{'own': '1'}"]


def test_a_task_that_died_with_its_processes_has_failed(observed: Observed) -> None:
    with observed.worker(pool="prefork"):
        died, crashed = observed.send(DIE), observed.send(CRASH)
        # Two deliveries of the one that comes back, then its end as a dead letter.
        tallies = observed.wait_for(DIE, 1), observed.wait_for(CRASH, 3)
        # Written after the counts; a worker that stops waits for a busy Redis no longer than a second.
        kept = Failures(observed.client, PREFIX)
        wait_until(lambda: kept.list()[0], description="the failure")
    assert [(of.executed, of.failed, of.retried) for of in tallies] == [(1, 1, 0), (3, 1, 2)]
    assert [run.outcome for run in observed.runs.get(crashed)] == ["retried", "retried"]
    # The dead letter can be redriven; it is not kept a second time to be retried.
    assert [failure.id for failure in kept.list()[0]] == [died]
    life = task_life(AppAccess(observed.app), crashed)
    assert (life.state, life.events[-1].what) == ("dead letter", "became a dead letter")


@pytest.mark.parametrize("pool", ["prefork", "threads", *thorough("gevent")])
def test_running_tasks_and_the_state_of_the_worker_are_seen(observed: Observed, pool: str) -> None:
    began = time.time()
    id_ = observed.send(GATE, "gate")
    with observed.worker(pool=pool) as worker:
        task = wait_until(lambda: observed.workers.find_running(id_), timeout=60, description="the running task")
        (row,) = observed.workers.rows()
        assert (task.task, task.queue, task.worker, task.lease, task.root) == (GATE, "celery", "one@test", "held", id_)
        assert task.args == "('gate',)"
        assert began - 1 < task.since.timestamp() < time.time() + 1
        assert (row.name, row.concurrency, row.busy, row.queues, row.keeper) == ("one@test", 2, 1, ("celery",), True)
        assert (row.loop_age is None) == (pool == "gevent")
        assert row.memory > 10_000_000
        assert row.versions is not None
        assert set(row.versions) == {"redis_queue", "celery", "python"}
        observed.client.rpush("gate", "open")
        wait_until(lambda: not observed.workers.running(), description="no running task")
        worker.request_shutdown()
        assert worker.wait() == 0
    assert observed.workers.rows() == []
    assert observed.tally(GATE).executed == 1


@pytest.mark.parametrize("pool", ["prefork", "threads", *thorough("solo")])
def test_runs_that_end_in_a_warm_shutdown_are_reported(observed: Observed, pool: str) -> None:
    observed.send(GATE, "gate")
    with observed.worker(pool=pool) as worker:
        wait_until(lambda: observed.client.llen(SEEN), timeout=60, description="a started task")
        worker.request_shutdown()
        worker.wait_for_output("Warm shutdown")
        observed.client.rpush("gate", "open")
        assert worker.wait() == 0
    assert observed.tally(GATE).executed == 1


def test_runs_that_ended_before_a_cold_shutdown_are_reported(observed: Observed) -> None:
    with observed.worker(pool="solo") as worker:
        wait_until(observed.workers.rows, timeout=60, description="a first report")
        for _ in range(5):
            observed.send(HEADERS)
        wait_until(lambda: observed.client.llen(SEEN) == 5, description="five runs")
        # During a task, the signal handler of older Celery raises an error in a solo pool: the worker does not stop.
        wait_until(lambda: not observed.client.exists("unacked"), description="acks of all runs")
        os.kill(worker.pid, signal.SIGQUIT)
        assert worker.wait() == 0
    assert observed.tally(HEADERS).executed == 5
    assert observed.workers.rows() == []


def test_scripts_and_keys_that_vanish_are_written_again(observed: Observed) -> None:
    with observed.worker():
        observed.send(OK)
        observed.wait_for(OK, 1)
        observed.client.script_flush()
        observed.send(OK)
        observed.wait_for(OK, 2)
        observed.client.flushall()
        wait_until(observed.workers.rows, description="the state of the worker")
        observed.send(OK)
        assert observed.wait_for(OK, 1).executed == 1


def test_a_worker_writes_once_a_second(observed: Observed) -> None:
    def calls() -> int:
        reports = observed.client.info("commandstats")
        return sum(stats["calls"] for name, stats in reports.items() if name in ("cmdstat_hlen", "cmdstat_hrandfield"))

    with observed.worker():
        wait_until(observed.workers.rows, timeout=60, description="a first report")
        first = observed.workers.rows()[0]
        before, began = calls(), time.monotonic()
        wait_until(
            lambda: (observed.workers.rows()[0].seen_at - first.seen_at).total_seconds() >= 5,
            description="five seconds of reports",
        )
        reports = (calls() - before) / 14
        assert reports <= 2 * (time.monotonic() - began)


@pytest.mark.parametrize(
    ("setting", "release"), [(None, "abc?123"), ("2026.11", "2026.11")], ids=["environment", "setting"]
)
def test_runs_failures_and_workers_name_the_release_of_the_app(setting: str | None, release: str) -> None:
    environment = {"REDIS_QUEUE_RELEASE": "", "GIT_SHA": " ", "GIT_COMMIT": "abc\x07123", "RELEASE": "other"}
    with observed_on_one_redis(redis_queue_release=setting) as observed, observed.worker(environment=environment):
        ok, _ = observed.send(OK), observed.send(FAIL)
        observed.wait_for(OK, 1), observed.wait_for(FAIL, 1)
        monitor = Monitor(observed.client, PREFIX)
        (run,), (failure,) = wait_until(
            lambda: (runs := monitor.runs.get(ok)) and (kept := monitor.failures.list()[0]) and (runs, kept),
            description="a run and a failure",
        )
        assert (run.release, failure.release) == (release, release)
        assert [row.release for row in monitor.workers.rows()] == [release]
        assert [row.release for row in monitor.releases()] == [release]


@pytest.mark.parametrize(
    ("settings", "args", "kwargs"),
    [
        ({}, "('ORD-55555',)", "{'token': ***}"),
        ({"redis_queue_keep_arguments": False}, "", ""),
        ({"redis_queue_keep_failures": False}, "", ""),
    ],
)
def test_kept_runs_have_their_arguments(settings: dict[str, bool], args: str, kwargs: str) -> None:
    with observed_on_one_redis(**settings) as observed, observed.worker():
        sent = [observed.send(name, "ORD-55555", kwargs={"token": "hunter2"}) for name in (OK, FAIL)]
        for id_ in sent:
            (run,) = wait_until(partial(observed.runs.get, id_), timeout=60, description="a run")
            assert (run.args, run.kwargs) == (args, kwargs)
        failures = Failures(observed.client, PREFIX)
        if settings.get("redis_queue_keep_failures", True):
            (failure,) = wait_until(lambda: failures.list()[0], description="a failure")
            assert (failure.args == "") == (args == "")
        assert "hunter2" not in str(observed.client.hgetall(MonitorKeys(PREFIX).runs))


def test_nothing_is_reported_if_the_setting_says_so() -> None:
    with observed_on_one_redis(redis_queue_monitor=False) as observed, observed.worker() as worker:
        observed.send(GATE, "gate")
        wait_until(lambda: observed.client.llen(SEEN), timeout=60, description="a started task")
        observed.client.rpush("gate", "open")
        wait_until(lambda: not observed.client.llen("gate"), description="an open gate")
        worker.request_shutdown()
        assert worker.wait() == 0
        assert observed.client.keys("*monitor*") == []


def test_a_killed_worker_is_lost_after_a_minute_and_replaced_by_its_successor(observed: Observed) -> None:
    with observed.worker() as worker:
        wait_until(observed.workers.rows, timeout=60, description="a first report")
        worker.kill()
    assert [row.name for row in observed.workers.rows()] == ["one@test"]
    later = Workers(observed.client, PREFIX, lambda: round(time.time() * 1000) + 61_000)
    assert later.rows() == []
    assert [one.state for one in worker_states(later)] == ["lost"]
    before = observed.workers.rows()[0]
    with observed.worker():
        wait_until(lambda: observed.workers.rows()[0].pid != before.pid, timeout=60, description="its successor")
        assert [one.state for one in worker_states(observed.workers)] == ["alive"]
