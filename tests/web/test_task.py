"""The page of one task, and the search that leads to it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue import RedisQueue
from redis_queue.basics.times import from_ms
from redis_queue.celery.message.envelope import Envelope
from redis_queue.cli import celery as celery_cli
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure, Run, Series, Tally
from redis_queue.monitor.report import Reports
from redis_queue.web import dashboard
from tests.support.cli.commands import runner
from tests.support.web.browser import Browser
from tests.support.web.contents import KEY, TASK, Open


def ended(client: redis.Redis, id_: str, **fields: Any) -> Run:
    """Report a run that ended now; return it."""
    reports = Reports(client, "redis_queue")
    at = from_ms(reports.write())
    times = {"started_at": at - timedelta(seconds=2), "sent_at": at - timedelta(seconds=5)}
    run = Run(id_, "shop.mail", "slow", "worker", **{"outcome": "succeeded", "ended_at": at, **times, **fields})
    reports.write(ended=[run])
    return run


class TestTask:
    def test_that_waits(self, reader: Browser, app: Celery) -> None:
        page = reader.get(f"/task?id={TASK}")
        assert page.text.index("shop.remind") < page.text.index("State delayed") < page.text.index("stored")
        assert page.text.index("stored 2") < page.text.index("due 2")
        assert page.link("/entry?").endswith(f"id={TASK}")
        assert "secret" not in page.source
        shown = reader.get(page.link("body=1"))
        assert "['secret'] {'token': ***}" in shown.text
        assert "hunter2" not in shown.source

    def test_that_was_rescheduled(self, writer: Browser, app: Celery) -> None:
        page = writer.get(f"/entry?id={TASK}")
        preview = writer.send(page.form("/preview"), ("verb", "reschedule"), when="5h")
        writer.send(preview.confirmation)
        events = writer.get(f"/task?id={TASK}").text
        assert events.index("stored 2") < events.index("reschedule by local") < events.index("due 2")

    def test_that_runs(self, reader: Browser) -> None:
        page = reader.get("/task?id=runs")
        assert ["State running" in page.text, "started 2" in page.text] == [True, True]
        assert page.link("/running?").endswith("task=shop.remind&worker=worker")

    def test_that_failed(self, reader: Browser) -> None:
        page = reader.get("/task?id=failed")
        assert ["State failed" in page.text, "ValueError: broken" in page.text] == [True, True]
        assert page.link("/failure?") == "/failure?id=failed"

    def test_that_ended(self, reader: Browser, filled: redis.Redis) -> None:
        ended(filled, "mail-1")
        text = reader.get("/task?id=mail-1").text
        found = [text.index(event) for event in ("sent 2", "for slow", "started 2", "on worker", "succeeded 2")]
        assert found == sorted(found)

    def test_in_a_canvas(self, reader: Browser, filled: redis.Redis) -> None:
        ended(filled, "first")
        ended(filled, "second", root="first", parent="first")
        ended(filled, "third", root="first", parent="second", group="both", outcome="failed")
        page = reader.get("/task?id=second")
        assert "succeeded shop.mail first" in page.text
        assert "failed shop.mail third group both" in page.text
        assert {"/task?id=first", "/task?id=third"} <= set(page.links)

    def test_shows_where_its_time_went(self, reader: Browser, filled: redis.Redis) -> None:
        ended(filled, "mail-1", outcome="failed", error="ValueError: <b>")
        page = reader.get("/task?id=mail-1")
        assert "waited 3 s ran 2 s" in page.text
        assert "Error ValueError: <b>" in page.text
        assert "<b>ValueError" not in page.source
        rects = [(found["x"], found["width"]) for tag, found in page.tags if tag == "rect"]
        assert rects == [("0", "600"), ("600", "400")]
        assert "+3 s" in page.text

    def test_begins_with_the_step_at_which_its_chain_stopped(
        self, reader: Browser, filled: redis.Redis, app: Celery
    ) -> None:
        ended(filled, "first")
        steps = [{"task": "shop.<i>", "options": {"task_id": "never"}}]
        body = json.dumps([[], {}, {"chain": steps, "errbacks": [{"task": "shop.tell"}]}]).encode()
        headers = {"lang": "py", "task": "shop.pay", "id": "pay", "root_id": "first", "parent_id": "first"}
        message = Envelope(body, "application/json", "utf-8", headers, {}, "", "celery").pack("")
        failed = Failure(
            "pay", "shop.pay", "celery", "w", datetime.now(timezone.utc), exception="ValueError", body=message
        )
        Failures(filled, "redis_queue").keep([failed], 1000, 7)
        page = reader.get("/task?id=never")
        assert "The chain stopped at step shop.pay pay ValueError" in page.text
        assert page.text.index("The chain stopped") < page.text.index("State not sent")
        assert "/task?id=pay" in page.links
        page = reader.get("/task?id=pay")
        assert "Not sent, because it failed chain shop.<i> never Errbacks if it fails shop.tell" in page.text
        shown = runner().invoke(celery_cli.group, ["task", "pay"], obj=SimpleNamespace(app=app)).stdout
        assert ["not sent " in shown, "comes next" in shown, "shop.tell" in shown] == [True, False, False]

    @pytest.mark.parametrize(
        ("id_", "verb", "question"),
        [
            ("runs", "terminate", "Terminate"),
            (TASK, "cancel", "Cancel 1"),
            ("failed", "retry", "Retry 1 failure"),
            ("dead", "redrive", "Redrive 1 dead letter"),
            ("waits", "delete", "Delete 1 message of slow"),
        ],
    )
    def test_can_be_acted_on(self, id_: str, verb: str, question: str, writer: Browser, app: Celery) -> None:
        app.send_task("shop.mail", task_id="waits", queue="slow")
        page = writer.get(f"/task?id={id_}")
        preview = writer.send(page.form("/preview"), ("verb", verb))
        assert question in preview.text
        assert id_ in preview.text

    @pytest.mark.parametrize("id_", ["runs", TASK, "failed", "dead"])
    def test_without_permission_it_has_no_forms(self, id_: str, reader: Browser) -> None:
        assert "/preview" not in reader.get(f"/task?id={id_}").source

    def test_shows_its_result_on_request(self, reader: Browser, filled: redis.Redis) -> None:
        filled.set("celery-task-meta-done", json.dumps({"status": "SUCCESS", "result": {"sum": 7, "token": "hunter2"}}))
        page = reader.get("/task?id=done")
        assert "sum" not in page.text
        shown = reader.get(page.link("body=1"))
        assert '"sum": 7' in shown.text
        assert "hunter2" not in shown.source

    @pytest.mark.parametrize("path", ["/running", "/failure?id=failed", f"/entry?id={TASK}"])
    def test_is_linked(self, path: str, reader: Browser) -> None:
        link = reader.get(path).link("/task?")
        assert "No source knows" not in reader.get(link).text

    def test_unknown(self, reader: Browser) -> None:
        page = reader.open("/task?id=nobody")
        assert page.status == 404
        assert "No source knows a task with this id." in page.text
        assert "running tasks no worker reports it" in page.text

    @pytest.mark.parametrize("query", ["id=", "id=a%0Ab", f"id={'x' * 256}", "", "id=a&id=b", "id=a&other=1"])
    def test_bad_ids(self, query: str, reader: Browser) -> None:
        page = reader.open(f"/task?{query}")
        assert page.status in (400, 404)
        assert "No source knows" not in page.text

    def test_without_an_app(self, filled: redis.Redis) -> None:
        page = Browser(dashboard(filled, secret_key=KEY)).get("/task?id=failed")
        assert "result backend needs the Celery app" in page.text
        assert not [link for link in page.links if "celery-queue" in link]


class TestSearch:
    @pytest.mark.parametrize(
        ("text", "path", "link"),
        [
            ("remin", "Tasks", "/history?task=shop.remind&span=2d"),
            ("slow", "Celery queues", "/celery-queue?name=slow"),
            ("order", "Delay queues and RedisQueues", "/queue?kind=queue&name=orders"),
            ("worke", "Workers", "/workers?name=worker"),
            ("ValueErr", "Failures", "/failures?task=shop.remind&exception=ValueError"),
        ],
    )
    def test_by_a_part_of_a_name(self, text: str, path: str, link: str, reader: Browser, app: Celery) -> None:
        app.conf.task_default_queue = "slow"
        page = reader.get(f"/search?q={text}")
        assert path in page.text
        assert link in page.links

    def test_by_an_id_leads_to_the_task(self, reader: Browser) -> None:
        response = reader.raw(f"/search?q={TASK}")
        assert (response.status_code, response.location) == (302, f"/task?id={TASK}")

    def test_without_a_text_it_says_what_can_be_found(self, reader: Browser) -> None:
        assert "Search for the id of a task" in reader.get("/search").text

    def test_shows_the_first_ones_and_where_the_others_are(self, reader: Browser, filled: redis.Redis) -> None:
        for number in range(25):
            RedisQueue(f"tenant-{number:02}", filled).put("x")
        page = reader.get("/search?q=tenant")
        assert ["tenant-19" in page.text, "tenant-20" in page.text] == [True, False]
        assert page.link("/queues?name") == "/queues?name=tenant"

    def test_suggests_names(self, reader: Browser) -> None:
        options = reader.get("/search/suggest?q=rd").source
        assert '<option value="orders">' in options
        assert "shop.remind" in reader.get("/search/suggest").source

    def test_names_are_text(self, open_dashboard: Open, filled: redis.Redis) -> None:
        Reports(filled, "redis_queue").write(tallies={Series("<b>x</b>", "q"): Tally(1)})
        reader = open_dashboard()
        for path in ("/search?q=<b>", "/search/suggest?q=<b>"):
            source = reader.get(path).source
            assert ["<b>x" in source, "&lt;b&gt;x" in source] == [False, True]
