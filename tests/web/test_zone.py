"""Times on pages are in the configured zone, with UTC in their titles."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

import pytest

from tests.support.web.browser import Browser
from tests.support.web.contents import Open

KOLKATA = "Asia/Kolkata"
PATHS = ("/scheduled", "/dead", "/audit", "/forecast", "/unique", "/entry?queue=scheduled&id=task-1")


def times(browser: Browser, path: str) -> list[tuple[datetime, str, str]]:
    """Return the machine-readable time, the title and the text of each time on a page."""
    found = re.findall(r'<time datetime="([^"]+)" title="([^"]+)"[^>]*>([^<]+)</time>', browser.get(path).source)
    assert found, path
    return [(datetime.fromisoformat(machine), title, shown) for machine, title, shown in found]


@pytest.mark.parametrize("path", PATHS)
def test_the_zone_of_the_dashboard(path: str, open_dashboard: Open) -> None:
    browser = open_dashboard(timezone=KOLKATA)
    for at, title, shown in times(browser, path):
        assert title == at.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
        assert at.astimezone(ZoneInfo(KOLKATA)).strftime("%H:%M") in shown
    source = browser.get(path).source
    assert f'data-timezone="{KOLKATA}"' in source
    assert ">UTC<" not in source


@pytest.mark.parametrize("path", PATHS)
def test_without_a_zone_the_page_has_utc_for_the_browser_to_convert(path: str, reader: Browser) -> None:
    for at, _, shown in times(reader, path):
        assert at.astimezone(timezone.utc).strftime("%H:%M") in shown
    assert "data-timezone" not in reader.get(path).source
