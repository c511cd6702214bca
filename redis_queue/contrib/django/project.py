"""The Celery app of this Django project."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from celery import Celery, current_app
from celery.app.utils import find_app
from django.conf import settings

from redis_queue.errors import ConfigurationError

KNOWN: Final = ("CELERY_APP", "LABEL")

CELERY_APP: Final = "REDIS_QUEUE['CELERY_APP']"


def option(name: str) -> Any:
    """Return what the setting ``REDIS_QUEUE`` says of *name*, or None. Raises ConfigurationError for unknown names."""
    given = getattr(settings, "REDIS_QUEUE", {})
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"REDIS_QUEUE={given!r}: give a dict with {' and '.join(KNOWN)}")
    for key in given:
        if key not in KNOWN:
            raise ConfigurationError(f"REDIS_QUEUE[{key!r}] is unknown; known are {', '.join(KNOWN)}")
    return given.get(name)


def celery_app() -> Celery:
    """Return the app that ``REDIS_QUEUE["CELERY_APP"]`` names (such as "shop.celery:app"), by default the current one.

    Raises ConfigurationError if there is none.
    """
    name = option("CELERY_APP")
    if name is None:
        return current_app._get_current_object()
    try:
        found: Any = find_app(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{CELERY_APP}={name!r}: {error}") from error
    if not isinstance(found, Celery):
        raise ConfigurationError(f"{CELERY_APP}={name!r} is no Celery app")
    return found
