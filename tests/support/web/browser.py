"""A small browser: it reads pages, follows links and sends forms, over any WSGI application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin, urlsplit

from werkzeug.test import Client
from werkzeug.wrappers import Response

Attributes = dict[str, str]


@dataclass
class Form:
    """A form: where it goes, its fields as a browser would send them, and its buttons with a name."""

    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)
    boxes: list[tuple[str, str]] = field(default_factory=list)
    buttons: list[tuple[str, str]] = field(default_factory=list)


class Page(HTMLParser):
    """What stands on a page: tags with their attributes, text, forms. What is no HTML raises AssertionError."""

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
        assert self._open == [], f"left open: {self._open}"

    @property
    def text(self) -> str:
        """What is read, with single spaces."""
        return " ".join(" ".join(self.pieces).split())

    @property
    def links(self) -> list[str]:
        """Where links lead."""
        return [attributes["href"] for tag, attributes in self.tags if tag == "a" and "href" in attributes]

    def link(self, text: str) -> str:
        """Return where the link leads whose address has *text* in it."""
        return next(link for link in self.links if text in link)

    def form(self, action: str) -> Form:
        """Return the form that goes to an address which ends with *action*."""
        return next(form for form in self.forms if form.action.endswith(action))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag."""
        assert len({name for name, _ in attrs}) == len(attrs), f"an attribute twice: {attrs}"
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
        """Note that a tag ends."""
        assert self._open, f"</{tag}> ends nothing"
        assert self._open[-1] == tag, f"</{tag}> ends {self._open[-1:]}"
        self._open.pop()
        if tag == "select" and self._select is not None:
            name, chosen = self._select
            if chosen is not None:
                self.forms[-1].fields.append((name, chosen))
            self._select = None

    def handle_data(self, data: str) -> None:
        """Note text."""
        self.pieces.append(data)


class Browser:
    """Keeps cookies and says from which site its forms come; *prefix* is where the application is mounted."""

    def __init__(self, application: Any, *, prefix: str = "", headers: Mapping[str, str] | None = None) -> None:
        self.client = Client(application, Response)
        self.prefix = prefix
        self.headers = {"Host": "localhost", "Sec-Fetch-Site": "same-origin", **(headers or {})}

    def open(self, path: str, *, method: str = "GET", **options: Any) -> Page:
        """Ask for an address and read the page."""
        return Page(self.raw(path, method=method, **options))

    def raw(self, path: str, *, method: str = "GET", **options: Any) -> Response:
        """Ask for an address."""
        headers = {**self.headers, **options.pop("headers", {})}
        return self.client.open(path, method=method, headers=headers, buffered=True, **options)

    def get(self, path: str = "/") -> Page:
        """Return a page that is there."""
        page = self.open(self.prefix + path)
        assert page.status == 200, (path, page.text)
        return page

    def send(self, form: Form, button: tuple[str, str] | None = None, **changes: Any) -> Page:
        """Send a form and follow where it leads; *changes* are values of fields, lists for several, None for none."""
        return self.follow(self.post(form, button, **changes), form.action)

    def post(self, form: Form, button: tuple[str, str] | None = None, **changes: Any) -> Response:
        """Send a form."""
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
        """Return the page that a redirect leads to, or the one that it is."""
        if response.status_code != 303:
            return Page(response)
        target = urlsplit(urljoin(base, response.headers["Location"]))
        return self.open(target.path + (f"?{target.query}" if target.query else ""))
