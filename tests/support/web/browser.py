"""A small browser for WSGI applications: reads pages, follows links and submits forms."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

from werkzeug.test import Client
from werkzeug.wrappers import Response

from redis_queue.web.app import FOLDER

Attributes = dict[str, str]


@dataclass
class Form:
    """A form: its target, its fields as a browser would submit them, and its named buttons."""

    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    boxes: list[tuple[str, str]] = field(default_factory=list)
    buttons: list[tuple[str, str]] = field(default_factory=list)


class Page(HTMLParser):
    """A parsed page: tags with attributes, text, forms. Invalid HTML raises AssertionError."""

    VOID = frozenset({"meta", "link", "input", "br"})

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.status = response.status_code
        self.headers = response.headers
        self.source = response.get_data(as_text=True)
        self.tags: list[tuple[str, Attributes]] = []
        self.forms: list[Form] = []
        self.pieces: list[str] = []
        self._open: list[str] = []
        self._select: tuple[str, str | None] | None = None
        self.feed(self.source)
        self.close()
        assert self._open == [], f"unclosed tags: {self._open}"

    @property
    def text(self) -> str:
        """The visible text, with single spaces."""
        return " ".join(" ".join(self.pieces).split())

    @property
    def links(self) -> list[str]:
        """The targets of all links."""
        return [attributes["href"] for tag, attributes in self.tags if tag == "a" and "href" in attributes]

    def link(self, text: str) -> str:
        """Return the target of the link whose address contains *text*."""
        return next(link for link in self.links if text in link)

    def form(self, action: str) -> Form:
        """Return the form whose target ends with *action*."""
        return next(form for form in self.forms if form.action.endswith(action))

    def form_with(self, *parts: tuple[str, str]) -> Form:
        """Return the form that has all these fields and buttons."""
        return next(form for form in self.forms if {*parts} <= {*form.fields, *form.buttons})

    @property
    def confirmation(self) -> Form:
        """The form of a preview, which confirms its action."""
        return next(form for form in self.forms if "/actions/" in form.action and not form.action.endswith("/preview"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"duplicate attribute: {attrs}"
        found = {name: value or "" for name, value in attrs}
        self.tags.append((tag, found))
        if tag not in self.VOID:
            self._open.append(tag)
        if tag == "form":
            self.forms.append(Form(found.get("action", ""), found.get("method", "get")))
        elif tag == "select":
            self._select = (found["name"], None)
        elif tag == "option" and self._select is not None:
            name, chosen = self._select
            if chosen is None or "selected" in found:
                self._select = (name, found["value"])
        elif tag in ("input", "button") and "name" in found:
            self._note(tag, found)

    def _note(self, tag: str, found: Attributes) -> None:
        form, pair = self.forms[-1], (found["name"], found.get("value", ""))
        if tag == "button":
            form.buttons.append(pair)
        elif found.get("type") == "checkbox":
            form.boxes.append(pair)
            if "checked" in found:
                form.fields.append(pair)
        else:
            form.fields.append(pair)

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"</{tag}> without a start tag"
        assert self._open[-1] == tag, f"</{tag}> closes {self._open[-1:]}"
        self._open.pop()
        if tag == "select" and self._select is not None:
            name, chosen = self._select
            if chosen is not None:
                self.forms[-1].fields.append((name, chosen))
            self._select = None

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)


class Browser:
    """Keeps cookies and sends Origin headers with forms; *prefix* is the mount point of the application."""

    def __init__(self, application: Any, *, prefix: str = "", headers: Mapping[str, str] | None = None) -> None:
        self.client = Client(application, Response)
        self.prefix = prefix
        self.headers = {"Host": "localhost", "Sec-Fetch-Site": "same-origin", **(headers or {})}

    def open(self, path: str, *, method: str = "GET", **options: Any) -> Page:
        """Request an address and parse the page."""
        return Page(self.raw(path, method=method, **options))

    def raw(self, path: str, *, method: str = "GET", **options: Any) -> Response:
        """Request an address."""
        headers = {**self.headers, **options.pop("headers", {})}
        return self.client.open(path, method=method, headers=headers, buffered=True, **options)

    def get(self, path: str = "/") -> Page:
        """Return a page; it must exist."""
        page = self.open(self.prefix + path)
        assert page.status == 200, (path, page.text)
        return page

    def send(self, form: Form, button: tuple[str, str] | None = None, **changes: Any) -> Page:
        """Submit a form and follow the redirect; *changes* are field values: lists for several, None to omit one."""
        return self.follow(self.post(form, button, **changes), form.action)

    def press(self, page: Page, verb: str, **changes: Any) -> Page:
        """Submit the form that has the button *verb* with it."""
        return self.send(page.form_with(("verb", verb)), ("verb", verb), **changes)

    def post(self, form: Form, button: tuple[str, str] | None = None, **changes: Any) -> Response:
        kept = [(name, value) for name, value in form.fields if name not in changes]
        given = [(n, v) for n, values in changes.items() for v in (values if isinstance(values, list) else [values])]
        data: dict[str, list[str]] = {}
        for name, value in (*kept, *given, *([button] if button else [])):
            if value is not None:
                data.setdefault(name, []).append(value)
        if form.method == "get":
            return self.raw(form.action, query_string=data)
        return self.raw(form.action, method="POST", data=data)

    def follow(self, response: Response, base: str = "/") -> Page:
        """Return the page of *response*, after its redirect if there is one."""
        if response.status_code != 303:
            return Page(response)
        target = urlsplit(urljoin(base, response.headers["Location"]))
        return self.open(target.path + (f"?{target.query}" if target.query else ""))


def token(page: str) -> str:
    """Return the token in the forms of *page*, the HTML that another client got."""
    (found,) = set(re.findall(r'name="token" value="([^"]+)"', page))
    return str(found)


def hidden(page: str) -> dict[str, str]:
    """Return the hidden fields in the forms of *page*, the HTML that another client got."""
    return dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', page))


ADDRESS = re.compile(r"/static/([\w./-]+\.js)\?v=[0-9a-f]{12}")


def is_own_script(attributes: dict[str, str]) -> bool:
    """Return whether a script element loads a file of the dashboard, and has no other attributes."""
    address = ADDRESS.fullmatch(attributes.get("src", ""))
    rest = {name: value for name, value in attributes.items() if name != "src"}
    return address is not None and (FOLDER / address[1]).is_file() and rest in ({}, {"defer": ""})


SCREENS = (
    "/",
    "/incidents",
    "/forecast",
    "/scheduled",
    "/schedules",
    "/queues",
    "/flows",
    "/unique",
    "/tasks",
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


def pages_from(browser: Browser, path: str, *, mark: str = "after=") -> Iterator[Page]:
    """Yield the page at *path* and all that follow, by their last link with *mark*."""
    page = browser.get(path)
    yield page
    while following := [link for link in page.links if mark in link]:
        page = browser.get(following[-1])
        yield page
