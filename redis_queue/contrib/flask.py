"""Flask extension: delayed tasks with the application's settings, and the dashboard for its users (extra ``flask``)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Final

from celery import Celery
from flask import Flask, g
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from redis_queue.celery.durable_tasks import DurableTasks
from redis_queue.errors import ConfigurationError
from redis_queue.operate.actions.registry import PERMISSIONS
from redis_queue.web import dashboard
from redis_queue.web.settings import WebOverrides

EXTENSION: Final = "redis_queue"
SETTING: Final = "REDIS_QUEUE_"

Ask = Callable[[], Any]


class FlaskDurableTasks:
    """DurableTasks for the Celery app of a Flask application, *celery* or ``app.extensions["celery"]``.

    Settings ``REDIS_QUEUE_*`` of ``app.config`` become ``redis_queue_*`` of the Celery app; settings of the Celery app
    take precedence. ``FlaskDurableTasks(app)`` and ``FlaskDurableTasks().init_app(app)`` do the same. *delays* and
    *leases* turn parts of :class:`redis_queue.celery.DurableTasks` on or off.

    *dashboard* is the path of the dashboard, such as "/queues". *user* is called within a request context and returns
    the name of the user, or None (or another false value) to refuse. *may* takes a verb and tells whether this user may
    act with it, *may_write* whether the user may act with all; without them the dashboard is read-only. Raises
    ConfigurationError for invalid arguments.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        celery: Celery | None = None,
        delays: bool = True,
        leases: bool = True,
        dashboard: str | None = None,
        user: Ask | None = None,
        may: Callable[[str], Any] | None = None,
        may_write: Ask | None = None,
    ) -> None:
        if may is not None and may_write is not None:
            raise ConfigurationError("may and may_write: must not be given together")
        if dashboard is not None and user is None:
            raise ConfigurationError("dashboard= needs user=: a function that returns the name of the user, or None")
        if dashboard is not None and (not dashboard.startswith("/") or dashboard.rstrip("/") == ""):
            raise ConfigurationError(f"dashboard={dashboard!r}: must be a path such as '/queues'")
        self._celery = celery
        self._parts = {"delays": delays, "leases": leases}
        self._path = dashboard and dashboard.rstrip("/")
        self._user = user
        self._may = may
        self._may_write = may_write
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Install DurableTasks in the Celery app of *app*. Raises ConfigurationError if there is none."""
        celery = self._celery or app.extensions.get("celery")
        if not isinstance(celery, Celery):
            raise ConfigurationError(
                "no Celery app: set app.extensions['celery'] first, or use FlaskDurableTasks(celery=...)"
            )
        options = {name.lower(): value for name, value in app.config.items() if name.startswith(SETTING)}
        # Only get() adds the namespace to names; None may be a set value.
        missing = object()
        celery.conf.update(
            {name: value for name, value in options.items() if celery.conf.get(name, missing) is missing}
        )
        app.extensions[EXTENSION] = DurableTasks(celery, **self._parts)
        if self._path is not None:
            self._mount(app, celery, self._path)

    def _mount(self, app: Flask, celery: Celery, path: str) -> None:
        def ask(function: Ask, environment: Mapping[str, object]) -> Any:
            # A request context as in a view, with session and login. Without the form, which can be read only once: the
            # dashboard needs it.
            outside = str(environment.get("SCRIPT_NAME", "")).removesuffix(path)
            changes = {"SCRIPT_NAME": outside, "PATH_INFO": path, "CONTENT_LENGTH": "0", "wsgi.input": BytesIO()}
            with app.request_context({**environment, **changes}):
                return function()

        def identify(environment: Mapping[str, object]) -> str | None:
            # "current_user.is_authenticated and current_user.name" is False without a login.
            name = ask(self._user, environment) if self._user is not None else None
            return str(name) if name else None

        options: WebOverrides = {"identify": identify, "secret_key": _secret(app)}
        options["allow_write"] = self._may is not None or self._may_write is not None
        if (may := self._may) is not None:

            def permitted(environment: Mapping[str, object], verb: str) -> bool:
                # All verbs in one request context: the function often looks up the user.
                if "verbs" not in g:
                    g.verbs = ask(lambda: {verb for verb in PERMISSIONS if may(verb)}, environment)
                return verb in g.verbs

            options["may"] = permitted
        elif (may_write := self._may_write) is not None:
            options["may_write"] = lambda environment: bool(ask(may_write, environment))
        inner = dashboard(celery, **options)
        app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {path: inner})  # type: ignore[method-assign]


def _secret(app: Flask) -> str | None:
    key = app.config.get("SECRET_KEY")
    if key is None:
        return None
    # Hashed, since Flask accepts short keys such as "dev".
    return hmac.new(key.encode() if isinstance(key, str) else key, SETTING.encode(), hashlib.sha256).hexdigest()
