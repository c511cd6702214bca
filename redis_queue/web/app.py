"""The WSGI application of the dashboard, and its static files."""

from __future__ import annotations

import gzip
import hashlib
import json
import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from celery import Celery
from flask import Flask, Response, current_app, g, render_template, request, url_for
from kombu.exceptions import OperationalError
from werkzeug.exceptions import BadRequest, HTTPException, InternalServerError

from redis_queue.basics.logs import hide_secrets, logger_of
from redis_queue.basics.options import counted
from redis_queue.basics.times import from_ms, span_text
from redis_queue.errors import InvalidNameError, InvalidValueError, RedisQueueError
from redis_queue.operate.access import Access, AppAccess, access_to
from redis_queue.operate.actions.entries import reference
from redis_queue.operate.celery_queues import RATE_MINUTES
from redis_queue.store.connection import Client, connect
from redis_queue.store.ids import is_id
from redis_queue.store.redis_errors import RedisErrors
from redis_queue.web import (
    actions,
    charts,
    doctor,
    entries,
    failures,
    flows,
    forecast,
    formatting,
    history,
    overview,
    queues,
    schedules,
    search,
    workers,
)
from redis_queue.web.context import EXTENSION, Context, context
from redis_queue.web.guard import Cookies, Guard, LoginRequired, add_security_headers, form_token, may, permissions
from redis_queue.web.settings import WebOverrides, WebSettings

if TYPE_CHECKING:
    from typing_extensions import Unpack

FOLDER: Final = Path(__file__).with_name("static")

MAX_AGE: Final = 365 * 86400
"""Seconds for which browsers keep a static file; a changed file has another address."""

DIGITS: Final = 12

HTMX: Final = json.dumps(
    {
        # The content security policy forbids eval and inline styles.
        "allowEval": False,
        "includeIndicatorStyles": False,
        "allowScriptTags": False,
        "selfRequestsOnly": True,
        "historyEnabled": False,
        "scrollIntoViewOnBoost": False,
        "defaultSettleDelay": 0,
        "timeout": 10_000,
    }
)
"""Settings of htmx, read from a ``<meta>`` element."""

MAX_FORM: Final = 1024 * 1024
"""Maximum bytes of a form."""

PAGES: Final = (
    overview,
    forecast,
    entries,
    schedules,
    queues,
    flows,
    failures,
    workers,
    doctor,
    actions,
    history,
    search,
)

NAVIGATION: Final = (
    ("Overview", (("overview.show", "Overview", "o"),)),
    (
        "Work",
        (
            ("search.tasks", "Tasks", "t"),
            ("workers.running", "Running", "r"),
            ("entries.show", "Scheduled", "s"),
            ("schedules.show", "Schedules", "e"),
            ("forecast.show", "Forecast", "f"),
        ),
    ),
    ("Queues", (("queues.show", "Queues", "q"), ("flows.show", "Flows", "l"), ("flows.unique", "Unique", "u"))),
    (
        "Problems",
        (
            ("doctor.incidents", "Incidents", "i"),
            ("failures.show", "Failures", "x"),
            ("entries.dead", "Dead letters", "d"),
        ),
    ),
    ("Fleet", (("workers.show", "Workers", "w"), ("doctor.show", "Doctor", "c"))),
    ("History", (("history.show", "History", "h"), ("doctor.audit", "Audit", "a"))),
)
"""Groups of pages: their endpoints, names, and keys that open them. A group leads to its first page."""

GROUP_OF: Final = {
    "entries.one": "Work",
    "schedules.one": "Work",
    "search.task": "Work",
    "queues.one": "Queues",
    "queues.celery": "Queues",
    "flows.one": "Queues",
    "flows.key": "Queues",
    "failures.one": "Problems",
    **{endpoint: group for group, screens in NAVIGATION for endpoint, _, _ in screens},
}
"""The group of each endpoint, pages of one thing among them."""

OK: Final = 200
NOT_MODIFIED: Final = 304

COMPRESSED: Final = 1024
"""Minimum bytes of a page that is compressed."""

COMPRESSION: Final = 6


def addresses(folder: Path = FOLDER) -> Callable[[str], str]:
    """Return a function that takes the name of a file in *folder* and returns its address for a page."""
    digests = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]
        for path in folder.rglob("*")
        if path.is_file()
    }
    return lambda name: url_for("static", filename=name, v=digests[name])


def dashboard(
    source: Celery | Access | str | Client,
    settings: WebSettings | None = None,
    *,
    prefix: str = "redis_queue",
    **options: Unpack[WebOverrides],
) -> Flask:
    """Return a WSGI application with the dashboard of *source*: a Celery app, or the URL or a client of a Redis.

    *options* are the fields of :class:`WebSettings`. You can mount the application at any path. Raises
    ConfigurationError for invalid settings. Connects to Redis with the first page, not before.
    """
    settings = settings or WebSettings(**options)
    access = _access(source, prefix)
    app = Flask("redis_queue.web", static_folder="static", template_folder="templates")
    app.config.update(
        SECRET_KEY=settings.secret_key or secrets.token_hex(32),
        SESSION_COOKIE_HTTPONLY=True,
        # With Strict, following a link from a mail would replace the cookie, and with it the token of every open tab.
        SESSION_COOKIE_SAMESITE="Lax",
        MAX_CONTENT_LENGTH=MAX_FORM,
        MAX_FORM_MEMORY_SIZE=MAX_FORM,
        MAX_FORM_PARTS=20_000,
        SEND_FILE_MAX_AGE_DEFAULT=MAX_AGE,
    )
    # Paths in log lines may contain line breaks.
    logger_of(app.logger.name)
    app.url_map.merge_slashes = False
    app.session_interface = Cookies()
    app.extensions[EXTENSION] = Context(access, settings.zone)
    app.before_request(Guard(settings).check)
    app.after_request(_finish)
    app.register_error_handler(Exception, _refuse)
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.finalize = formatting.harmless
    app.add_template_filter(partial(formatting.moment, zone=settings.zone), "moment")
    app.add_template_filter(formatting.moment, "utc")
    app.add_template_filter(span_text, "span")
    app.add_template_filter(from_ms, "from_ms")
    for name in ("machine", "until", "redacted", "body", "unread_text"):
        app.add_template_filter(getattr(formatting, name), name)
    for name in ("lines", "chart_data", "shares", "spark_points"):
        app.add_template_filter(getattr(charts, name), name)
    app.jinja_env.globals["rate_minutes"] = RATE_MINUTES
    app.add_template_global(may)
    app.add_template_global(counted)
    app.add_template_global(reference)
    app.add_template_global(is_id)
    app.add_template_global(addresses(), "asset")
    app.add_template_global(form_token, "token")
    app.add_template_global(search.task_names)
    app.add_template_global(search.queue_names)
    app.context_processor(lambda: _common(settings, access))
    for module in PAGES:
        app.register_blueprint(module.pages)
    return app


def _access(source: Celery | Access | str | Client, prefix: str) -> Access:
    if isinstance(source, Access):
        return source
    if isinstance(source, Celery):
        return AppAccess(source)
    return access_to(connect(source, check=False), prefix)


def _common(settings: WebSettings, access: Access) -> dict[str, Any]:
    seen = context().incidents.last()
    return {
        "incident_count": len(seen.found) if seen is not None else 0,
        "navigation": NAVIGATION,
        "group": GROUP_OF.get(request.endpoint or "", ""),
        "htmx_config": HTMX,
        "label": settings.label,
        "timezone": settings.timezone,
        "prefix": access.catalog.prefix,
        "user": g.get("user", ""),
        "has_app": access.app is not None,
        "mode": permissions().mode,
    }


def _finish(response: Response) -> Response:
    # Behind a proxy the host name of this request may differ from that of the browser.
    here, location = request.host_url, response.headers.get("Location", "")
    if location.startswith(here):
        response.headers["Location"] = f"/{location.removeprefix(here)}"
    if request.endpoint != "static" and (response.mimetype or "").startswith("text/"):
        if "HX-Request" in request.headers:
            _only_news(response)
        _compress(response)
    return add_security_headers(response)


def _only_news(response: Response) -> None:
    """Reduce a page to what htmx replaces: title and content; to nothing if the browser has the same already."""
    page = response.get_data()
    main = page[page.find(b"<main ") : page.rfind(b"</main>") + len(b"</main>")]
    if not main.startswith(b"<main "):
        return
    page = page[page.find(b"<title>") : page.find(b"</title>") + len(b"</title>")] + main
    response.set_data(page)
    # Tokens differ each time; a page that is open for long needs new ones before they expire.
    told = page.replace(g.get("form_token", "\0").encode(), b"") + str(int(time.time()) // 3600).encode()
    tag = hashlib.sha256(told).hexdigest()[:32]
    if response.status_code == OK and request.method == "GET" and request.if_none_match.contains_weak(tag):
        response.status_code = NOT_MODIFIED
        response.set_data(b"")
    response.set_etag(tag, weak=True)


def _compress(response: Response) -> None:
    """Compress a page, but for other sites: they could guess what it contains from its size (BREACH)."""
    response.vary.update(("Accept-Encoding", "HX-Request"))
    is_own = request.headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")
    page = response.get_data()
    if is_own and len(page) >= COMPRESSED and request.accept_encodings["gzip"] > 0:
        response.set_data(gzip.compress(page, COMPRESSION, mtime=0))
        response.headers["Content-Encoding"] = "gzip"


def _refuse(error: Exception) -> tuple[str, int] | Response:
    if isinstance(error, LoginRequired):
        login = Response("Name and password required.\n", 401, mimetype="text/plain")
        login.headers["WWW-Authenticate"] = 'Basic realm="redis_queue", charset="UTF-8"'
        return login
    if isinstance(request.routing_exception, BadRequest):
        # Without a valid host name there are no addresses for the links of a page.
        return Response("Invalid host name.\n", 400, mimetype="text/plain")
    code, name, text = _described(error)
    return render_template("error.html", code=code, name=name, text=text), code


def _described(error: Exception) -> tuple[int, str, str]:
    if isinstance(error, HTTPException) and not isinstance(error, InternalServerError):
        return error.code or 500, error.name, error.description or ""
    if isinstance(error, InvalidNameError):
        return 404, "Not found", str(error)
    if isinstance(error, InvalidValueError):
        return 400, "Bad request", str(error)
    if isinstance(error, (RedisQueueError, *RedisErrors)):
        return 503, "Redis request failed", hide_secrets(str(error))
    if isinstance(error, OperationalError):
        return 503, "Broker request failed", hide_secrets(str(error))
    current_app.logger.exception("cannot show %s", request.path, extra={"action": "page_failed"})
    return 500, "Internal error", "See the log of the dashboard."
