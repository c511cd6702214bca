"""The dashboard as a Django view for staff users."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from io import BytesIO
from typing import Any, Final

from django.conf import settings
from django.contrib.admin.views.decorators import staff_member_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import resolve_url
from django.urls import NoReverseMatch, reverse
from django.utils.crypto import salted_hmac
from django.utils.functional import lazy
from django.views.decorators.csrf import csrf_exempt
from werkzeug.test import create_environ, run_wsgi_app

from redis_queue.contrib.django import celery_app, option
from redis_queue.contrib.django.models import codename
from redis_queue.operate.actions.registry import PERMISSIONS
from redis_queue.web import dashboard

VIEW: Final = "redis_queue.view_dashboard"
CHANGE: Final = "redis_queue.change_dashboard"

_USER: Final = "redis_queue.user"
_VERBS: Final = "redis_queue.verbs"


def _login_page() -> str:
    # Some projects do not use Django's admin.
    try:
        return str(reverse("admin:login"))
    except NoReverseMatch:
        return str(resolve_url(settings.LOGIN_URL))


# The forms of the dashboard have their own tokens.
@csrf_exempt
@staff_member_required(login_url=lazy(_login_page, str)())
def dashboard_view(request: HttpRequest, path: str) -> HttpResponse:
    """Show the dashboard to staff users with ``view_dashboard``.

    Actions need ``change_dashboard``, or the permission of their verb, such as ``retry_dashboard``.
    """
    user: Any = request.user
    if not user.has_perm(VIEW):
        raise PermissionDenied(f"The dashboard needs the permission {VIEW}.")
    mounted = request.path[: len(request.path) - len(path)] if path else request.path
    if path.startswith("/") and not mounted.endswith("/"):
        # With path("queues", include(...)), without a slash.
        mounted, path = f"{mounted}/", path[1:]
    if not mounted.endswith("/"):
        return HttpResponseRedirect(f"{mounted}/")
    return _answer(_environment(request, mounted.rstrip("/"), f"/{path}", user))


@cache
def _dashboard() -> Any:
    return dashboard(
        celery_app(),
        allow_write=True,
        identify=lambda environment: str(environment[_USER]),
        may=_may,
        secret_key=salted_hmac("redis_queue.contrib.django", "cookies", algorithm="sha256").hexdigest(),
        label=option("LABEL") or "",
    )


def _environment(request: HttpRequest, mounted: str, path: str, user: Any) -> dict[str, Any]:
    texts = {name: value for name, value in request.META.items() if isinstance(value, str)}
    return {
        # ASGI requests have no values such as wsgi.errors, which Flask's logging needs.
        **create_environ(),
        **texts,
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": _wsgi(mounted),
        "PATH_INFO": _wsgi(path),
        "CONTENT_LENGTH": str(len(request.body)),
        "wsgi.url_scheme": request.scheme,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.input": BytesIO(request.body),
        _USER: user.get_username(),
        _VERBS: _verbs(user),
    }


def _verbs(user: Any) -> Collection[str]:
    if user.has_perm(CHANGE):
        return PERMISSIONS
    return {verb for verb in PERMISSIONS if user.has_perm(f"redis_queue.{codename(verb)}")}


def _may(environment: Mapping[str, Any], verb: str) -> bool:
    return verb in environment[_VERBS]


def _wsgi(text: str) -> str:
    # WSGI strings hold one byte of UTF-8 per character.
    return text.encode().decode("latin-1")


def _answer(environment: dict[str, Any]) -> HttpResponse:
    parts, status, headers = run_wsgi_app(_dashboard(), environment, buffered=True)
    response = HttpResponse(b"".join(parts), status=int(status.partition(" ")[0]))
    del response["Content-Type"]
    for name, value in headers:
        if name.lower() == "set-cookie":
            response.cookies.load(value)
        else:
            response[name] = value
    return response
