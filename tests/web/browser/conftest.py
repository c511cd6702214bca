"""Chromium, and a dashboard with write access."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from redis_queue.web import dashboard
from tests.support.web.chromium import EXECUTABLE, NewTab, Tab, serving


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser without a window, for one module, since it leaves an event loop in the thread."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=EXECUTABLE, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def address(filled: redis.Redis, app: Celery) -> Iterator[str]:
    """The URL of a dashboard of the filled Redis, served by this process."""
    with serving(dashboard(app, allow_write=True)) as url:
        yield url


@pytest.fixture
def new_tab(chromium: Browser, address: str) -> Iterator[NewTab]:
    """Open tabs; afterwards no tab may have logged an error or a violation of the content policy."""
    contexts: list[BrowserContext] = []
    tabs: list[Tab] = []

    def new_tab(**options: Any) -> Tab:
        contexts.append(chromium.new_context(**{"viewport": {"width": 1200, "height": 800}, **options}))
        contexts[-1].set_default_timeout(10_000)
        tab = Tab(contexts[-1].new_page(), address)
        tab.page.on("console", lambda message: tab.complaints.append(message.text))
        tab.page.on("pageerror", lambda error: tab.complaints.append(str(error)))
        tabs.append(tab)
        return tab

    yield new_tab
    for context in contexts:
        context.close()
    assert [tab.complaints for tab in tabs if tab.complaints] == []
