"""The dashboard as a Django view: logins, permissions and links."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytestmark = pytest.mark.celery


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


def test_staff_need_the_permission(browser: Any) -> None:
    login(browser)
    assert browser.get("/queues/").status_code == 403


def test_users_with_view_permission_see_no_forms_and_cannot_act(browser: Any) -> None:
    login(browser, "view_dashboard")
    id_ = schedule()
    page = browser.get("/queues/scheduled")
    assert page.status_code == 200
    assert id_ in text(page)
    assert "read-only" in text(page)
    assert 'action="/queues/preview"' not in text(page) or "<button name" not in text(page)
    assert browser.post("/queues/act", {"verb": "cancel"}).status_code == 403


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
    form = {"verb": "cancel", "row": f"delay:celery:{id_}"}
    assert browser.post("/queues/preview", form).status_code == 403
    page = browser.get("/queues/scheduled")
    token = re.search(r'name="token" value="([^"]+)"', text(page))
    assert token is not None
    form["token"] = token[1]
    preview = text(browser.post("/queues/preview", form))
    assert "Cancel 1?" in preview
    done = browser.post(
        "/queues/act", dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', preview))
    )
    assert (done.status_code, done["Location"]) == (303, "/queues/scheduled")
    assert "1 cancelled." in text(browser.get("/queues/scheduled"))
    audit = text(browser.get("/queues/audit"))
    assert "ann" in audit
    assert "cancel" in audit
