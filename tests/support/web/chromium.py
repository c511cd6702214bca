"""Chromium, and a tab of it that keeps its complaints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from playwright.sync_api import Page

EXECUTABLE = "/usr/bin/chromium"


@dataclass
class Tab:
    """A tab, and what it complained about."""

    page: Page
    address: str
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str) -> Page:
        """Go there."""
        self.page.goto(self.address + path)
        return self.page


NewTab = Callable[..., Tab]
"""Open a tab with these options."""
