"""Schedules in Django's admin: permissions, list, form, actions and their errors."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import unquote

import pytest

from redis_queue.celery.schedules.calendar import _cronsim
from redis_queue.celery.schedules.declaration import Declaration
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.errors import StoreUnavailableError
from redis_queue.operate.audit import Audit

LIST = "/admin/redis_queue/schedule/"

FORM = {
    "name": "nightly",
    "task": "shop.remind",
    "rules": "30 2 * * *\nevery 6 h",
    "timezone": "Europe/Berlin",
    "args": "[7]",
    "queue": "slow",
    "options": '{"priority": 3}',
    "exclude": "2030-12-25",
    "missed": "skip",
    "overlap_timeout": "90 s",
    "jitter": "1.5 s",
    "expires": "next",
    "dst": "celery",
}


@pytest.fixture
def browser(tables: Any) -> Any:
    from django.test import Client

    return Client()


@pytest.fixture
def schedules(tables: Any) -> Schedules:
    from examples.shop.celery import app

    return Schedules(app)


def login(browser: Any, *verbs: str) -> None:
    """Log in a member of staff who may *verbs* schedules."""
    from django.contrib.auth.models import Permission, User

    user = User.objects.create_user("ann", password="secret", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=[f"{verb}_schedule" for verb in verbs]))
    browser.force_login(user)


def text(page: Any) -> str:
    assert page.status_code == 200
    return str(page.content.decode())


def told(page: Any) -> str:
    found = re.findall(r'<li class="(?:success|warning|error)">(.*?)</li>', text(page), re.DOTALL)
    return "; ".join(map(unescape, found))


def act(browser: Any, action: str, *names: str, **more: str) -> str:
    """Choose *names* in the list and carry out *action*; return what is told."""
    form = {"action": action, "_selected_action": names, "index": "0", **more}
    return told(browser.post(LIST, form, follow=True))


def audit(schedules: Schedules) -> list[tuple[str, str, str]]:
    client = schedules._stored.store.client
    return [(line.user, line.verb, line.queue) for line in Audit(client, "redis_queue").last()]


def test_anonymous_users_must_log_in_and_staff_need_a_permission(browser: Any, schedules: Schedules) -> None:
    schedules.put("nightly", "30 2 * * *", "shop.remind")
    for path in (LIST, f"{LIST}add/", f"{LIST}nightly/change/"):
        response = browser.get(path)
        assert (response.status_code, unquote(response["Location"])) == (302, f"/admin/login/?next={path}")
    login(browser)
    assert browser.get(LIST).status_code == 403
    assert browser.get(f"{LIST}nightly/change/").status_code == 403


def test_users_with_view_permission_see_all_and_change_nothing(browser: Any, schedules: Schedules) -> None:
    secret: dict[str, Any] = {"args": ("<b>", "hunter2"), "kwargs": {"a": "hunter2"}}
    secret["headers"] = {"tenant": "hunter2"}
    schedules.put("nightly", "30 2 * * *", "shop.remind", timezone="Europe/Berlin", **secret)
    login(browser, "view")
    page = text(browser.get(LIST))
    for shown in ("nightly", "shop.remind", "30 2 * * *", "Europe/Berlin"):
        assert shown in page
    assert "Run now" not in page
    page = text(browser.get(f"{LIST}nightly/change/"))
    assert "30 2 * * *" in page
    assert "<b>" not in page
    assert "hunter2" not in page
    assert "_save" not in page
    before = schedules.find("nightly")
    for path in ("add/", "nightly/change/", "nightly/delete/"):
        assert browser.post(f"{LIST}{path}", {**FORM, "post": "yes"}).status_code == 403
    act(browser, "pause", "nightly")
    act(browser, "delete_selected", "nightly", post="yes")
    assert schedules.find("nightly") == before
    assert audit(schedules) == []


def test_a_schedule_is_added_and_edited_and_nothing_of_it_is_lost(browser: Any, schedules: Schedules) -> None:
    login(browser, "view", "add", "change")
    assert "was added successfully" in told(browser.post(f"{LIST}add/", FORM, follow=True))
    found = schedules.find("nightly")
    assert (found.rules, found.timezone, found.task) == ("30 2 * * *; every 6 h", "Europe/Berlin", "shop.remind")
    stored = found.definition
    assert stored is not None
    assert (stored.args, stored.options) == ([7], {"queue": "slow", "priority": 3})
    assert (stored.jitter, stored.expires, stored.exclude) == (1500, "next", ["2030-12-25"])
    assert (stored.overlap_timeout, stored.dst) == (90_000, "celery")
    page = browser.get(f"{LIST}nightly/change/")
    assert "next runs" in text(page).lower()
    assert "30 2 * * *; every 6 h</textarea>" in text(page)
    form = {**FORM, "name": "another"}
    browser.post(f"{LIST}nightly/change/", form)
    assert schedules.find("nightly") == found
    browser.post(f"{LIST}nightly/change/", {**form, "rules": "every 1 min, rounded to its unit", "max_runs": "3"})
    changed = schedules.find("nightly").definition
    assert changed is not None
    assert (changed.rules, changed.max_runs) == ([{"every": 60000, "relative": True}], 3)
    assert audit(schedules) == [("ann", "schedule-put", "nightly")] * 3
    assert "Changed" in text(browser.get(f"{LIST}nightly/history/"))


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("rules", "61 * * * *", "Bad minute"),
        ("rules", "every so often", "expected a span"),
        ("rules", "sunset at home", "latitude and longitude must be numbers"),
        ("timezone", "Europe/Berlim", "did you mean &#x27;Europe/Berlin&#x27; or"),
        ("args", '{"a": 1}', "must be a JSON array"),
        ("kwargs", "[1]", "must be a JSON object"),
        ("options", "{", "must be JSON"),
        ("options", '{"qeue": "a"}', "did you mean &#x27;queue&#x27;?"),
        ("expires", "soon", "must be a span like 90s"),
        ("until", "2020-01-01T00:00Z", "must be later than now"),
        ("overlap", "any", "must be one of allow, skip, queue, cancel"),
        ("name", "taken", "there is a schedule &#x27;taken&#x27;"),
        ("name", "", "This field is required"),
    ],
)
def test_errors_are_shown_in_the_form(browser: Any, schedules: Schedules, field: str, value: str, error: str) -> None:
    schedules.put("taken", 60, "shop.remind")
    login(browser, "add")
    page = text(browser.post(f"{LIST}add/", {**FORM, field: value}))
    assert error in page
    assert [item.name for item in schedules.list()] == ["taken"]


def test_a_form_is_kept_if_cronsim_is_missing(browser: Any, tables: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redis_queue.celery.schedules.calendar._cronsim", _cronsim.__wrapped__)
    monkeypatch.setitem(sys.modules, "cronsim", None)
    login(browser, "add")
    page = text(browser.post(f"{LIST}add/", FORM))
    assert all(part in page for part in ("need cronsim", FORM["rules"]))


def test_schedules_are_paused_resumed_and_run_now(browser: Any, schedules: Schedules) -> None:
    schedules.put("a", 3600, "shop.remind")
    schedules.put("b", 3600, "shop.remind")
    login(browser, "view", "change")
    assert "Pause: 2 done" in act(browser, "pause", "a", "b", "gone")
    assert [item.paused for item in schedules.list()] == [True, True]
    assert "paused" in text(browser.get(LIST))
    assert "Resume: 1 done" in act(browser, "resume", "a")
    assert [schedules.find(name).paused for name in "ab"] == [False, True]
    assert "Run: 1 done" in act(browser, "run", "a")
    assert schedules.find("a").runs == 1
    assert len(audit(schedules)) == 4
    assert {user for user, _, _ in audit(schedules)} == {"ann"}


def test_a_schedule_is_deleted_by_those_who_may(browser: Any, schedules: Schedules) -> None:
    for name in ("a", "b", "a/b ü"):
        schedules.put(name, 3600, "shop.remind")
    login(browser, "view", "delete")
    from django.contrib.admin.utils import quote

    assert "a/b ü" in text(browser.get(f"{LIST}{quote('a/b ü')}/delete/"))
    browser.post(f"{LIST}{quote('a/b ü')}/delete/", {"post": "yes"})
    chosen = {"action": "delete_selected", "_selected_action": "a", "index": "0"}
    assert "Are you sure" in text(browser.post(LIST, chosen))
    act(browser, "delete_selected", "a", post="yes")
    assert [item.name for item in schedules.list()] == ["b"]
    assert audit(schedules) == [("ann", "schedule-delete", "a"), ("ann", "schedule-delete", "a/b ü")]


def test_one_of_beat_schedule_is_changed_in_the_code_only(
    browser: Any, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(schedules.app.conf, "beat_schedule", {"a": {"task": "shop.remind", "schedule": 3600}})
    Declaration(schedules).make()
    login(browser, "view", "change")
    assert "_save" not in text(browser.get(f"{LIST}a/change/"))
    assert browser.post(f"{LIST}a/change/", FORM).status_code == 403
    assert "Pause: 1 done" in act(browser, "pause", "a")


def test_the_list_has_pages(browser: Any, schedules: Schedules) -> None:
    definition = schedules.put("000", 3600, "shop.remind").definition
    assert definition is not None
    for number in range(1, 103):
        schedules.put(f"{number:03}", timedelta(seconds=3600 + number), "shop.remind")
    login(browser, "view")
    assert len(re.findall(r"/change/", text(browser.get(LIST)))) == 100
    assert len(re.findall(r"/change/", text(browser.get(f"{LIST}?p=2")))) == 3


def test_unreadable_and_unknown_schedules_and_an_away_store(
    browser: Any, schedules: Schedules, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.put("a", 3600, "shop.remind")
    keys = schedules.store._keys
    schedules._stored.store.client.hset(keys.schedules, "a", "garbage")
    login(browser, "view", "change")
    assert "not JSON" in text(browser.get(LIST))
    assert "not JSON" in text(browser.get(f"{LIST}a/change/"))
    assert "A: schedule" in act(browser, "pause", "a")
    assert "exist" in told(browser.get(f"{LIST}nobody/change/", follow=True))

    def away(*_: Any, **__: Any) -> None:
        raise StoreUnavailableError("the server is away")

    monkeypatch.setattr("redis_queue.schedules.store.ScheduleStore.get", away)
    monkeypatch.setattr("redis_queue.schedules.store.ScheduleStore.names", away)
    for path in (LIST, f"{LIST}a/change/"):
        assert "The server is away" in told(browser.get(path, follow=True))
