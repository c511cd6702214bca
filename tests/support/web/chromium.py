"""A tab of Chromium that records its errors."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Page
from werkzeug.serving import make_server

from redis_queue.web.app import NAVIGATION

EXECUTABLE = "/usr/bin/chromium"


@dataclass
class Tab:
    """A tab and its recorded errors."""

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        self.page.goto(self.address + path)
        return self.page


def go_to(page: Page, name: str) -> None:
    """Go to a page by the navigation: to its group, and there to the page."""
    group = next(group for group, screens in NAVIGATION if name in (title for _, title, _ in screens))
    page.get_by_role("navigation", name="Screens").get_by_role("link", name=group, exact=True).click()
    if name != group:
        page.get_by_role("navigation", name="In this group").get_by_role("link", name=name, exact=True).click()


NewTab = Callable[..., Tab]
"""Open a tab with these options."""


@contextlib.contextmanager
def serving(application: Any) -> Iterator[str]:
    """Serve *application* in this process; yield its URL."""
    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
