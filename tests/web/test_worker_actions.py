"""Actions on running tasks and workers in the dashboard, with a real worker, and refused forms."""

from __future__ import annotations

import re
from datetime import datetime, timezone

import pytest
import redis
from celery import Celery

from redis_queue.monitor.model import RunningTask, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.audit import Audit, AuditLine
from redis_queue.web import dashboard
from tests.support.celery.observed_names import GATE, PATIENT, SEEN
from tests.support.celery.observing import Observed
from tests.support.wait import wait_until
from tests.support.web.browser import Browser, Page
from tests.support.web.contents import KEY, Open, everything

RESULTS = True

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def operator(observed: Observed) -> Browser:
    """A browser on a dashboard of its app."""
    return Browser(dashboard(observed.app, secret_key=KEY, allow_write=True))


def last(client: redis.Redis) -> AuditLine:
    return Audit(client, "redis_queue").last()[0]


def rows(page: Page) -> list[str]:
    return [value for name, value in page.form("/actions/running/preview").boxes if name == "row"]


def test_running_tasks_are_stopped(operator: Browser, observed: Observed) -> None:
    with observed.worker(pool="prefork"):
        ids = [observed.send(GATE, "gate"), observed.send(PATIENT)]
        for id_ in ids:
            wait_until(lambda id_=id_: observed.workers.find_running(id_), timeout=60, description="the report")
        page = operator.get("/running")
        hard, soft = sorted(rows(page), key=lambda row: not row.endswith(ids[0]))

        asked = operator.send(page.form("/preview"), ("verb", "terminate"), row=soft, soft="1")
        assert "Terminate 1 running task softly?" in asked.text
        assert "SoftTimeLimitExceeded is raised" in asked.text
        assert "1 stopped." in operator.send(asked.confirmation).text
        assert observed.wait_for(PATIENT, 1).executed == 1
        assert (last(observed.client).verb, last(observed.client).detail) == ("terminate", "softly")

        asked = operator.send(page.form("/preview"), ("verb", "terminate"), row=[hard, soft])
        assert "1 of the ticked tasks have ended since the page was made." in asked.text
        assert "1 stopped." in operator.send(asked.confirmation).text
        assert observed.wait_for(GATE, 1).revoked == 1
        action = last(observed.client)
        assert (action.user, action.verb, action.queue, action.count) == ("local", "terminate", "one@test", 1)
        assert [(subject.id, subject.task) for subject in action.subjects] == [(ids[0], GATE)]
        assert "was sent before" in operator.send(asked.confirmation).text
    assert set(observed.client.lrange(SEEN, 0, -1)) == {b"gate", b"waits", b"cleaned up"}


def test_a_worker_is_resized_and_shut_down(operator: Browser, observed: Observed) -> None:
    with observed.worker(pool="prefork") as worker:
        wait_until(lambda: observed.app.control.ping(["one@test"], timeout=0.5), timeout=60, description="the worker")
        wait_until(lambda: observed.workers.row("one@test"), description="the report")
        page = operator.get("/workers")
        asked = operator.send(page.form_with(("name", "one@test")), ("verb", "resize"), size="3")
        assert "Resize one@test from 2 to 3?" in asked.text
        assert "one@test runs 3 tasks at once." in operator.send(asked.confirmation).text
        assert last(observed.client).detail == "from 2 to 3"
        asked = operator.send(page.form_with(("name", "one@test")), ("verb", "shutdown"))
        assert "Shut down one@test after its 0 running tasks?" in asked.text
        assert "one@test ends after its running tasks." in operator.send(asked.confirmation).text
        worker.wait(timeout=60)
    assert (last(observed.client).verb, last(observed.client).queue) == ("shutdown", "one@test")
    assert "No worker reports." in operator.get("/workers").text


@pytest.fixture
def silent(filled: redis.Redis) -> redis.Redis:
    """The reports of workers that do not answer: one with processes, one with threads."""
    reports, at = Reports(filled, "redis_queue"), datetime.now(timezone.utc)
    for name, pool in (("busy", "prefork"), ("threads", "thread")):
        reports.write(
            WorkerRow(f"{name}@host", at, at, pool=pool, concurrency=2, pid=7),
            [RunningTask(f"of-{name}", "shop.slow", "celery", f"{name}@host", at)],
        )
    return filled


def test_lost_workers_do_not_hide_those_that_report(writer: Browser, filled: redis.Redis) -> None:
    at = datetime.now(timezone.utc)
    for number in range(60):
        seen = round(at.timestamp() * 1000) - 70_000
        Reports(filled, "redis_queue", lambda seen=seen: seen).write(WorkerRow(f"dead{number:02}@a", at, at, busy=2))
    pages = [writer.get(path).text for path in ("/workers", "/workers?offset=50", "/workers?name=work")]
    for page in pages[:2]:
        assert re.search("60 lost, 1 (busy|silent)", page)
        assert "No worker reports" not in page
    assert re.search(r"dead49@a lost last seen 1 min 1\d s ago; it ran 2 tasks", pages[0])
    assert ("dead50@a" in pages[0], "dead59@a" in pages[1], "release" in pages[1]) == (False, True, True)
    assert ("worker" in pages[2], "dead" in pages[2]) == (True, False)
    assert "Workers 1 60 lost" in writer.get("/").text
    # Neither a rate nor a queue counts them.
    assert "Running 2" in writer.get("/").text


def test_a_surrogate_in_its_id_hides_no_task(writer: Browser, filled: redis.Redis) -> None:
    at = datetime.now(timezone.utc)
    tasks = [RunningTask("id\ud800", "shop\ud800", "q\ud800", "busy@host", at, "\ud800", "\ud800", root="\ud800")]
    Reports(filled, "redis_queue").write(WorkerRow("busy@host", at, at, pool="pre\ud800", pid=7), tasks)
    for page in ("/running", "/workers", "/"):
        found = writer.get(page)
        assert (page, found.status) == (page, 200)
    assert "id\ufffd" in writer.get("/running").text


def test_a_silent_worker_is_reported(writer: Browser, silent: redis.Redis) -> None:
    page = writer.get("/running?worker=busy")
    asked = writer.send(page.form("/preview"), ("verb", "terminate"), row=rows(page))
    assert "busy@host: no answer within 2 s." in writer.send(asked.confirmation).text
    action = last(silent)
    assert (action.count, action.detail.partition(".")[0]) == (0, "1 skipped: busy@host: no answer within 2 s")
    asked = writer.send(writer.get("/workers").form_with(("name", "busy@host")), ("verb", "shutdown"))
    assert "busy@host: no answer within 2 s." in writer.send(asked.confirmation).text


def test_what_a_pool_cannot_do_is_not_offered(writer: Browser, silent: redis.Redis) -> None:
    page = writer.get("/running?worker=threads")
    asked = writer.send(page.form("/preview"), ("verb", "terminate"), row=rows(page), soft="1")
    assert "threads@host: its thread pool cannot raise SoftTimeLimitExceeded in a running task." in asked.text
    assert not [form for form in asked.forms if form.method == "post"]
    workers = writer.get("/workers")
    assert ("verb", "resize") in workers.form_with(("name", "busy@host")).buttons
    assert ("verb", "resize") not in workers.form_with(("name", "threads@host")).buttons
    refused = writer.send(workers.form_with(("name", "threads@host")), ("verb", "resize"), size="3")
    assert (refused.status, "the size of a thread pool cannot be changed" in refused.text) == (400, True)


@pytest.mark.parametrize(
    ("form", "changes", "status"),
    [
        ("/running", {"row": "x"}, 400),
        ("/running", {"row": "1:a:b:c"}, 400),
        ("/running", {"row": f"{'9' * 16}:a:b"}, 400),
        ("/running", {"row": "1:a%0A:b"}, 400),
        ("/running", {"row": None}, 400),
        ("/running", {"verb": "kill"}, 400),
        ("/running", {"soft": "2"}, 400),
        ("/workers", {"name": "nobody@host"}, 404),
        ("/workers", {"name": None}, 400),
        ("/workers", {"verb": "resize", "size": "0"}, 400),
        ("/workers", {"verb": "resize", "size": "1001"}, 400),
        ("/workers", {"verb": "resize", "size": ""}, 400),
        ("/workers", {"verb": ["shutdown", "resize"]}, 400),
    ],
)
def test_bad_forms_change_nothing(
    form: str, changes: dict[str, object], status: int, writer: Browser, silent: redis.Redis
) -> None:
    page = writer.get(form)
    found = page.form("/actions/running/preview") if form == "/running" else page.form_with(("name", "busy@host"))
    before = everything(silent)
    verb = {} if "verb" in changes else {"verb": "terminate" if form == "/running" else "shutdown"}
    row = {"row": rows(page)} if form == "/running" and "row" not in changes else {}
    assert writer.send(found, **{**verb, **row, **changes}).status == status
    assert everything(silent) == before


def test_without_permission_or_app_there_are_no_buttons(
    reader: Browser, silent: redis.Redis, open_dashboard: Open
) -> None:
    for browser in (reader, open_dashboard(silent, allow_write=True)):
        for path in ("/running", "/workers"):
            assert not [form for form in browser.get(path).forms if form.action.endswith("/preview") and form.buttons]


def test_an_action_needs_its_preview(writer: Browser, silent: redis.Redis, app: Celery) -> None:
    page = writer.get("/running?worker=busy")
    asked = writer.send(page.form("/preview"), ("verb", "terminate"), row=rows(page))
    assert writer.send(asked.confirmation, confirmed="2").status == 400
    assert writer.send(asked.confirmation, operation=None).status == 400
    shown = writer.send(writer.get("/workers").form_with(("name", "busy@host")), ("verb", "shutdown"))
    # Another process has its name by now.
    assert writer.send(shown.confirmation, pid="8").status == 400
