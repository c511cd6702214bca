"""Guard: checks of every request, the permissions of its user, and security headers of every response."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from flask import Flask, Response, abort, current_app, g, request, session
from flask.sessions import SecureCookieSessionInterface
from werkzeug.sansio.utils import host_is_trusted

from redis_queue.basics.times import monotonic
from redis_queue.operate.actions.registry import PERMISSIONS
from redis_queue.operate.addresses import network
from redis_queue.web.settings import WebSettings

FAILED_LOGIN_WINDOW: Final = 60.0
MAX_FAILED_LOGINS: Final = 10
"""Maximum number of wrong passwords for a name from one network within :data:`FAILED_LOGIN_WINDOW` seconds."""

MAX_FAILED_LOGINS_PER_NAME: Final = 50
"""The same from all networks together; networks from which the user has signed in before are exempt."""

TOKEN_SECONDS: Final = 12 * 3600
"""How long a form is valid."""

MAX_REMEMBERED: Final = 10_000
MAX_OF_NAME: Final = 100
BUCKETS: Final = 1 << 16

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

READ_ONLY_FORMS: Final = ("workers.ask",)
"""Forms that change nothing in Redis."""

MAX_DIGITS: Final = 12
"""Maximum digits of the expiry time of a token."""

SIGNATURE_BYTES: Final = hashlib.sha256().digest_size

COOKIE: Final = "redis_queue_session"

Login = tuple[str, str]
"""Network ("" for all) and user name."""

LOCAL: Final = "local"
"""User name if no login is required."""


class Guard:
    """Checks of host, user and form token, each with its own HTTP error."""

    def __init__(self, settings: WebSettings) -> None:
        self._settings = settings
        self._logins = _Logins(settings.users or {})

    def check(self) -> None:
        """Refuse invalid requests; set ``g.user`` and ``g.permissions``."""
        hosts = self._settings.hosts
        if hosts is not None and not host_is_trusted(request.environ.get("HTTP_HOST", ""), hosts):
            abort(400, "This host name is not allowed: start the dashboard with --host NAME.")
        g.user = self._user()
        if request.endpoint != "static":
            g.permissions = Permissions.of(self._settings, request.environ)
        if request.method not in SAFE:
            if not permissions().verbs and request.endpoint not in READ_ONLY_FORMS:
                abort(403, READ_ONLY)
            self._check_form()

    def _user(self) -> str:
        settings = self._settings
        if settings.identify is not None:
            user = settings.identify(request.environ)
            if user is None:
                abort(403, "You do not have access to this dashboard.")
            return user
        if settings.users is None:
            return LOCAL
        return self._logins.name()

    @staticmethod
    def _check_form() -> None:
        # Browsers that do not send these headers are protected by the token.
        if request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            abort(403, "This form was sent from another site.")
        source = request.headers.get("Origin") or request.headers.get("Referer")
        if source is not None and _host_of(source) != _without_default_port(request.host):
            abort(
                403,
                f"This form was sent from another site than {request.host}. If that is a proxy in front of the"
                " dashboard, it must pass X-Forwarded-Host, and the dashboard needs --trust-proxy.",
            )
        ends, _, masked = request.form.get("token", "").partition(".")
        if not hmac.compare_digest(_signature(ends), _unmasked(masked)) or int(ends) < time.time():
            abort(403, "This form is too old: go back, reload the page and try again.")


def _host_of(url: str) -> str | None:
    """Return host and port of a URL; None for an invalid one. The Origin "null" has none."""
    try:
        return _without_default_port(urlsplit(url).netloc)
    except ValueError:
        return None


def _without_default_port(host: str) -> str:
    name, _, port = host.lower().rpartition(":")
    return name if port in ("80", "443") and name else host.lower()


class LoginRequired(Exception):  # noqa: N818 - an answer, not a failure
    """Ask the browser for name and password."""


class _Logins:
    """Passwords of users, and limits for wrong ones."""

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users
        self._failures = _Failures(MAX_FAILED_LOGINS)
        self._failures_of_name = _Failures(MAX_FAILED_LOGINS_PER_NAME)
        self._signed_in: set[Login] = set()

    def name(self) -> str:
        """Return the user of this request. Raises LoginRequired; refuses after too many wrong passwords."""
        sent = request.authorization
        if sent is None:
            raise LoginRequired
        # Behind a proxy all users may share one address: count by name, too.
        name = (sent.username or "")[:MAX_OF_NAME]
        login, everybody = (network(request.remote_addr or ""), name), ("", name)
        signed_in_before = login in self._signed_in
        if self._failures.is_blocked(login) or (not signed_in_before and self._failures_of_name.is_blocked(everybody)):
            abort(429, "Too many wrong passwords: wait a minute.")
        if sent.type == "basic" and self._knows(sent.username, sent.password):
            if len(self._signed_in) < MAX_REMEMBERED:
                self._signed_in.add(login)
            return str(sent.username)
        self._failures.add(login)
        if not signed_in_before:
            self._failures_of_name.add(everybody)
        raise LoginRequired

    def _knows(self, name: str | None, password: str | None) -> bool:
        # Unknown names take the same time, so that timing does not reveal names.
        known = self._users.get(name or "")
        expected = known if known is not None else secrets.token_urlsafe()
        same = hmac.compare_digest(expected.encode(), (password or "").encode(errors="surrogateescape"))
        return same and known is not None


class _Failures:
    """Failed logins; at most *most* are allowed within :data:`FAILED_LOGIN_WINDOW` seconds.

    Logins share :data:`BUCKETS` buckets, so that other names push none out, and memory is bounded. A few may be blocked
    together; nobody outside knows which, as Python's hashes of texts differ in each process.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: dict[int, deque[float]] = {}
        self._lock = threading.Lock()

    def is_blocked(self, login: Login) -> bool:
        """Return whether *login* has reached the limit."""
        bucket = hash(login) % BUCKETS
        with self._lock:
            times = self._times.get(bucket)
            while times and times[0] < monotonic() - FAILED_LOGIN_WINDOW:
                times.popleft()
            if times is not None and not times:
                del self._times[bucket]
            return bool(times) and len(times or ()) >= self._most

    def add(self, login: Login) -> None:
        """Count a failed login."""
        with self._lock:
            self._times.setdefault(hash(login) % BUCKETS, deque(maxlen=self._most)).append(monotonic())


class Cookies(SecureCookieSessionInterface):
    """Session cookies limited to the path of the dashboard, and to TLS if it is served over TLS.

    The name contains the port, since browsers share cookies between the ports of a host.
    """

    def get_cookie_name(self, app: Flask) -> str:  # noqa: ARG002 - Flask's signature
        port = request.environ.get("HTTP_HOST", "").rpartition(":")[2]
        return f"{COOKIE}_{port}" if port.isascii() and port.isdecimal() else COOKIE

    def get_cookie_path(self, app: Flask) -> str:  # noqa: ARG002 - Flask's signature
        """Return the path to which the cookie is limited."""
        return f"{request.script_root}/"

    def get_cookie_secure(self, app: Flask) -> bool:  # noqa: ARG002 - Flask's signature
        """Return whether the cookie is limited to TLS."""
        return request.is_secure


def form_token() -> str:
    """Return the token for the forms of a response to this user in this browser; valid for :data:`TOKEN_SECONDS`.

    Its signature is masked anew for each response, so that the size of compressed pages reveals nothing of it (BREACH).
    """
    if "form_token" not in g:
        session.setdefault("browser", secrets.token_urlsafe(24))
        ends, mask = str(int(time.time()) + TOKEN_SECONDS), secrets.token_bytes(SIGNATURE_BYTES)
        g.form_token = f"{ends}.{mask.hex()}{_xor(mask, _signature(ends)).hex()}"
    found: str = g.form_token
    return found


def _signature(ends: str) -> bytes:
    """Return the signature that expires at *ends*, seconds since the epoch; a random one if *ends* is not a time."""
    browser, key = session.get("browser"), str(current_app.secret_key).encode()
    if not isinstance(browser, str) or not (ends.isascii() and ends.isdecimal() and len(ends) <= MAX_DIGITS):
        return secrets.token_bytes(SIGNATURE_BYTES)
    # Signed as JSON, so that a user name cannot pose as another field.
    signed = json.dumps(["form", ends, browser, g.user]).encode()
    return hmac.new(key, signed, hashlib.sha256).digest()


def _unmasked(text: str) -> bytes:
    """Return the signature that form_token has masked; b"" for another text."""
    try:
        found = bytes.fromhex(text)
    except ValueError:
        return b""
    return _xor(found[:SIGNATURE_BYTES], found[SIGNATURE_BYTES:])


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=False))


def https_only(response: Response) -> Response:
    """Limit the browser to TLS for this host; only for a dashboard that has the host to itself."""
    if request.is_secure:
        response.headers.setdefault("Strict-Transport-Security", "max-age=31536000")
    return response


def add_security_headers(response: Response) -> Response:
    """Add the security headers: only our own scripts, no framing, no caching."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if request.endpoint != "static" or response.status_code >= 400:  # noqa: PLR2004
        response.headers["Cache-Control"] = "no-store"
    return response


@dataclass(frozen=True, slots=True)
class Permissions:
    """The verbs of one user, and those that the settings allow to some user."""

    verbs: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()

    @classmethod
    def of(cls, settings: WebSettings, environment: Mapping[str, object]) -> Permissions:
        """Return the permissions of the user of a request."""
        allowed = frozenset(PERMISSIONS) if settings.allow_write else frozenset(settings.allow)
        if settings.may is not None:
            verbs = frozenset(verb for verb in allowed if settings.may(environment, verb))
        elif not allowed or settings.may_write is None or settings.may_write(environment):
            verbs = allowed
        else:
            verbs = frozenset()
        return cls(verbs, allowed)

    @property
    def mode(self) -> str:
        """The mode of the dashboard for this user; "limited": some verbs only."""
        return "read-only" if not self.verbs else "read-write" if len(self.verbs) == len(PERMISSIONS) else "limited"

    def why_not(self, verb: str) -> str:
        """Return why this user may not use *verb*, and what permits it."""
        if verb in self.allowed:
            return f"{verb} is not permitted to {g.user}: the application of this dashboard must permit it."
        return f"{verb} is not permitted: start the dashboard with --allow {verb}, or with --allow-write for all."


READ_ONLY: Final = "This dashboard is read-only: start it with --allow-write, or --allow VERB, to act."

NOTHING: Final = Permissions()


def permissions() -> Permissions:
    """Return the permissions of the user of this request; none before the guard has identified the user."""
    found: Permissions = g.get("permissions", NOTHING)
    return found


def may(*verbs: str) -> bool:
    """Return whether the user of this request may use at least one of *verbs*."""
    return not permissions().verbs.isdisjoint(verbs)


def require(verb: str) -> str:
    """Return *verb*; refuses the request if its user may not use it. Every action and every preview calls it."""
    if not may(verb):
        abort(403, permissions().why_not(verb))
    return verb
