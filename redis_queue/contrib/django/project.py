"""The Celery app of this Django project."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Final

from celery import Celery, current_app
from celery.app.utils import find_app
from celery.utils.imports import import_from_cwd
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
    module, _, attribute = str(name).partition(":")
    try:
        # find_app looks for a module of that name where there is no such attribute, and says that it found none.
        found: Any = find_app(module) if not attribute else getattr(import_from_cwd(module), attribute)
    except AttributeError:
        raise ConfigurationError(f"{CELERY_APP}={name!r}: {_missing(module, attribute)}") from None
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"{CELERY_APP}={name!r}: {error}") from error
    if not isinstance(found, Celery):
        raise ConfigurationError(f"{CELERY_APP}={name!r} is not a Celery app but of type {type(found).__name__}")
    return found


def _missing(module: str, attribute: str) -> str:
    known = [key for key, value in vars(sys.modules.get(module, sys)).items() if isinstance(value, Celery)]
    wanted = f"module {module!r} has no {attribute!r}" if attribute else f"{module!r} has no Celery app"
    return f"{wanted}; its Celery app is {module + ':' + known[0]!r}" if known else wanted
