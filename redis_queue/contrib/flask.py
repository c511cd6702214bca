"""redis_queue in a Flask application: its settings, and the dashboard behind its own users (extra ``flask``)."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Final

from celery import Celery
from flask import Flask
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from redis_queue.celery.delayed_tasks import DelayedTasks
from redis_queue.errors import ConfigurationError
from redis_queue.web import dashboard

EXTENSION: Final = "redis_queue"
SETTING: Final = "REDIS_QUEUE_"

Ask = Callable[[], Any]


class RedisQueue:
    """Delayed tasks of the Celery app that a Flask application has as ``app.extensions["celery"]``.

    ``REDIS_QUEUE_*`` of ``app.config`` become ``redis_queue_*`` of the Celery app, unless it says them itself.
    ``RedisQueue(app)`` and ``RedisQueue().init_app(app)`` do the same. With *dashboard* the dashboard is at that path:
    *user* is called within a request context and returns the name of who is logged in, or None (or anything empty or
    false) to refuse; *may_write* tells whether this one may act.
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        celery: Celery | None = None,
        dashboard: str | None = None,
        user: Ask | None = None,
        may_write: Ask | None = None,
    ) -> None:
        if dashboard is not None and user is None:
            raise ConfigurationError("dashboard= needs user=: a function that returns who is logged in, or None")
        if dashboard is not None and (not dashboard.startswith("/") or dashboard.rstrip("/") == ""):
            raise ConfigurationError(f"dashboard={dashboard!r}: give a path such as '/queues'")
        self._celery = celery
        self._path = dashboard and dashboard.rstrip("/")
        self._user = user
        self._may_write = may_write
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Install DelayedTasks in the Celery app of *app*; raises ConfigurationError if there is none."""
        celery = self._celery or app.extensions.get("celery")
        if not isinstance(celery, Celery):
            raise ConfigurationError("make the Celery app first: app.extensions['celery'], or RedisQueue(celery=...)")
        given = {name.lower(): value for name, value in app.config.items() if name.startswith(SETTING)}
        # Only get() knows what a namespace puts before the names; None may be meant.
        missing = object()
        celery.conf.update({name: value for name, value in given.items() if celery.conf.get(name, missing) is missing})
        app.extensions[EXTENSION] = DelayedTasks(celery)
        if self._path is not None:
            self._mount(app, celery, self._path)

    def _mount(self, app: Flask, celery: Celery, path: str) -> None:
        def ask(function: Ask | None, environment: Mapping[str, object]) -> Any:
            # As in a view: request, session and the login of the application are there. The form is the dashboard's:
            # it can be read only once.
            outside = str(environment.get("SCRIPT_NAME", "")).removesuffix(path)
            asked = {"SCRIPT_NAME": outside, "PATH_INFO": path, "CONTENT_LENGTH": "0", "wsgi.input": BytesIO()}
            with app.request_context({**environment, **asked}):
                return function() if function is not None else None

        def identify(environment: Mapping[str, object]) -> str | None:
            # False is what "current_user.is_authenticated and current_user.name" says of nobody.
            name = ask(self._user, environment)
            return str(name) if name else None

        inner = dashboard(
            celery,
            allow_write=self._may_write is not None,
            identify=identify,
            may_write=lambda environment: bool(ask(self._may_write, environment)),
            secret_key=_secret(app),
        )
        app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {path: inner})  # type: ignore[method-assign]


def _secret(app: Flask) -> str | None:
    key = app.config.get("SECRET_KEY")
    if key is None:
        return None
    # How long a key has to be is between the application and Flask, which takes "dev".
    return hmac.new(key.encode() if isinstance(key, str) else key, SETTING.encode(), hashlib.sha256).hexdigest()
