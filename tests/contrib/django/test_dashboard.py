"""The dashboard as a Django view: logins, permissions and links."""

from __future__ import annotations

import re
from typing import Any

import pytest

from redis_queue.operate.actions.registry import PERMISSIONS
from tests.support.web.browser import hidden, token


@pytest.fixture
def browser(tables: Any) -> Any:
    from django.test import Client

    del tables
    return Client(enforce_csrf_checks=True)


def text(page: Any) -> str:
    return str(page.content.decode())


def login(browser: Any, *permissions: str, staff: bool = True) -> None:
    from django.contrib.auth.models import Permission, User

    user = User.objects.create_user("ann", password="secret", is_staff=staff)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    browser.force_login(user)


def schedule() -> str:
    from django.db import transaction

    from redis_queue.contrib.django import outbox

    with transaction.atomic():
        return str(outbox.schedule("shop.remind", (7,), countdown=600))


def test_anonymous_users_and_users_without_staff_status_must_log_in(browser: Any) -> None:
    assert browser.get("/queues/").status_code == 302
    login(browser, "view_dashboard", staff=False)
    assert browser.get("/queues/").status_code == 302


@pytest.mark.parametrize(
    ("urls", "login_page"),
    [("examples.shop.urls", "/admin/login/"), ("tests.support.django.bare_urls", "/accounts/login/")],
)
def test_the_login_page_is_that_of_the_admin_or_of_the_project(browser: Any, urls: str, login_page: str) -> None:
    from django.test import override_settings

    with override_settings(ROOT_URLCONF=urls, LOGIN_URL="/accounts/login/"):
        response = browser.get("/queues/scheduled")
    assert (response.status_code, response["Location"]) == (302, f"{login_page}?next=/queues/scheduled")


def test_migrate_adds_the_permissions_that_are_missing(tables: Any) -> None:
    from django.contrib.auth.models import Permission
    from django.core.management import call_command

    del tables
    missing = Permission.objects.filter(codename="retry_dashboard")
    missing.delete()
    call_command("migrate", verbosity=0)
    assert missing.count() == 1


@pytest.mark.parametrize("permissions", [(), ("cancel_dashboard",)])
def test_staff_need_the_permission_to_view(browser: Any, permissions: tuple[str, ...]) -> None:
    login(browser, *permissions)
    assert browser.get("/queues/").status_code == 403


def test_users_with_view_permission_see_no_forms_and_cannot_act(browser: Any) -> None:
    login(browser, "view_dashboard")
    id_ = schedule()
    page = browser.get("/queues/scheduled")
    assert page.status_code == 200
    assert id_ in text(page)
    assert "read-only" in text(page)
    assert 'action="/queues/actions/scheduled/preview"' not in text(page) or "<button name" not in text(page)
    assert browser.post("/queues/actions/scheduled", {"verb": "cancel"}).status_code == 403


def test_every_link_stays_under_the_path(browser: Any) -> None:
    login(browser, "view_dashboard")
    schedule()
    for path in ("", "forecast", "scheduled", "queues", "dead", "workers", "doctor", "audit"):
        page = browser.get(f"/queues/{path}")
        assert page.status_code == 200, path
        links = re.findall(r'(?:href|src|action)="([^"]+)"', text(page))
        assert links
        assert [link for link in links if not link.startswith(("/queues/", "#"))] == []
        assert "script-src 'self'" in page["Content-Security-Policy"]
    assert browser.get("/queues/static/style.css").status_code == 200
    assert browser.get("/queues/nowhere").status_code == 404


def test_it_can_be_mounted_without_a_slash(browser: Any) -> None:
    from django.test import override_settings

    login(browser, "view_dashboard")
    with override_settings(ROOT_URLCONF="tests.support.django.bare_urls"):
        assert browser.get("/tasks")["Location"] == "/tasks/"
        assert browser.get("/tasks/").status_code == 200
        links = re.findall(r'(?:href|src|action)="([^"]+)"', browser.get("/tasks/scheduled").text)
    assert [link for link in links if not link.startswith(("/tasks/", "#"))] == []


def test_users_with_change_permission_can_cancel_and_are_in_the_audit_log(browser: Any) -> None:
    login(browser, "view_dashboard", "change_dashboard")
    id_ = schedule()
    form = {"verb": "cancel", "row": f"delay:scheduled:{id_}"}
    assert browser.post("/queues/actions/scheduled/preview", form).status_code == 403
    page = text(browser.get("/queues/scheduled"))
    assert 'class="mode">read-write' in page
    preview = text(browser.post("/queues/actions/scheduled/preview", {**form, "token": token(page)}))
    assert "Cancel 1 waiting entry?" in preview
    done = browser.post("/queues/actions/scheduled", hidden(preview))
    assert (done.status_code, done["Location"]) == (303, "/queues/scheduled")
    assert "1 cancelled." in text(browser.get("/queues/scheduled"))
    audit = text(browser.get("/queues/audit"))
    assert "ann" in audit
    assert "cancel" in audit


def test_there_is_a_permission_for_each_verb(browser: Any) -> None:
    from django.contrib.auth.models import Permission

    del browser
    kind = {"content_type__app_label": "redis_queue", "content_type__model": "dashboard"}
    found = set(Permission.objects.filter(**kind).values_list("codename", flat=True))
    verbs = {f"{verb.replace('-', '_')}_dashboard" for verb in PERMISSIONS}
    assert found == {"view_dashboard", "change_dashboard", *verbs}
    assert "run_now_dashboard" in verbs


@pytest.mark.parametrize("verb", ["cancel", "run-now"])
def test_users_with_the_permission_of_a_verb_can_do_this_and_nothing_else(browser: Any, verb: str) -> None:
    login(browser, "view_dashboard", f"{verb.replace('-', '_')}_dashboard")
    row = f"delay:scheduled:{schedule()}"
    page = text(browser.get("/queues/scheduled"))
    assert re.findall(r'name="verb" value="([^"]+)"', page) == [verb]
    assert 'class="mode">limited' in page
    form = {"row": row, "token": token(page)}
    for other in {"cancel", "run-now"} - {verb}:
        for path in ("scheduled/preview", "scheduled"):
            refused = browser.post(f"/queues/actions/{path}", {**form, "verb": other})
            assert (refused.status_code, f"{other} is not permitted to ann" in text(refused)) == (403, True)
    preview = text(browser.post("/queues/actions/scheduled/preview", {**form, "verb": verb}))
    assert browser.post("/queues/actions/scheduled", hidden(preview)).status_code == 303
    assert verb in text(browser.get("/queues/audit"))
