"""Guard: what every request has to pass before a page is made, and what every answer says to the browser."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from flask import Flask, Response, abort, current_app, g, request, session
from flask.sessions import SecureCookieSessionInterface
from werkzeug.sansio.utils import host_is_trusted

from redis_queue.operate.addresses import network
from redis_queue.web.settings import WebSettings

WRONG_IN: Final = 60.0
MOST_WRONG: Final = 10
"""Most wrong passwords for a name from one network within :data:`WRONG_IN` seconds."""

MOST_WRONG_FOR_NAME: Final = 50
"""The same from all networks together, except those from which that user has signed in before."""

TOKEN_SECONDS: Final = 12 * 3600
"""How long a form may stay open."""

MOST_REMEMBERED: Final = 10_000
MOST_OF_NAME: Final = 100

SAFE: Final = ("GET", "HEAD", "OPTIONS")

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}

LOOKS: Final = ("workers.ask",)
"""What is sent as a form and yet changes nothing that is kept."""

MOST_DIGITS: Final = 12
"""Most digits of the expiry time of a token."""

COOKIE: Final = "redis_queue_session"

Who = tuple[str, str]
"""Network ("" for all) and user name."""

LOCAL: Final = "local"
"""Who acts where nobody has to say a name."""


class Guard:
    """Host, user, form token: each refuses with an HTTP error of its own."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._logins = _Logins(settings.users or {})

    def check(self) -> None:
        """Refuse what must not pass; sets ``g.user`` and ``g.may_write``."""
        hosts = self._settings.hosts
        if hosts is not None and not host_is_trusted(request.environ.get("HTTP_HOST", ""), hosts):
            abort(400, "This host name is not one of the dashboard's: start it with --host NAME.")
        g.user = self._user()
        g.may_write = self._settings.allow_write and (
            self._settings.may_write is None or self._settings.may_write(request.environ)
        )
        if request.method not in SAFE:
            if not g.may_write and request.endpoint not in LOOKS:
                abort(403, "This dashboard only shows: start it with --allow-write to act.")
            self._check_form()

    def _user(self) -> str:
        settings = self._settings
        if settings.identify is not None:
            user = settings.identify(request.environ)
            if user is None:
                abort(403, "You may not see this dashboard.")
            return user
        if settings.users is None:
            return LOCAL
        return self._logins.name()

    @staticmethod
    def _check_form() -> None:
        # These headers decide if the browser sends them; the token protects other browsers.
        if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            abort(403, "This form was sent from another site.")
        source = request.headers.get("Origin") or request.headers.get("Referer")
        if source is not None and _host_of(source) != _without_default_port(request.host):
            abort(
                403,
                f"This form was sent from another site than {request.host}. If that is a proxy in front of the"
                " dashboard, it must pass X-Forwarded-Host, and the dashboard needs --trust-proxy.",
            )
        token = request.form.get("token", "")
        ends, _, _ = token.partition(".")
        is_ours = hmac.compare_digest(_token(ends).encode(), token.encode(errors="surrogateescape"))
        if not is_ours or int(ends) < time.time():
            abort(403, "This form is too old: go back, reload the page and try again.")


def _host_of(url: str) -> str | None:
    """Return host and port of an address; None if it has none, as the Origin "null"."""
    try:
        return _without_default_port(urlsplit(url).netloc)
    except ValueError:
        return None


def _without_default_port(host: str) -> str:
    name, _, port = host.lower().rpartition(":")
    return name if port in ("80", "443") and name else host.lower()


class Unknown(Exception):  # noqa: N818 - an answer, not a failure
    """The user is unknown: ask for name and password."""


class _Logins:
    """Names and passwords, and counts of wrong passwords."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._wrong = _Wrong(MOST_WRONG)
        self._wrong_for_name = _Wrong(MOST_WRONG_FOR_NAME)
        self._came_in: set[Who] = set()

    def name(self) -> str:
        """Return the user of this request; raises Unknown, or refuses after too many wrong passwords."""
        given = request.authorization
        if given is None:
            raise Unknown
        # Behind a proxy that is not told of, all come from one address: a name keeps them apart.
        name = (given.username or "")[:MOST_OF_NAME]
        who, everybody = (network(request.remote_addr or ""), name), ("", name)
        came_before = who in self._came_in
        if self._wrong.is_blocked(who) or (not came_before and self._wrong_for_name.is_blocked(everybody)):
            abort(429, "Too many wrong passwords: wait a minute.")
        if given.type == "basic" and self._knows(given.username, given.password):
            if len(self._came_in) < MOST_REMEMBERED:
                self._came_in.add(who)
            return str(given.username)
        self._wrong.add(who)
        if not came_before:
            self._wrong_for_name.add(everybody)
        raise Unknown

    def _knows(self, name: str | None, password: str | None) -> bool:
        # Compared in the same time whoever is asked for, so that nobody learns which names there are.
        known = self._users.get(name or "")
        expected = known if known is not None else secrets.token_urlsafe()
        same = hmac.compare_digest(expected.encode(), (password or "").encode(errors="surrogateescape"))
        return same and known is not None


class _Wrong:
    """Times of wrong passwords; at most *most* are allowed within :data:`WRONG_IN` seconds."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: dict[Who, deque[float]] = {}
        self._lock = threading.Lock()

    def is_blocked(self, who: Who) -> bool:
        """Tell whether *who* had their share."""
        with self._lock:
            times = self._times.get(who)
            while times and times[0] < time.monotonic() - WRONG_IN:
                times.popleft()
            if times is not None and not times:
                del self._times[who]
            return bool(times) and len(times or ()) >= self._most

    def add(self, who: Who) -> None:
        """Note one more."""
        with self._lock:
            if who not in self._times and len(self._times) >= MOST_REMEMBERED:
                self._times.pop(next(iter(self._times)))
            self._times.setdefault(who, deque(maxlen=self._most)).append(time.monotonic())


class Cookies(SecureCookieSessionInterface):
    """The cookie goes back to where the dashboard is mounted, and over TLS only if it came over TLS.

    Browsers keep cookies by host, whatever the port, so the port is part of its name.
    """

    def get_cookie_name(self, app: Flask) -> str:  # noqa: ARG002 - Flask's signature
        """Return the name under which it is kept."""
        port = request.environ.get("HTTP_HOST", "").rpartition(":")[2]
        return f"{COOKIE}_{port}" if port.isascii() and port.isdecimal() else COOKIE

    def get_cookie_path(self, app: Flask) -> str:  # noqa: ARG002 - Flask's signature
        """Return the path under which it is sent."""
        return f"{request.script_root}/"

    def get_cookie_secure(self, app: Flask) -> bool:  # noqa: ARG002 - Flask's signature
        """Tell whether only TLS may carry it."""
        return request.is_secure


def form_token() -> str:
    """Return the token for a form of this user in this browser; it is valid for :data:`TOKEN_SECONDS`."""
    session.setdefault("browser", secrets.token_urlsafe(24))
    return _token(str(int(time.time()) + TOKEN_SECONDS))


def _token(ends: str) -> str:
    """Return the token that expires at *ends*, seconds since the epoch; a random one if *ends* is not a time."""
    browser, key = session.get("browser"), str(current_app.secret_key).encode()
    if not isinstance(browser, str) or not (ends.isascii() and ends.isdecimal() and len(ends) <= MOST_DIGITS):
        return secrets.token_urlsafe()
    # Signed as JSON, so that a user name cannot be taken for part of another field.
    signed = json.dumps(["form", ends, browser, g.user]).encode()
    return f"{ends}.{hmac.new(key, signed, hashlib.sha256).hexdigest()}"


def https_only(response: Response) -> Response:
    """Tell the browser to come back over TLS only: right for who serves the whole host."""
    if request.is_secure:
        response.headers.setdefault("Strict-Transport-Security", "max-age=31536000")
    return response


def seal(response: Response) -> Response:
    """Tell the browser to run nothing that is not ours, and to keep nothing."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if request.endpoint != "static" or response.status_code >= 400:  # noqa: PLR2004
        response.headers["Cache-Control"] = "no-store"
    return response
