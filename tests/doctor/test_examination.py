"""The checks of the doctor for a Celery app: dispatchers, and tasks that its workers do not know."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

import pytest

from redis_queue.celery import DurableTasks
from redis_queue.delay.dispatch_log import DispatcherRow
from redis_queue.delay.model import Dispatched
from redis_queue.doctor import Finding
from redis_queue.operate.access import AppAccess
from redis_queue.operate.diagnosis import examine
from tests.support.celery.delaying_names import NOTE
from tests.support.celery.fleet import Fleet, fleet_on_one_redis, send
from tests.support.doctor.stage import problems
from tests.support.marks import thorough
from tests.support.wait import wait_until


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """A fleet with store and broker in one Redis."""
    with fleet_on_one_redis() as fleet:
        yield fleet


def found(delayed: DurableTasks, *, ask: bool = False) -> dict[str, Finding]:
    """Return the findings about dispatchers and tasks."""
    findings = examine(AppAccess(delayed.app), ask=ask)
    return {finding.check: finding for finding in findings if finding.check in ("dispatchers", "tasks")}


def wait_for_answer(delayed: DurableTasks) -> None:
    """Wait until a worker answers; it is ready a little earlier."""
    wait_until(lambda: delayed.app.control.ping(timeout=0.5), description="an answer of the worker")


def test_a_missing_dispatcher_is_a_warning_even_without_entries(fleet: Fleet) -> None:
    said = found(fleet.delayed())

    assert (said["dispatchers"].severity, said["tasks"].severity) == ("warning", "ok")
    assert "no entries wait yet, but no dispatcher was seen" in said["dispatchers"].found
    assert said["dispatchers"].advice.startswith("start a worker")


def test_entries_without_a_dispatcher_are_an_error(fleet: Fleet) -> None:
    delayed = fleet.delayed()
    send(delayed, 600)
    said = found(delayed)["dispatchers"]
    assert (said.severity, "no dispatcher was seen" in said.found) == ("error", True)
    row = DispatcherRow("me", datetime.now(timezone.utc), leads=True, version="1", sent=0, failed=0, error="")
    delayed.queue.dispatch_log.note(Dispatched(), dispatcher=row)
    assert found(delayed)["dispatchers"].severity == "ok"


def test_tasks_that_the_app_does_not_know_are_named(fleet: Fleet) -> None:
    delayed = fleet.delayed()
    for number in range(7):
        delayed.app.send_task(f"shop.gone_{number}", countdown=600)
    said = found(delayed, ask=True)["tasks"]
    assert said.severity == "warning"
    assert "of the next 7, " in said.found
    assert "shop.gone_0 (1)" in said.found
    assert said.found.endswith("and 2 more")


def test_a_worker_that_does_not_dispatch_is_named(fleet: Fleet) -> None:
    delayed = fleet.delayed()
    send(delayed, 600)
    with fleet.worker(pool="solo", delayed=False) as worker:
        worker.wait_for_output("ready.")
        wait_for_answer(delayed)
        said = found(delayed, ask=True)["dispatchers"]

    assert said.severity == "error"
    assert "none of the running workers dispatches: " in said.found
    assert "@" in said.found
    assert "DurableTasks(app)" in said.advice
    assert "start a worker" not in said.advice


def test_workers_are_asked_for_their_tasks(fleet: Fleet) -> None:
    delayed = fleet.delayed()
    send(delayed, 600)
    with fleet.worker(pool="solo") as worker:
        worker.wait_for_output("ready.")
        wait_for_answer(delayed)
        # The task is known to the worker, not to this process.
        assert NOTE in found(delayed)["tasks"].found
        assert {finding.severity for finding in found(delayed, ask=True).values()} == {"ok"}
        delayed.app.send_task("shop.gone", countdown=600)
        assert "shop.gone (1)" in found(delayed, ask=True)["tasks"].found


def unread(delayed: DurableTasks, *, ask: bool = True) -> list[Finding]:
    """Return the findings about queues that nobody consumes."""
    return [finding for finding in examine(AppAccess(delayed.app), ask=ask) if finding.check == "unread queues"]


def test_a_queue_with_messages_that_nobody_consumes_is_named(fleet: Fleet) -> None:
    delayed = fleet.delayed()
    (before,) = unread(delayed)
    assert before.severity == "ok"
    delayed.app.send_task("any", queue="mails")
    delayed.app.send_task("any", queue="mails")
    (said,) = unread(delayed)
    assert said.severity == "warning"
    assert said.found == "Celery queue mails: 2 messages wait, and no worker consumes it"
    assert said.advice.startswith("start a worker with -Q mails, or move them:")
    # Workers without the extension may take them in a moment.
    assert [one.severity for one in unread(delayed, ask=False)] == ["ok"]


@pytest.mark.parametrize("with_extension", [False, *thorough(True)])
def test_a_queue_of_a_worker_with_or_without_the_extension_is_consumed(fleet: Fleet, *, with_extension: bool) -> None:
    # Messages wait although the worker consumes.
    fleet.settings["task_annotations"] = {NOTE: {"rate_limit": "1/h"}}
    delayed = fleet.delayed()
    with fleet.worker("-Q", "mail", pool="solo", delayed=with_extension) as worker:
        worker.wait_for_output("ready.")
        wait_for_answer(delayed)
        for _ in range(10):
            delayed.app.send_task(NOTE, queue="mail")
        delayed.app.send_task(NOTE, queue="mails")
        wait_until(lambda: fleet.ran, description="the first task")
        assert fleet.client.llen("mail")
        (said,) = unread(delayed)
        assert said.found.startswith(
            "Celery queue mails: 1 message waits, and no worker consumes it; workers consume mail"
        )
        fleet.client.delete("mails")
        assert [finding.severity for finding in unread(delayed)] == ["ok"]
        assert fleet.client.llen("mail")


def test_an_unreachable_broker_is_a_finding(fleet: Fleet) -> None:
    delayed = fleet.delayed()
    delayed.app.conf.broker_url = "redis://user:secret@127.0.0.1:1/0"
    assert unread(delayed) == []
    (said,) = problems(AppAccess(delayed.app), "unreadable")
    assert (said.severity, "secret" in said.found) == ("warning", False)
    assert said.found.startswith("Celery's queues cannot be read: the broker cannot be read")
