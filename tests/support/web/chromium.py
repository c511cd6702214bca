"""A tab of Chromium that records its errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from playwright.sync_api import Page

EXECUTABLE = "/usr/bin/chromium"


@dataclass
class Tab:
    """A tab and its recorded errors."""

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Open a path of the dashboard."""
        self.page.goto(self.address + path)
        return self.page


NewTab = Callable[..., Tab]
"""Open a tab with these options."""
