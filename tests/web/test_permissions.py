"""Permissions for each verb: every route and every button needs its own."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.entity import Queue

from redis_queue.basics.times import from_ms
from redis_queue.errors import ConfigurationError
from redis_queue.monitor.model import WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.actions.registry import PERMISSIONS
from redis_queue.operate.audit import Audit
from redis_queue.store.keys import Keys
from redis_queue.web import WebSettings, dashboard
from redis_queue.web.guard import READ_ONLY_FORMS
from tests.support.paths import ROOT
from tests.support.web.browser import SCREENS, Browser, Form, Page
from tests.support.web.contents import Open, everything, fill_schedules


@dataclass(frozen=True)
class Offer:
    """A page that offers a verb; *changes* are the fields that a user fills in, *tick* the id of a row.

    *count* is what the audit counts. The worker of these tests does not run.
    """

    verb: str
    page: str
    tick: str = ""
    changes: Mapping[str, str] = field(default_factory=dict)
    count: int = 1

    def __str__(self) -> str:
        return f"{self.verb} {self.page}"


DELAYED = "/entry?kind=delay&queue=scheduled&id=task-2"
DEAD = "/entry?kind=queue&queue=orders&id=dead"
FAILED = "/failure?id=failed"
MAIL = "/celery-queue?name=mail"
BULK = "/flow?name=queue:bulk"
OFTEN = "/schedule?name=often"
ORDERS = "/queue?kind=queue&name=orders"

OFFERS = [
    Offer("cancel", "/scheduled", "task-1"),
    Offer("cancel", DELAYED),
    Offer("reschedule", "/scheduled", "task-1", {"when": "2h"}),
    Offer("reschedule", DELAYED, changes={"when": "2h"}),
    Offer("run-now", "/scheduled", "task-1"),
    Offer("run-now", DELAYED),
    Offer("redrive", "/dead", "dead"),
    Offer("redrive", DEAD),
    Offer("delete", "/dead", "dead"),
    Offer("delete", DEAD),
    Offer("retry", "/failures", "failed"),
    Offer("retry", FAILED, changes={"args": "[1]"}),
    Offer("delete", "/failures", "failed"),
    Offer("delete", FAILED),
    Offer("move", MAIL, "this", {"to": "slow"}),
    Offer("delete", MAIL, "this"),
    Offer("purge", MAIL),
    Offer("pause", ORDERS),
    Offer("resume", "/queue?kind=queue&name=quiet"),
    Offer("putback", ORDERS),
    Offer("flow-pause", BULK),
    Offer("flow-pause", MAIL),
    Offer("flow-resume", "/flow?name=queue:slow"),
    Offer("flow-resume", "/flow?name=queue:quiet"),
    Offer("flow-set", BULK, changes={"limit": "3", "rate": "none", "limit_each": "2", "burst": "7"}),
    Offer("flow-reset", BULK),
    Offer("schedule-put", "/schedules", changes={"name": "new", "rules": "0 3 * * *", "task": "shop.x"}),
    Offer("schedule-put", "/schedule?name=nightly", changes={"rules": "0 3 * * *"}),
    Offer("schedule-pause", "/schedules"),
    Offer("schedule-pause", OFTEN, changes={"until": "2h", "reason": "stocktaking"}),
    Offer("schedule-resume", "/schedules"),
    Offer("schedule-resume", "/schedule?name=paused", changes={"catch_up": "1"}),
    Offer("schedule-run", "/schedules"),
    Offer("schedule-run", OFTEN),
    Offer("schedule-delete", "/schedules"),
    Offer("schedule-delete", OFTEN),
    Offer("schedule-backfill", OFTEN, changes={"start": "-10m"}, count=10),
    Offer("unique-release", "/unique"),
    Offer("terminate", "/running", "runs", count=0),
    Offer("stop", "/tasks?queue=mail", "this"),
    Offer("shutdown", "/workers", count=0),
    Offer("resize", "/workers", changes={"size": "3"}, count=0),
    Offer("clear", "/workers"),
]


@pytest.fixture
def contents(app: Celery, filled: redis.Redis) -> redis.Redis:
    app.conf.task_queues = [Queue("mail"), Queue("slow")]
    app.send_task("shop.mail", queue="mail", task_id="this")
    fill_schedules(filled, app=app.main)
    held = Keys("redis_queue", "queue", "orders").in_flight
    filled.zadd(held, dict.fromkeys(filled.zrange(held, 0, -1), 1))
    seen = round(time.time() * 1000) - 120_000
    Reports(filled, "redis_queue", lambda: seen).write(WorkerRow("lost@host", from_ms(seen), from_ms(seen)))
    return filled


def posts(page: Page) -> list[Form]:
    return [form for form in page.forms if form.method == "post"]


def token_of(browser: Browser) -> str:
    return dict(posts(browser.get("/workers"))[0].fields)["token"]


def filled_in(page: Page, offer: Offer) -> tuple[Form, dict[str, Any]]:
    """Return the form of *offer* and the fields that a user has changed."""
    form = next(form for form in posts(page) if ("verb", offer.verb) in form.buttons)
    rows = [value for name, value in form.boxes if name == "row"]
    ticked = [row for row in rows if offer.tick in row] if offer.page != MAIL else rows
    return form, {**offer.changes, **({"row": ticked[0]} if offer.tick else {})}


@pytest.mark.parametrize("offer", OFFERS, ids=str)
def test_a_verb_needs_its_permission_and_no_other(offer: Offer, open_dashboard: Open, contents: redis.Redis) -> None:
    """The forms are those of a user with all permissions, as they remain in a tab after a permission is withdrawn."""
    writer = open_dashboard(allow_write=True)
    form, changes = filled_in(writer.get(offer.page), offer)
    button = ("verb", offer.verb)
    preview = writer.send(form, button, **changes)
    confirmation = next(found for found in posts(preview) if dict(found.fields).get("verb") == offer.verb)
    before = everything(contents)

    browser = open_dashboard(allow=[verb for verb in PERMISSIONS if verb != offer.verb])
    token = token_of(browser)
    for answer in (browser.post(form, button, **changes, token=token), browser.post(confirmation, token=token)):
        assert answer.status_code == 403
        text = Page(answer).text
        assert f"{offer.verb} is not permitted: start the dashboard with --allow {offer.verb}, or with" in text
    assert everything(contents) == before

    browser = open_dashboard(allow=(offer.verb,))
    form, changes = filled_in(browser.get(offer.page), offer)
    preview = browser.send(form, button, **changes)
    assert preview.status == 200
    assert everything(contents) == before
    confirmation = next(found for found in posts(preview) if dict(found.fields).get("verb") == offer.verb)
    for change in ({"confirmed": None}, {"confirmed": "0"}, {"operation": None}, {"operation": "x"}):
        assert browser.post(confirmation, **change).status_code == 400
    assert browser.post(confirmation, token="x").status_code == 403
    assert everything(contents) == before
    assert browser.post(confirmation).status_code == 303
    # A form works once; a deleted schedule is unknown.
    assert browser.post(confirmation).status_code in ((400,) if offer.verb == "schedule-delete" else (404, 409))
    action = Audit(contents, "redis_queue").last()[0]
    assert (action.user, action.verb, action.count) == ("local", offer.verb, offer.count)


def test_every_form_that_can_be_sent_is_tested_above(app: Celery, open_dashboard: Open, contents: redis.Redis) -> None:
    made = dashboard(app, allow_write=True)
    sent = set(READ_ONLY_FORMS)
    writer = open_dashboard(allow_write=True)
    adapter = made.url_map.bind("localhost")
    for offer in OFFERS:
        form, changes = filled_in(writer.get(offer.page), offer)
        preview = writer.send(form, ("verb", offer.verb), **changes)
        for found in (form, *posts(preview)):
            sent.add(adapter.match(found.action.partition("?")[0], method="POST")[0])
    routes = {
        rule.endpoint for rule in made.url_map.iter_rules() if set(rule.methods or ()) - {"GET", "HEAD", "OPTIONS"}
    }
    assert routes == sent
    assert set(PERMISSIONS) == {offer.verb for offer in OFFERS}


@pytest.mark.parametrize("offer", OFFERS, ids=str)
def test_a_preview_shows_the_name_of_the_dashboard(offer: Offer, open_dashboard: Open, contents: redis.Redis) -> None:
    writer = open_dashboard(allow_write=True, label="staging")
    form, changes = filled_in(writer.get(offer.page), offer)
    assert '<strong class="label">staging</strong>' in writer.send(form, ("verb", offer.verb), **changes).source


def test_the_documentation_lists_every_verb() -> None:
    page = (ROOT / "docs" / "dashboard.md").read_text("utf-8")
    rows = [f"| `{verb}` | {text} | `{verb.replace('-', '_')}_dashboard` |" for verb, text in PERMISSIONS.items()]
    assert "\n".join(rows) in page


def buttons(browser: Browser, pages: Collection[str]) -> set[tuple[str, str]]:
    """Return the verbs on each page. Forms without buttons have no tick boxes and no fields."""
    found = set()
    for path in pages:
        for form in posts(browser.get(path)):
            if not form.action.endswith("/workers/ask"):
                assert form.buttons or not (form.boxes or form.fields), (path, form)
            found |= {(path, verb) for _, verb in form.buttons}
    return found


def test_pages_show_exactly_the_permitted_buttons(open_dashboard: Open, contents: redis.Redis) -> None:
    pages = {*SCREENS, *(offer.page for offer in OFFERS)}
    everywhere = buttons(open_dashboard(allow_write=True), pages)
    assert everywhere >= {(offer.page, offer.verb) for offer in OFFERS}
    for verb in PERMISSIONS:
        shown = buttons(open_dashboard(allow=(verb,)), {page for page, _ in everywhere})
        assert shown == {pair for pair in everywhere if pair[1] == verb}, verb
    assert buttons(open_dashboard(), pages) == set()


@pytest.mark.parametrize(
    ("page", "name", "verb"),
    [
        ("/scheduled", "when", "reschedule"),
        (DELAYED, "when", "reschedule"),
        ("/failures", "rate", "retry"),
        (FAILED, "args", "retry"),
        (FAILED, "kwargs", "retry"),
        (MAIL, "to", "move"),
        (BULK, "limit", "flow-set"),
        (BULK, "burst", "flow-set"),
        ("/workers", "size", "resize"),
    ],
)
def test_fields_of_a_verb_are_shown_with_it_only(
    page: str, name: str, verb: str, open_dashboard: Open, contents: redis.Redis
) -> None:
    for allow in ((verb,), [other for other in PERMISSIONS if other != verb]):
        names = [found for form in posts(open_dashboard(allow=allow).get(page)) for found, _ in form.fields]
        assert (name in names) is (verb in allow), allow


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ({}, "read-only"),
        ({"allow": ()}, "read-only"),
        ({"allow": ("retry",)}, "limited"),
        ({"allow": tuple(PERMISSIONS)}, "read-write"),
        ({"allow_write": True, "may": lambda _, verb: verb == "retry"}, "limited"),
        ({"allow_write": True, "may": lambda *_: False}, "read-only"),
        ({"allow": ("retry",), "may_write": lambda _: True}, "limited"),
        ({"allow": ("retry",), "may_write": lambda _: False}, "read-only"),
    ],
)
def test_every_page_names_the_mode(options: dict[str, Any], mode: str, open_dashboard: Open) -> None:
    assert f"{mode} " in open_dashboard(**options).get("/queues").text


class TestMay:
    def test_it_decides_for_each_user_and_verb(self, open_dashboard: Open, contents: redis.Redis) -> None:
        def may(environment: Mapping[str, object], verb: str) -> bool:
            return (environment["REMOTE_USER"], verb) in {("ann", "pause"), ("ben", "putback")}

        browser = open_dashboard(identify=lambda env: str(env["REMOTE_USER"]), allow_write=True, may=may)
        for user, verb in (("ann", "pause"), ("ben", "putback")):
            page = browser.open(ORDERS, environ_overrides={"REMOTE_USER": user})
            (form,) = posts(page)
            assert form.buttons == [("verb", verb)]
            for sent in ("pause", "putback"):
                answer = browser.raw(
                    form.action,
                    method="POST",
                    data={**dict(form.fields), "verb": sent},
                    environ_overrides={"REMOTE_USER": user},
                )
                assert answer.status_code == (200 if sent == verb else 403)
                if sent != verb:
                    assert f"{sent} is not permitted to {user}" in Page(answer).text

    def test_it_cannot_extend_what_the_settings_allow(self, open_dashboard: Open, contents: redis.Redis) -> None:
        asked: set[str] = set()

        def may(_: Mapping[str, object], verb: str) -> bool:
            asked.add(verb)
            return True

        (form,) = posts(open_dashboard(allow=("putback",), may=may).get(ORDERS))
        assert form.buttons == [("verb", "putback")]
        assert asked == {"putback"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"allow": ("retri",)}, "allow='retri': unknown verb, did you mean 'retry'?"),
        ({"allow": ("qqq",)}, "allow='qqq': unknown verb, known are 'cancel', 'reschedule'"),
        ({"allow": (b"retry",)}, "allow=b'retry': unknown verb"),
        ({"allow": "retry"}, "allow='retry': must be a list of verbs"),
        ({"allow": None}, "allow=None: must be a list of verbs"),
        ({"allow": ("retry",), "allow_write": True}, "allow_write and allow: must not be given together"),
        ({"allow_write": True, "may": lambda *_: True, "may_write": lambda _: True}, "may and may_write: must not be"),
        ({"may": lambda *_: True}, "may: needs allow_write=True, or the verbs"),
    ],
)
def test_contradictions_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        WebSettings(**options)
    assert text in str(raised.value)
