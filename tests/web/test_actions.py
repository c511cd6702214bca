"""Actions: the effect equals the preview, happens once, and is in the audit log."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue import DelayQueue, RedisQueue
from redis_queue.basics.logs import escape
from redis_queue.delay.model import Push
from redis_queue.operate import listing
from redis_queue.operate.access import AppAccess
from redis_queue.operate.audit import MAX_SUBJECTS, Audit, AuditLine, Subject
from redis_queue.store.scripts import load_scripts
from redis_queue.web import actions, dashboard
from tests.support.acl import limited_clients, rules_of
from tests.support.servers import RedisServer
from tests.support.wait import must
from tests.support.web.browser import SCREENS, Browser, Form, Page, crawl
from tests.support.web.contents import KEY, TASK, Open, everything


def audit(client: redis.Redis) -> list[tuple[str, str, str, int, str]]:
    """Return the actions in the audit log without their times, newest first, and without that of the fixture."""
    rows = Audit(client, "redis_queue").last()
    return [(row.user, row.verb, row.queue, row.count, row.detail) for row in rows if row.user != "ann"]


def preview(browser: Browser, path: str, verb: str, **changes: Any) -> Page:
    return browser.send(browser.get(path).form("/preview"), ("verb", verb), **changes)


def rows(browser: Browser, path: str, *ids: str) -> list[str]:
    boxes = [value for name, value in browser.get(path).form("/preview").boxes if name == "row"]
    return [box for box in boxes if box.split(":")[2] in ids]


def due(client: redis.Redis, id_: str) -> datetime:
    return must(DelayQueue("scheduled", client).get(id_)).due_at


class TestSelected:
    def test_cancel(self, writer: Browser, filled: redis.Redis, app: Celery) -> None:
        asked = preview(
            writer, "/scheduled?id_prefix=task", "cancel", row=rows(writer, "/scheduled", "task-1", "task-2")
        )
        assert "Cancel 2 entries?" in asked.text
        assert re.search(
            r"Due task-1 shop\.remind scheduled \d{4}-\d\d-\d\d \d\d:\d\d:\d\d in (1 h|59 min)", asked.text
        )
        assert due(filled, "task-1")

        assert "2 cancelled." in writer.send(asked.confirmation).text
        queue = DelayQueue("scheduled", filled)
        assert (queue.get("task-1"), queue.get("task-2"), queue.count()) == (None, None, 63)
        assert audit(filled) == [("local", "cancel", "scheduled", 2, "")]

    def test_cancel_shows_how_many_may_have_been_sent(self, writer: Browser, filled: redis.Redis) -> None:
        queue = DelayQueue("scheduled", filled)
        queue.push("held", id="held")
        queue.nack_many(queue.claim(500), delay=60)
        asked = preview(writer, "/scheduled?id_prefix=held", "cancel", row=rows(writer, "/scheduled", "held"))

        text = writer.send(asked.confirmation).text

        assert "1 cancelled." in text
        assert "1 of them were claimed before and may have been sent" in text

    @pytest.mark.parametrize(
        ("when", "told", "earliest", "latest"),
        [
            ("2h", "in 2 h", 7190, 7201),
            ("1d12h", "in 1 d 12 h", 129590, 129601),
            ("2030-01-01T00:00Z", "2030-01-01T00:00:00+0000", None, None),
        ],
    )
    def test_reschedule(  # noqa: PLR0917 - most are parameters
        self, when: str, told: str, earliest: float | None, latest: float | None, writer: Browser, filled: redis.Redis
    ) -> None:
        page = writer.get("/entry?queue=scheduled&id=task-1")
        asked = writer.send(page.form("/preview"), ("verb", "reschedule"), when=when)
        assert f"Reschedule 1 waiting entry, due {told}?" in asked.text
        assert "1 rescheduled." in writer.send(asked.confirmation).text
        at = due(filled, "task-1")
        if earliest is None or latest is None:
            assert at == datetime(2030, 1, 1, tzinfo=timezone.utc)
        else:
            assert timedelta(seconds=earliest) < at - datetime.now(timezone.utc) < timedelta(seconds=latest)
        assert audit(filled) == [("local", "reschedule", "scheduled", 1, told)]

    @pytest.mark.parametrize(
        ("zone", "when"),
        [
            (None, "2030-01-01 00:00:00"),
            ("Asia/Tokyo", "2030-01-01 09:00:00"),
            ("Asia/Tokyo", " 2030-01-01 09:00:00 JST "),
            ("Asia/Tokyo", "2030-01-01 00:00:00 UTC"),
        ],
    )
    def test_a_time_without_a_zone_is_in_that_of_the_page(
        self, zone: str | None, when: str, open_dashboard: Open, filled: redis.Redis
    ) -> None:
        writer = open_dashboard(allow_write=True, timezone=zone)
        form = writer.get("/entry?queue=scheduled&id=task-1").form("/preview")
        asked = writer.send(form, ("verb", "reschedule"), when=when)
        assert "1 rescheduled." in writer.send(asked.confirmation).text
        assert due(filled, "task-1") == datetime(2030, 1, 1, tzinfo=timezone.utc)

    @pytest.mark.parametrize("when", ["", "-2h", "tomorrow", "2030-01-01T00:00", "99999d", "9999-01-01T00:00Z", "\x00"])
    def test_reschedule_to_an_invalid_time(self, when: str, writer: Browser, filled: redis.Redis) -> None:
        before = everything(filled)
        form = writer.get("/entry?queue=scheduled&id=task-1").form("/preview")
        page = writer.send(form, ("verb", "reschedule"), when=when)
        if page.status == 200:
            page = writer.send(page.confirmation)
        assert page.status == 400
        after = everything(filled)
        assert [
            key for key in after if before.get(key) != after[key] and b":operation:" not in key and b":audit" not in key
        ] == []

    def test_run_now(self, writer: Browser, filled: redis.Redis) -> None:
        asked = preview(writer, "/scheduled", "run-now", row=rows(writer, "/scheduled", "task-1", "data"))
        assert "2 made due." in writer.send(asked.confirmation).text
        assert due(filled, "task-1") <= datetime.now(timezone.utc) + timedelta(seconds=1)
        assert audit(filled) == [("local", "run-now", "scheduled", 2, "")]

    def test_redrive_of_several_queues(self, writer: Browser, filled: redis.Redis) -> None:
        asked = preview(writer, "/dead", "redrive", row=rows(writer, "/dead", "dead"))
        assert "Redrive 2 dead letters?" in asked.text
        assert "2 redriven." in writer.send(asked.confirmation).text
        assert RedisQueue("orders", filled).dead_letters() == DelayQueue("scheduled", filled).dead_letters() == []
        [line] = audit(filled)
        assert (line[1], sorted(line[2].split(", ")), line[3]) == ("redrive", ["orders", "scheduled"], 2)

    def test_delete_single_dead_letters(self, writer: Browser, filled: redis.Redis) -> None:
        row = [row for row in rows(writer, "/dead", "dead") if row.startswith("delay:")]
        asked = preview(writer, "/dead", "delete", row=row)
        assert "Delete 1 dead letter?" in asked.text
        assert re.search(r"Died dead shop\.remind scheduled \d{4}-", asked.text)

        assert "1 deleted." in writer.send(asked.confirmation).text
        assert DelayQueue("scheduled", filled).dead_letters() == []
        assert len(RedisQueue("orders", filled).dead_letters()) == 1
        assert audit(filled) == [("local", "delete", "scheduled", 1, "")]

    def test_delete_from_the_page_of_a_dead_letter(self, writer: Browser, filled: redis.Redis) -> None:
        page = writer.get("/entry?kind=queue&queue=orders&id=dead")
        asked = writer.send(page.form("/preview"), ("verb", "delete"))
        assert "1 deleted." in writer.send(asked.confirmation).text
        assert RedisQueue("orders", filled).dead_letters() == []

    def test_the_audit_log_names_the_changed_entries(
        self, writer: Browser, filled: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level("INFO", "redis_queue.operate.audit")
        DelayQueue("scheduled", filled).reschedule("task-1", delay=60)
        at = due(filled, "task-1")
        asked = preview(writer, "/scheduled", "cancel", row=rows(writer, "/scheduled", "task-1", "data"))
        writer.send(asked.confirmation)

        (action, *_) = Audit(filled, "redis_queue").last()
        assert Subject("task-1", "scheduled", "shop.remind", at) in action.subjects
        assert {subject.id for subject in action.subjects} == {"task-1", "data"}
        assert set(vars(caplog.records[-1])["ids"]) == {"task-1", "data"}
        assert f"task-1 shop.remind {at.strftime('%Y-%m-%d %H:%M:%S')}" in writer.get("/audit").text

    def test_the_time_is_used_only_by_reschedule(self, writer: Browser, filled: redis.Redis) -> None:
        for verb in ("run-now", "cancel"):
            asked = preview(writer, "/scheduled", verb, row=rows(writer, "/scheduled", "task-1"), when="2h")
            assert "2h" not in asked.text
            assert [name for name, _ in asked.confirmation.fields if name == "when"] == []

    @pytest.mark.parametrize("path", ["/scheduled", "/entry?queue=scheduled&id=task-1"])
    def test_enter_in_the_time_field_presses_reschedule(self, path: str, writer: Browser) -> None:
        assert writer.get(path).form("/preview").buttons[0] == ("verb", "reschedule")

    def test_nothing_selected(self, writer: Browser) -> None:
        assert "Tick some rows first" in preview(writer, "/scheduled", "cancel").text

    def test_entries_gone_after_the_preview_are_counted(self, writer: Browser, filled: redis.Redis) -> None:
        asked = preview(writer, "/scheduled", "cancel", row=rows(writer, "/scheduled", "task-1", "task-2"))
        DelayQueue("scheduled", filled).cancel("task-1")
        page = writer.send(asked.confirmation)
        assert "1 of 2 cancelled. Skipped: 1 (gone, replaced" in page.text

    def test_the_audit_does_not_name_what_was_replaced(self, writer: Browser, filled: redis.Redis) -> None:
        asked = preview(writer, "/scheduled", "cancel", row=rows(writer, "/scheduled", "task-1", "task-2"))
        DelayQueue("scheduled", filled).push("another call", id="task-1", delay=9000)
        writer.send(asked.confirmation)
        action = Audit(filled, "redis_queue").last()[0]
        assert (action.count, [subject.id for subject in action.subjects]) == (1, ["task-2"])

    @pytest.mark.parametrize(
        ("verb", "when", "path", "id_"),
        [
            ("cancel", None, "/scheduled", "task-1"),
            ("run-now", None, "/scheduled", "task-1"),
            ("reschedule", "5h", "/scheduled", "task-1"),
            ("redrive", None, "/dead?name=scheduled", "dead"),
        ],
    )
    def test_entries_replaced_after_the_preview_are_not_changed(  # noqa: PLR0917 - most are parameters
        self, verb: str, when: str | None, path: str, id_: str, writer: Browser, filled: redis.Redis
    ) -> None:
        """A replacement under the same id was not part of the preview."""
        row = f"delay:scheduled:{id_}"
        asked = writer.send(writer.get(path).form("/preview"), ("verb", verb), row=[row], when=when)
        queue = DelayQueue("scheduled", filled)
        if verb == "redrive":
            queue.redrive([id_])
            queue.push("another call", id=id_)
            (held,) = [entry for entry in queue.claim(100) if entry.id == id_]
            queue.nack(held, dead=True, reason="died, too")
        else:
            queue.push("another call", id=id_, delay=9000)
        before = queue.look(id_)
        page = writer.send(asked.confirmation)
        assert "0 of 1" in page.text
        assert "Skipped: 1 (gone, replaced" in page.text
        assert queue.look(id_) == before

    def test_a_preview_of_large_entries_is_complete(self, writer: Browser, filled: redis.Redis) -> None:
        """Large records are read in several calls."""
        queue = DelayQueue("scheduled", filled, max_body=10_000_000)
        queue.push_many(Push(b"x" * 1_500_000, delay=60, id=f"large-{number}") for number in range(4))
        ids = [f"large-{number}" for number in range(4)]
        assert list(queue.versions([*ids, "nosuch"])) == ids
        assert len(set(queue.versions(ids).values())) >= 1
        asked = writer.send(
            writer.get("/scheduled").form("/preview"), ("verb", "cancel"), row=[f"delay:scheduled:{id_}" for id_ in ids]
        )
        assert "4 cancelled." in writer.send(asked.confirmation).text

    @pytest.mark.parametrize(
        "row",
        [
            "x",
            "delay:scheduled",
            "delay::x",
            "delay:scheduled:",
            "delay:nosuch:x",
            "stream:celery:x",
            "queue:orders:first",
            "delay:scheduled:%00",
            "a" * 9000,
        ],
    )
    def test_invalid_rows(self, row: str, writer: Browser, filled: redis.Redis) -> None:
        before = everything(filled)
        page = preview(writer, "/scheduled", "cancel", row=["delay:scheduled:task-1", row])
        assert page.status in (400, 404)
        assert everything(filled) == before


class TestMatching:
    def test_filters_select(self, writer: Browser, filled: redis.Redis) -> None:
        asked = preview(writer, "/scheduled?task=shop.remind&due_before=1h10s&due_after=1h", "cancel", matching="1")
        found = must(re.search(r"Cancel (\d+) entries\?", asked.text))
        assert 9 <= int(found[1]) <= 11
        assert "and 1 more" in asked.text or int(found[1]) <= MAX_SUBJECTS
        writer.send(asked.confirmation)
        assert DelayQueue("scheduled", filled).count() == 65 - int(found[1])

    def test_only_the_confirmed_number_is_changed(self, writer: Browser, filled: redis.Redis) -> None:
        asked = preview(writer, "/scheduled?task=shop.cancel", "cancel", matching="1")
        queue = DelayQueue("scheduled", filled)
        call = {"task": "shop.cancel", "args": [], "kwargs": {}, "options": {}}
        queue.push_many(Push(call, delay=9000, id=f"new-{number}") for number in range(5))
        assert "1 cancelled." in writer.send(asked.confirmation).text
        assert queue.count() == 69

    def test_only_shown_entries_are_changed(self, writer: Browser, filled: redis.Redis) -> None:
        asked = preview(writer, "/scheduled?id_prefix=task-1", "cancel", matching="1")
        shown = [value for name, value in asked.confirmation.fields if name == "row"]
        queue = DelayQueue("scheduled", filled)
        queue.push({"task": "shop.remind", "args": [], "kwargs": {}, "options": {}}, id="task-1-earlier", delay=60)
        assert f"{len(shown)} cancelled." in writer.send(asked.confirmation).text
        assert queue.get("task-1-earlier") is not None
        assert queue.get("task-19") is None

    def test_a_form_is_limited_in_size(
        self, writer: Browser, filled: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(actions, "MAX_FORM_BYTES", 300)
        asked = preview(writer, "/scheduled?task=shop.remind", "cancel", matching="1")
        count = len([name for name, _ in asked.confirmation.fields if name == "row"])
        assert 5 < count < 15
        assert f"This action covers {count};" in asked.text
        assert f"Cancel {count} entries?" in asked.text

    def test_the_longest_ids_fit_into_a_form(self, writer: Browser, filled: redis.Redis) -> None:
        DelayQueue("scheduled", filled).push_many(
            Push("x", delay=60, id=f"{number:05}" + "é" * 250) for number in range(700)
        )
        asked = preview(writer, "/scheduled", "run-now", matching="1")
        page = writer.send(asked.confirmation)
        assert (page.status, "made due." in page.text) == (200, True)

    def test_more_than_the_limit(self, writer: Browser, filled: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(actions, "MAX_AT_ONCE", 20)
        for left in (45, 25):
            asked = preview(writer, "/scheduled", "cancel", matching="1")
            assert "Cancel 20 entries?" in asked.text
            assert "There may be more matches. This action covers 20;" in asked.text
            assert "20 cancelled." in writer.send(asked.confirmation).text
            assert DelayQueue("scheduled", filled).count() == left

    def test_a_rare_one_among_many(self, writer: Browser, filled: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(listing, "MAX_LOOKED_AT_TO_ACT", 30)
        monkeypatch.setattr("redis_queue.operate.listing.MAX_LOOKED_AT", 30)
        monkeypatch.setattr("redis_queue.operate.listing.CHUNK", 10)
        asked = preview(writer, "/scheduled?task=shop.nosuch", "cancel", matching="1")
        assert "No match among the first 30" in asked.text
        assert [form for form in asked.forms if form.method == "post"] == []

    def test_dead_letters_of_one_reason(self, writer: Browser, filled: redis.Redis) -> None:
        queue = RedisQueue("orders", filled)
        queue.put_many(range(30))
        queue.nack_many(queue.get_many(30), dead=True, reason="again and again")
        asked = preview(writer, "/dead?reason=again", "redrive", matching="1")
        assert "Redrive 30 dead letters?" in asked.text
        assert "30 redriven." in writer.send(asked.confirmation).text
        assert [letter.reason for letter in queue.dead_letters()] == ["Timeout"]

    def test_nothing_matches(self, writer: Browser) -> None:
        asked = preview(writer, "/dead?reason=nosuch", "redrive", matching="1")
        assert "No match." in asked.text


@pytest.mark.parametrize(
    ("path", "verb", "kept"),
    [
        (
            "/scheduled?task=shop.remind&due_after=1h",
            "cancel",
            "/scheduled?queue=scheduled&task=shop.remind&due_after=1h",
        ),
        ("/dead?name=orders&reason=Timeout", "redrive", "/dead?name=orders&reason=Timeout"),
        ("/dead", "redrive", "/dead"),
    ],
)
def test_the_search_is_kept_after_an_action(path: str, verb: str, kept: str, writer: Browser) -> None:
    asked = preview(writer, path, verb, matching="1")
    assert kept in asked.links
    answer = writer.post(asked.confirmation)
    assert (answer.status_code, answer.headers["Location"]) == (303, kept)


@pytest.mark.filterwarnings("ignore:Call to deprecated setex")  # Celery's own
def test_actions_install_no_hooks_in_the_app(filled: redis.Redis, redis_server: RedisServer) -> None:
    """Only processes that ask for DurableTasks get its capture, worker steps and control."""
    url = f"redis+socket://{redis_server.socket}"
    app = Celery("plain", broker=url, backend=url, set_as_current=False)

    def hooks() -> list[Any]:
        steps = {name: set(found) for name, found in app.steps.items()}
        return [app.amqp, type(app.amqp), steps, app.control, type(app.control), app.Task, app.Worker]

    before = hooks()
    browser = Browser(dashboard(AppAccess(app), allow_write=True, secret_key=KEY))
    crawl(browser, 1)
    page = browser.get(f"/entry?queue=scheduled&id={TASK}")
    browser.send(browser.send(page.form("/preview"), ("verb", "cancel")).confirmation)
    for path, verb in (("/scheduled", "reschedule"), ("/scheduled", "run-now"), ("/dead", "redrive")):
        asked = preview(browser, path, verb, matching="1", when="2h" if verb == "reschedule" else None)
        browser.send(asked.confirmation)

    assert app.AsyncResult(TASK).state == "REVOKED"
    assert len(audit(filled)) >= 4
    assert hooks() == before
    app.close()


class TestForms:
    def asked(self, browser: Browser) -> Form:
        page = preview(browser, "/scheduled", "reschedule", row=rows(browser, "/scheduled", "task-1"), when="5h")
        return page.confirmation

    @pytest.mark.parametrize("confirmed", [None, "", "0", "-1", "1e3", "10001", "99999999999", "x"])
    def test_the_count_has_to_be_confirmed(self, confirmed: str | None, writer: Browser, filled: redis.Redis) -> None:
        before = everything(filled)
        assert writer.post(self.asked(writer), confirmed=confirmed).status_code == 400
        assert everything(filled) == before

    @pytest.mark.parametrize("operation", [None, "", "x", "x" * 300, "../../../../../../..."])
    def test_an_action_needs_its_preview(self, operation: str | None, writer: Browser, filled: redis.Redis) -> None:
        before = everything(filled)
        assert writer.post(self.asked(writer), operation=operation).status_code == 400
        assert everything(filled) == before

    def test_a_form_acts_once(self, writer: Browser, filled: redis.Redis) -> None:
        form = self.asked(writer)
        assert writer.post(form).status_code == 303
        at = due(filled, "task-1")
        page = writer.send(form)
        assert (page.status, "was sent before" in page.text) == (409, True)
        assert due(filled, "task-1") == at
        assert len(audit(filled)) == 1

    def test_a_form_sent_concurrently_acts_once(
        self, writer: Browser, open_dashboard: Open, filled: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(actions, "MAX_AT_ONCE", 10)
        form = preview(writer, "/scheduled", "cancel", matching="1").confirmation
        cookie = must(writer.client.get_cookie("redis_queue_session"))
        browsers = [open_dashboard(allow_write=True) for _ in range(6)]
        for browser in browsers:
            browser.client.set_cookie("redis_queue_session", cookie.value)
        # Each browser has its own dashboard, like several processes: they share the key and Redis.
        before = DelayQueue("scheduled", filled).count()
        with ThreadPoolExecutor(6) as pool:
            codes = sorted(pool.map(lambda browser: browser.post(form).status_code, browsers))
        assert codes == [303, 409, 409, 409, 409, 409]
        assert DelayQueue("scheduled", filled).count() == before - 10

    def test_duplicate_fields_are_refused(self, writer: Browser, filled: redis.Redis) -> None:
        before, form = everything(filled), self.asked(writer)
        for name in ("verb", "confirmed", "when", "operation"):
            value = dict(form.fields).get(name, "1")
            assert writer.post(form, **{name: [value, value]}).status_code == 400
        assert everything(filled) == before

    def test_invalid_verbs_are_refused(self, writer: Browser, filled: redis.Redis) -> None:
        before, form = everything(filled), self.asked(writer)
        for verb in ("purge", "", "__class__", "cancel,redrive"):
            assert writer.post(form, verb=verb).status_code == 400
        assert everything(filled) == before


class TestQueues:
    def button(self, browser: Browser, name: str, verb: str) -> Page:
        asked = browser.send(browser.get(f"/queue?{name}").form("/actions/queue/preview"), ("verb", verb))
        return browser.send(asked.form("/queue")) if asked.status == 200 else asked

    def test_pause_and_resume(self, writer: Browser, filled: redis.Redis) -> None:
        assert "orders paused." in self.button(writer, "kind=queue&name=orders", "pause").text
        assert RedisQueue("orders", filled).stats().paused
        assert "orders resumed." in self.button(writer, "kind=queue&name=orders", "resume").text
        assert not RedisQueue("orders", filled).stats().paused
        assert [row[1] for row in audit(filled)] == ["resume", "pause"]

    def test_put_back(self, writer: Browser, filled: redis.Redis) -> None:
        filled.zadd("{redis_queue:queue:orders}:in_flight", {"held": 1})
        assert "1 returned, 0 dead." in self.button(writer, "kind=queue&name=orders", "putback").text
        assert RedisQueue("orders", filled).stats().ready == 3
        assert audit(filled) == [("local", "putback", "orders", 1, "")]

    @pytest.mark.parametrize(
        ("verb", "question", "told"),
        [
            ("pause", "Pause orders?", "Nobody can claim its 2 ready messages"),
            ("resume", "Resume quiet?", "Its 1 ready message can be claimed again"),
            ("putback", "Put back expired leases of orders?", "1 expired lease: messages"),
        ],
    )
    def test_starts_with_a_preview(
        self, verb: str, question: str, told: str, writer: Browser, filled: redis.Redis
    ) -> None:
        filled.zadd("{redis_queue:queue:orders}:in_flight", {"held": 1})
        name = "quiet" if verb == "resume" else "orders"
        before = everything(filled)
        asked = writer.send(writer.get(f"/queue?kind=queue&name={name}").form("/actions/queue/preview"), ("verb", verb))
        assert question in asked.text
        assert told in asked.text
        assert everything(filled) == before
        form = asked.form("/queue")
        for changes in ({"operation": None}, {"operation": "x"}, {"confirmed": None}, {"confirmed": "0"}):
            assert writer.post(form, **changes).status_code == 400
        assert everything(filled) == before
        assert [writer.post(form).status_code for _ in range(2)] == [303, 409]
        assert [row[1] for row in audit(filled)] == [verb]

    def test_a_preview_without_an_effect_has_no_form(self, writer: Browser, filled: redis.Redis) -> None:
        for name, verb, told in (
            ("orders", "putback", "No lease has expired."),
            ("orders", "resume", "It is not paused."),
            ("quiet", "pause", "It is paused already."),
        ):
            form = writer.get(f"/queue?kind=queue&name={name}").form("/actions/queue/preview")
            asked = writer.send(form, verb=verb)
            assert told in asked.text
            assert [form for form in asked.forms if form.method == "post"] == []

    def test_only_the_leases_of_the_preview_are_put_back(self, writer: Browser, filled: redis.Redis) -> None:
        queue = RedisQueue("many", filled)
        queue.put_many(range(3))
        held = queue.get_many(3)
        in_flight = "{redis_queue:queue:many}:in_flight"
        filled.zadd(in_flight, {held[0].id: 1})
        form = writer.get("/queue?kind=queue&name=many").form("/actions/queue/preview")
        asked = writer.send(form, ("verb", "putback"))
        filled.zadd(in_flight, {message.id: 2 for message in held[1:]})
        assert "1 returned, 0 dead." in writer.send(asked.form("/queue")).text
        assert queue.stats().in_flight == 2

    def test_invalid_actions_are_refused(self, writer: Browser, filled: redis.Redis) -> None:
        before = everything(filled)
        for verb in ("pause", "purge", ""):
            assert self.button(writer, "kind=delay&name=scheduled", verb).status == 400
        assert everything(filled) == before


class TestAudit:
    @pytest.mark.parametrize("user", ["carla", "carla\ncancel by admin: 9 of scheduled"])
    def test_names_the_user_and_writes_a_log_in_which_a_name_cannot_forge_a_line(
        self, open_dashboard: Open, filled: redis.Redis, caplog: pytest.LogCaptureFixture, user: str
    ) -> None:
        caplog.set_level(logging.INFO, "redis_queue.operate.audit")
        browser = open_dashboard(identify=lambda _: user, allow_write=True)
        asked = preview(browser, "/scheduled", "cancel", row=rows(browser, "/scheduled", "task-1"))
        browser.send(asked.confirmation)
        assert audit(filled) == [(user, "cancel", "scheduled", 1, "")]
        (record,) = [record for record in caplog.records if record.name == "redis_queue.operate.audit"]
        assert record.getMessage() == f"cancel by {escape(user)}: 1 of scheduled"
        assert (record.user, record.verb, record.queue, record.count) == (user, "cancel", "scheduled", 1)  # type: ignore[attr-defined]
        assert f"{user} cancel scheduled 1".replace("\n", " ") in browser.get("/audit").text

    def test_has_the_changes_before_an_error(
        self, writer: Browser, filled: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run_now: Callable[..., bool] = DelayQueue.run_now
        calls: list[str] = []

        def breaks(queue: DelayQueue, id_: str) -> bool:
            calls.append(id_)
            if len(calls) > 3:
                raise redis.ConnectionError("gone")
            return run_now(queue, id_)

        asked = preview(writer, "/scheduled?id_prefix=task-2", "run-now", matching="1")
        monkeypatch.setattr(DelayQueue, "run_now", breaks)
        assert writer.send(asked.confirmation).status == 503
        assert audit(filled) == [("local", "run-now", "scheduled", 3, "ConnectionError: gone")]

    def test_keeps_the_last_thousand(self, filled: redis.Redis) -> None:
        found = Audit(filled, "redis_queue")
        for number in range(1005):
            found.record(AuditLine(datetime.now(timezone.utc), "x", "cancel", "q", number))
        assert filled.llen("redis_queue:audit") == 1000
        assert [row.count for row in found.last(2)] == [1004, 1003]


class TestRoles:
    """With the rules of docs/security.md."""

    @pytest.fixture
    def limited(self, redis_server: RedisServer, filled: redis.Redis) -> Any:
        with limited_clients(filled, redis_server.url) as make:

            def limited(*roles: str) -> Browser:
                client = make(" ".join(map(rules_of, roles)))
                load_scripts(filled)
                return Browser(dashboard(client, allow_write=True, secret_key=KEY))

            yield limited

    def test_the_dashboard_role_can_open_every_page(self, limited: Any) -> None:
        pages = crawl(limited("dashboard"), 3)
        assert [path for path, page in pages.items() if page.status != 200] == []
        assert set(SCREENS) <= set(pages)

    def test_the_dashboard_role_can_change_nothing(self, limited: Any, filled: redis.Redis) -> None:
        browser = limited("dashboard")
        filled.zadd("{redis_queue:queue:orders}:in_flight", {"held": 1})
        before = everything(filled)
        for path, verb in (
            ("/scheduled", "cancel"),
            ("/scheduled", "run-now"),
            ("/scheduled", "reschedule"),
            ("/dead", "delete"),
            ("/dead", "redrive"),
        ):
            asked = preview(browser, path, verb, matching="1", when="2h" if verb == "reschedule" else None)
            page = browser.send(asked.confirmation)
            assert (page.status, "lacks a permission" in page.text) == (503, True), verb
        for verb in ("pause", "putback"):
            page = TestQueues().button(browser, "kind=queue&name=orders", verb)
            assert (page.status, "lacks a permission" in page.text) == (503, True), verb
        assert everything(filled) == before

    def test_acting_needs_five_roles(self, limited: Any, filled: redis.Redis) -> None:
        browser = limited("dashboard", "producer", "dispatcher", "admin", "operator")
        filled.zadd("{redis_queue:queue:orders}:in_flight", {"held": 1})
        for path, verb in (
            ("/scheduled", "run-now"),
            ("/scheduled", "reschedule"),
            ("/scheduled", "cancel"),
            ("/dead", "redrive"),
        ):
            asked = preview(browser, path, verb, matching="1", when="2h" if verb == "reschedule" else None)
            page = browser.send(asked.confirmation)
            assert page.status == 200, page.text
        for verb in ("pause", "putback", "resume"):
            page = TestQueues().button(browser, "kind=queue&name=orders", verb)
            assert page.status == 200, page.text
        assert DelayQueue("scheduled", filled).count() == 1


class TestWorkers:
    def test_asking_needs_a_token_but_no_permission(self, reader: Browser) -> None:
        form = reader.get("/workers").form("/workers/ask")
        assert "No worker answered within a second." in reader.send(form).text
        assert reader.post(form, token="x").status_code == 403

    def test_without_an_app_workers_cannot_be_asked(self, open_dashboard: Open, filled: redis.Redis) -> None:
        browser = open_dashboard(filled)
        assert [form for form in browser.get("/workers").forms if form.method == "post"] == []

    def test_an_unreachable_broker(self, client: redis.Redis, redis_url: str, tmp_path: Any) -> None:
        app = Celery("away", broker="amqp://ann:hunter2@127.0.0.1:1//", set_as_current=False)
        app.conf.redis_queue_url = redis_url
        app.conf.broker_transport_options = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
        browser = Browser(dashboard(app, secret_key=KEY))
        page = browser.send(browser.get("/workers").form("/workers/ask"))
        assert (page.status, "hunter2" in page.text) == (503, False)
        app.close()
