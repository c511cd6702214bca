"""Crawl a dashboard: open every page that links and search forms point to."""

from __future__ import annotations

from urllib.parse import parse_qs, urlencode, urlsplit

from tests.support.web.browser import Browser, Page

SCREENS = (
    "/",
    "/forecast",
    "/scheduled",
    "/queues",
    "/flows",
    "/unique",
    "/running",
    "/history",
    "/failures",
    "/dead",
    "/workers",
    "/doctor",
    "/audit",
)


def crawl(browser: Browser, each: int = 6) -> dict[str, Page]:
    """Open every address in links and search forms; at most *each* of those that differ only in values."""
    found: dict[str, Page] = {}
    waiting = [*SCREENS]
    kinds: dict[tuple[str, ...], int] = {}
    while waiting:
        address = waiting.pop(0)
        parts = urlsplit(address)
        kind = (parts.path, *sorted(parse_qs(parts.query)))
        if address in found or kinds.get(kind, 0) >= each:
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
        found[address] = page = browser.open(browser.prefix + address)
        waiting += [link.removeprefix(browser.prefix) for link in page.links if not link.startswith("#")]
        for form in page.forms:
            if form.method == "get":
                query = urlencode({name: value for name, value in [*form.fields, *form.boxes] if value})
                waiting.append(f"{form.action.removeprefix(browser.prefix)}?{query}")
    return found
