"""A person runs schedules: sees when they are due, pauses, resumes, runs and changes one."""

from __future__ import annotations

import re

import pytest
import redis
from axe_playwright_python.sync_playwright import Axe
from celery import Celery
from playwright.sync_api import Page, expect

from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.operate.access import AppAccess
from tests.support.web.chromium import NewTab, go_to
from tests.support.web.contents import fill_schedules


@pytest.fixture
def schedules(app: Celery, filled: redis.Redis) -> Schedules:
    fill_schedules(filled, app=str(app.main or "app"))
    return AppAccess(app).schedules


def is_accessible(page: Page) -> bool:
    found = Axe().run(page).response["violations"]
    assert [item["id"] for item in found if item["impact"] in ("serious", "critical")] == []
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def confirm(page: Page, button: str, label: str, told: str) -> None:
    page.get_by_role("button", name=button, exact=True).click()
    page.get_by_role("button", name=label, exact=True).click()
    expect(page.get_by_role("status")).to_contain_text(told)


def test_operate_a_schedule(new_tab: NewTab, schedules: Schedules) -> None:
    page = new_tab().open("/")
    go_to(page, "Schedules")
    line = page.get_by_role("row").filter(has=page.get_by_role("img", name=re.compile(r"^\d\d:\d\d \(")))
    expect(line.get_by_role("link")).to_have_text("nightly")
    # A mark is visible: its line has a width and a colour.
    mark = page.locator(".line .mark").first
    assert mark.evaluate("mark => mark.getBBox().height") == 16
    page.get_by_role("region", name="Schedules").get_by_role("link", name="nightly", exact=True).click()
    page.get_by_label("Reason").fill("stocktaking")
    confirm(page, "Pause…", "Pause", "nightly: paused")
    assert schedules.find("nightly").paused
    expect(page.locator(".history")).to_contain_text("stocktaking")
    confirm(page, "Resume…", "Resume", "nightly: 30 2 * * *. Next run:")
    confirm(page, "Run now…", "Run now", "sent as task")
    assert schedules.find("nightly").runs == 1
    page.locator("summary", has_text="Edit").click()
    page.get_by_role("textbox", name="Rules When").fill("45 2 * * *")
    page.get_by_role("button", name="Change…", exact=True).click()
    expect(page.get_by_text("Next runs:")).to_be_visible()
    page.get_by_role("button", name="Store", exact=True).click()
    expect(page.get_by_role("status")).to_contain_text("nightly: 45 2 * * *.")
    assert schedules.find("nightly").rules == "45 2 * * *"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_are_accessible(width: int, scheme: str, new_tab: NewTab, schedules: Schedules) -> None:
    page = new_tab(viewport={"width": width, "height": 800}, color_scheme=scheme).open("/schedules")
    page.locator("summary", has_text="Put a schedule").click()
    assert is_accessible(page)
    page.goto(page.url.replace("/schedules", "/schedule?name=nightly"))
    page.locator("summary", has_text="Edit").click()
    assert is_accessible(page)
