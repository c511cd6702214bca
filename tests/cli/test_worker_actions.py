"""The commands that act on running tasks and workers, with a real worker."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import Result

from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.cli import celery as celery_cli
from redis_queue.monitor.model import RunningTask, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.audit import Audit
from redis_queue.store.keys import MonitorKeys
from tests.support.celery.observed_names import GATE, SEEN
from tests.support.celery.observing import Observed
from tests.support.cli.commands import Run, answer, runner
from tests.support.clock import Clock
from tests.support.marks import thorough
from tests.support.wait import wait_until

pytestmark = pytest.mark.timeout(180)

LATER: dict[str, Any] = {"countdown": 3600}


def run_in(app: Celery, *arguments: str) -> Result:
    return runner().invoke(celery_cli.group, arguments, obj=SimpleNamespace(app=app), env={"COLUMNS": "80"})


def test_they_preview_and_act(observed: Observed) -> None:
    app = observed.app
    with observed.worker(pool="prefork") as worker:
        id_ = observed.send(GATE, "gate")
        task = wait_until(lambda: observed.workers.find_running(id_), timeout=60, description="the report")
        seen = answer(run_in(app, "terminate", id_, "--dry-run", "--json"))
        assert (seen["to_be_stopped"], seen["first"][0]["id"], seen["first"][0]["queue"]) == (1, id_, "one@test")
        refused = run_in(app, "terminate", id_)
        assert (refused.exit_code, "add --yes" in refused.stderr) == (2, True)
        assert observed.workers.find_running(id_) == task

        assert answer(run_in(app, "terminate", id_, "--yes", "--json")) == {"stopped": 1}
        assert observed.wait_for(GATE, 1).revoked == 1
        gone = f"id={id_!r}: no worker reports that it runs"
        # Until the next report the task is found, and has ended.
        wait_until(lambda: gone in run_in(app, "terminate", id_, "--yes").stderr, description="the next report")

        assert answer(run_in(app, "worker", "one@test", "resize", "3", "--dry-run", "--json")) == {"to_be_resized": 1}
        assert answer(run_in(app, "worker", "one@test", "resize", "3", "--yes", "--json")) == {"resized": 1}
        wait_until(
            lambda: (row := observed.workers.row("one@test")) and row.concurrency == 3, description="the new size"
        )
        assert answer(run_in(app, "worker", "one@test", "shutdown", "--yes", "--json")) == {"shut_down": 1}
        worker.wait(timeout=60)
    actions = [
        (done.verb, done.queue, done.count, done.detail) for done in Audit(observed.client, "redis_queue").last()
    ]
    assert actions == [
        ("shutdown", "one@test", 1, ""),
        ("resize", "one@test", 1, "from 2 to 3"),
        ("terminate", "one@test", 1, ""),
    ]


def test_tasks_that_match_are_stopped_wherever_they_are(observed: Observed) -> None:
    app, client = observed.app, observed.client
    stamps = {"stamps": {"tenant": "acme"}, "stamped_headers": ["tenant"]}
    ids: dict[str, str] = {}
    with observed.worker("--concurrency", "1", pool="prefork"):
        for state, options in (("running", {}), ("fetched", {}), ("waiting", {"queue": "slow"}), ("delayed", LATER)):
            ids[state] = observed.send(GATE, state, headers=stamps, **options)
            if state == "running":
                wait_until(lambda: observed.workers.find_running(ids["running"]), timeout=60, description="the report")
        ids["other"] = observed.send(GATE, "other")
        search = ("--task", GATE, "--stamp", "tenant=acme")

        def states() -> dict[str, str]:
            rows = answer(run_in(app, "tasks", *search, "--json"))["tasks"]
            return {row["id"]: row["state"] for row in rows}

        expected = {id_: state for state, id_ in ids.items() if state != "other"}
        wait_until(lambda: states() == expected, timeout=20, description="each task in its state")
        life = answer(run_in(app, "task", ids["fetched"], "--json"))
        assert (life["state"], life["queue"], life["phases"][-1]["doing"]) == ("fetched", "celery", "waited")

        seen = run_in(app, "stop", *search, "--dry-run")
        assert seen.stdout.splitlines()[-1] == "4 to be stopped"
        assert {line.split()[0]: line.split()[1] for line in seen.stderr.splitlines() if line.split()[0] in ids} == (
            {"delayed": "1", "waiting": "1", "fetched": "1", "running": "1"}
        )
        refused = run_in(app, "stop", *search)
        assert (refused.exit_code, "add --yes" in refused.stderr) == (2, True)
        assert states() == expected

        assert answer(run_in(app, "stop", *search, "--yes", "--json")) == {"stopped": 4}
        wait_until(lambda: b"other" in client.lrange(SEEN, 0, -1), timeout=30, description="the task that goes on")
        client.rpush("other", "go")
        tally = observed.wait_for(GATE, 3)
        # One was terminated, and one discarded when its turn came; the others have gone before a worker saw them.
        assert (tally.executed, tally.revoked) == (1, 2)
        assert client.lrange(SEEN, 0, -1) == [b"running", b"other"]
        assert [client.llen("slow"), len(StoredTasks.of(app).queue)] == [0, 0]
    line = Audit(client, "redis_queue").last()[0]
    assert (line.verb, line.count, line.detail) == ("stop", 4, "1 delayed, 1 waiting, 1 fetched, 1 running")


@pytest.mark.parametrize("pool", ["threads", *thorough("gevent", "eventlet")])
def test_a_task_that_waits_in_its_pool_is_stopped(observed: Observed, pool: str) -> None:
    app, client = observed.app, observed.client
    with observed.worker("--concurrency", "1", "--loglevel", "INFO", pool=pool) as worker:
        runs, stopped = (observed.send(GATE, name) for name in ("runs", "stopped"))
        wait_until(lambda: observed.workers.find_running(runs), timeout=60, description="the report")
        worker.wait_for_output(f"{stopped}] received")
        observed.send(GATE, "last")
        assert answer(run_in(app, "stop", stopped, "--yes", "--json")) == {"stopped": 1}
        worker.wait_for_output("Tasks flagged as revoked")
        client.rpush("runs", "go")
        client.rpush("last", "go")
        tally = observed.wait_for(GATE, 3)
        assert (tally.executed, tally.revoked) == (2, 1)
        assert client.lrange(SEEN, 0, -1) == [b"runs", b"last"]


@pytest.fixture
def reports(app: Celery, client: redis.Redis, clock: Clock) -> Reports:
    """The report of a worker with threads that has just gone, and of its task."""
    reports, at = Reports(client, "redis_queue", clock), datetime.fromtimestamp(clock.now / 1000, timezone.utc)
    row = WorkerRow("two@host", at, at, pool="thread", concurrency=2, pid=1)
    reports.write(row, [RunningTask("slow", "shop.slow", "celery", "two@host", at)])
    return reports


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("terminate slow --yes", "two@host: its thread pool cannot end a running task"),
        ("terminate slow --soft --yes", "two@host: its thread pool cannot raise SoftTimeLimitExceeded in a running"),
        ("terminate nobody --yes", "id='nobody': no worker reports that it runs"),
        ("worker two@host resize 3 --yes", "two@host: the size of a thread pool cannot be changed"),
        ("worker two@hos shutdown --yes", "worker='two@hos': did not report within the last minute; did you mean"),
        ("worker two@host shutdown --yes", "two@host: no answer within 2 s"),
    ],
)
def test_what_they_cannot_do_is_one_line(line: str, error: str, run_in_app: Run, reports: Reports) -> None:
    done = run_in_app(*line.split())
    assert (done.exit_code, done.stdout) in ((1, ""), (2, ""), (1, "0 shut down\n"))
    assert error in done.stderr


def test_a_lost_worker_is_listed_and_cleared(lost: str, run: Run, reports: Reports, client: redis.Redis) -> None:
    (gone, alive) = json.loads(run("workers", "--json").stdout)["workers"]
    assert (gone["name"], gone["state"], gone["severity"], gone["release"]) == (lost, "lost", "bad", "abc")
    assert gone["reason"] == "last seen 2 min ago; it ran shop.hang for 4 min and 1 more"
    assert (alive["name"], alive["state"], alive["severity"]) == ("two@host", "alive", "good")
    assert "reason: last seen 2 min ago; it ran shop.hang for 4 min and 1 more" in run("workers").stdout

    releases = client.hgetall(MonitorKeys("redis_queue").releases)
    assert answer(run("worker", lost, "clear", "--dry-run", "--json")) == {"to_be_cleared": 1}
    assert answer(run("worker", lost, "clear", "--json")) == {"cleared": 1}
    assert [row["name"] for row in json.loads(run("workers", "--json").stdout)["workers"]] == ["two@host"]
    assert client.hkeys(MonitorKeys("redis_queue").running) == [b"two@host"]
    assert client.hgetall(MonitorKeys("redis_queue").releases) == releases
    (line,) = Audit(client, "redis_queue").last()
    assert (line.verb, line.queue, line.count) == ("clear", lost, 1)
    assert "is not listed: it has left, or was lost" in run("worker", lost, "clear").stderr
    refused = run("worker", "two@host", "clear")
    assert "two@host: it has reported within the last minute, so it is not lost" in refused.stderr
    assert len(Audit(client, "redis_queue").last()) == 1


@pytest.mark.parametrize("size", ["0", "-1", "1001", "x"])
def test_a_bad_size_is_a_usage_error(size: str, run_in_app: Run, reports: Reports) -> None:
    done = run_in_app("worker", "two@host", "resize", "--", size)
    assert (done.exit_code, "Invalid value for 'SIZE'" in done.stderr) == (2, True)


def test_without_an_app_they_are_an_error(run: Run, reports: Reports) -> None:
    for line in ("terminate slow", "worker two@host shutdown"):
        done = run(*line.split())
        assert (done.exit_code, "workers are reached through the broker of a Celery app" in done.stderr) == (2, True)
