"""The life of one task: every source, its absence, and the order of events."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue.errors import InvalidNameError
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure, Run, RunningTask, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import Access, AppAccess
from redis_queue.operate.audit import Audit, AuditLine, Subject
from redis_queue.operate.inspector import Inspector
from redis_queue.operate.task_life import TaskLife, phases, task_life
from redis_queue.store.keys import MonitorKeys
from tests.support.clock import Clock, when
from tests.support.servers import RedisServer

PREFIX = "redis_queue"
RUN = Run(
    "a", "shop.mail", "mail", "one@host", "failed", when(-10), when(-12), when(-40), when(-15), 1, "p", "root", "g"
)


@pytest.fixture
def access(client: redis.Redis, clock: Clock) -> Access:
    return Access(Inspector(client, prefix=PREFIX, clock=clock))


@pytest.fixture
def app_access(app: Celery) -> AppAccess:
    return AppAccess(app)


def unknown(life: TaskLife) -> dict[str, str]:
    return {source.name: source.note for source in life.sources if not source.known}


def happened(life: TaskLife) -> list[str]:
    return [f"{event.what} {event.detail}".strip() for event in life.events]


def test_an_unknown_task_tells_where_it_was_looked_for(access: Access) -> None:
    life = task_life(access, "nobody")
    assert (life.is_known, life.state, life.events) == (False, "unknown", [])
    assert list(unknown(life)) == [
        "running tasks",
        "runs",
        "delayed tasks and dead letters",
        "failures",
        "audit",
        "result backend",
        "Celery queues",
        "messages in flight",
        "steps after failures",
    ]
    assert "20,000" in unknown(life)["runs"]


@pytest.mark.parametrize("id_", ["", "x" * 256, "a\nb", "\x1b[2J"])
def test_an_invalid_id_is_refused(access: Access, id_: str) -> None:
    with pytest.raises(InvalidNameError, match=r"id=.*: must be 1 to 255 printable characters"):
        task_life(access, id_)


def test_runs_become_events_in_order(access: Access, reports: Reports) -> None:
    again = replace(RUN, outcome="succeeded", ended_at=when(-1), started_at=when(-3), due_at=None, retries=2)
    reports.write(ended=[RUN])
    reports.write(ended=[again])
    life = task_life(access, "a")
    assert (life.state, life.task, life.queue, life.worker) == ("succeeded", "shop.mail", "mail", "one@host")
    assert life.lineage == ("root", "p", "g")
    assert happened(life) == [
        "stored for mail",
        "sent for mail",
        "due retry 1, dispatched between then and the fetch",
        "started on one@host, retry 1",
        "failed",
        "started on one@host, retry 2",
        "succeeded",
    ]


def test_its_time_is_split_into_phases(access: Access, reports: Reports) -> None:
    first = replace(RUN, outcome="retried", fetched_at=when(-13))
    again = replace(RUN, ended_at=when(-1), started_at=when(-3), sent_at=when(-10), due_at=None, fetched_at=when(-11))
    reports.write(ended=[first])
    reports.write(ended=[again])
    life = task_life(access, "a")
    # By its producer's clock, the second message was sent after it was fetched.
    expected = ["delayed 25 s", "waited 2 s", "prefetched 1 s", "ran 2 s", "prefetched 8 s", "ran 2 s"]
    assert [phase.text for phase in phases(life)] == expected
    assert [event.after for event in life.events] == [None, 25, 2, 1, 1, 1, 0, 7, 2]
    task = RunningTask("a", "shop.mail", "mail", "one@host", when(-0.5))
    reports.write(WorkerRow("one@host", when(0), when(-60)), [task])
    assert [phase.text for phase in phases(task_life(access, "a"))] == [*expected, "ran 500 ms so far"]


@pytest.mark.parametrize("due", [None, when(-30)])
def test_a_message_that_came_back_was_sent_once(access: Access, reports: Reports, due: Any) -> None:
    first = replace(RUN, outcome="retried", due_at=due, sent_at=when(-40), fetched_at=when(-29.7), retries=0)
    first = replace(first, started_at=when(-29), ended_at=when(-25))
    second = replace(first, fetched_at=when(-20), started_at=when(-19), ended_at=when(-18))
    last = replace(second, outcome="succeeded", fetched_at=when(-10), started_at=when(-10), ended_at=when(-4))
    for run in (first, second, last):
        reports.write(ended=[run])
    life = task_life(access, "a")
    sent = ["stored for mail", "due dispatched between then and the fetch"] if due else ["sent for mail"]
    again = ["fetched by one@host, again", "started on one@host"]
    ends = ["retried", *again, "retried", *again, "succeeded"]
    assert happened(life) == [*sent, "fetched by one@host", "started on one@host", *ends]
    waited = ["delayed 10 s", "waited 300 ms"] if due else ["waited 10.3 s"]
    texts = [phase.text for phase in phases(life)]
    later = ["waited 5 s", "prefetched 1 s", "ran 1 s", "waited 8 s", "prefetched 0 ms", "ran 6 s"]
    assert texts == [*waited, "prefetched 700 ms", "ran 4 s", *later]


@pytest.mark.parametrize(("since", "state"), [(-5, "running"), (-20, "failed")])
def test_a_running_task_is_newer_than_its_last_run(access: Access, reports: Reports, since: int, state: str) -> None:
    task = RunningTask("a", "shop.mail", "mail", "one@host", when(since), deliveries=2)
    reports.write(WorkerRow("one@host", when(0), when(-60)), [task], ended=[RUN])
    life = task_life(access, "a")
    assert life.state == state
    assert ("started on one@host, delivery 2" in happened(life)) is (state == "running")


def test_a_delayed_task_is_found_with_its_dead_letter(app_access: AppAccess, client: redis.Redis) -> None:
    queue = app_access.delay_queue()
    call = {"task": "shop.mail", "args": ["x"], "kwargs": {}, "options": {"queue": "mail"}}
    queue.push(call, id="a", delay=60)
    life = task_life(app_access, "a")
    assert (life.state, life.task, life.queue, life.arguments) == ("delayed", "shop.mail", "mail", ("('x',)", "{}"))
    assert happened(life) == ["stored in scheduled", "due"]
    queue.run_now("a")
    (entry,) = queue.claim(1)
    queue.nack(entry, dead=True, reason="no such queue")
    life = task_life(app_access, "a")
    assert life.state == "dead letter"
    assert happened(life)[-1] == "became a dead letter no such queue"


def test_a_failure_and_the_audit_are_part_of_it(access: Access, reports: Reports, client: redis.Redis) -> None:
    failure = Failure("a", "shop.mail", "mail", "one@host", when(-10), exception="ValueError", message="no")
    Failures(client, PREFIX, access.catalog.clock).keep([failure], 10, 1)
    subject = Subject("a", "celery", "shop.mail")
    Audit(client, PREFIX).record(AuditLine(when(-50), "ann", "run-now", "celery", 1, "", [subject]))
    assert happened(task_life(access, "a")) == ["run-now by ann", "failed ValueError: no"]
    reports.write(ended=[RUN])
    assert happened(task_life(access, "a"))[-2:] == ["failed", "failure kept ValueError: no"]


def test_a_waiting_message_and_a_result_are_found(app_access: AppAccess, client: redis.Redis) -> None:
    app_access.app.send_task("shop.mail", ["x"], task_id="a", queue="mail")
    found = task_life(app_access, "a")
    assert (found.state, found.queue, found.task) == ("waiting", "mail", "shop.mail")
    client.delete("mail")
    client.set("celery-task-meta-a", '{"status": "SUCCESS", "result": 3, "date_done": "2030-01-01T00:00:00+00:00"}')
    life = task_life(app_access, "a")
    assert life.result is not None
    assert (life.result.value, life.error) == ("3", "")
    assert (life.state, [event.what for event in life.events]) == ("succeeded", ["result SUCCESS"])
    assert "not among the next" in unknown(life)["Celery queues"]


@pytest.mark.parametrize(
    "value",
    [
        b"\x80\x04N.",
        b"{}",
        b"[" * 5000,
        b'{"status": 1}',
        b'{"status": "X"',
        b'{"status": "SUCCESS", "x": "' + b"y" * 10_000_000,
        b'{"status": "FAILURE", "result": {"exc_type": [1], "exc_message": {"a": "\\ud800"}}}',
        b'{"status": "FAILURE", "result": "' + b"y" * 50_000 + b'"}',
        b'{"status": "FAILURE", "result": {"exc_message": ["' + b"y" * 50_000 + b'"]}}',
    ],
)
def test_a_hostile_result_is_never_unpickled(app_access: AppAccess, client: redis.Redis, value: bytes) -> None:
    client.set("celery-task-meta-a", value)
    life = task_life(app_access, "a")
    assert life.state == ("failed" if b"FAILURE" in value else "succeeded" if len(value) > 10_000 else "unknown")
    assert len(life.error.encode()) <= 1024


def test_a_broken_source_does_not_hide_the_others(access: Access, reports: Reports, client: redis.Redis) -> None:
    reports.write(ended=[RUN])
    keys = MonitorKeys(PREFIX)
    client.set(keys.failed_at, "text")
    client.set(keys.running, "text")
    life = task_life(access, "a")
    assert life.state == "failed"
    assert unknown(life)["failures"].startswith("cannot be read")
    assert unknown(life)["running tasks"].startswith("cannot be read")


def test_results_of_other_backends_are_not_read(redis_server: RedisServer, client: redis.Redis) -> None:
    url = f"redis+socket://{redis_server.socket}"
    with Celery("tests", broker=url, backend="rpc://", set_as_current=False) as app:
        life = task_life(AppAccess(app), "a")
    assert "only results in Redis" in unknown(life)["result backend"]


def test_hostile_rows_keep_their_limits(access: Access, client: redis.Redis, clock: Clock) -> None:
    run: dict[str, Any] = {"outcome": "failed", "retries": 0, "ended": clock.now, "task": "<b>" * 1_000_000}
    client.hset(MonitorKeys(PREFIX).runs, "a", f"root\0{json.dumps(run)}")
    life = task_life(access, "a")
    assert len(life.task) <= 255
    assert life.state == "failed"
