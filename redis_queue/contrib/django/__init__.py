"""The Django app of redis_queue: system checks, ``manage.py redis_queue`` and the dashboard (extra ``django``).

Its setting ``REDIS_QUEUE``, and the Celery app of the project.
"""

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

TASK_HEADER: Final = "redis_queue_django"
"""Header of a Django task with what Celery does not know: alias, queue, priority, run_after and enqueued_at."""

CELERY_APP: Final = "REDIS_QUEUE['CELERY_APP']"


def option(name: str) -> Any:
    """Return ``REDIS_QUEUE[name]`` of the settings, or None. Raises ConfigurationError for unknown names."""
    options = getattr(settings, "REDIS_QUEUE", {})
    if not isinstance(options, Mapping):
        raise ConfigurationError(f"REDIS_QUEUE={options!r}: must be a dict with {' and '.join(KNOWN)}")
    for key in options:
        if key not in KNOWN:
            raise ConfigurationError(f"REDIS_QUEUE[{key!r}]: must be one of {', '.join(KNOWN)}")
    return options.get(name)


def celery_app() -> Celery:
    """Return the app of ``REDIS_QUEUE["CELERY_APP"]`` (such as "shop.celery:app"), by default the current app.

    Raises ConfigurationError if the setting does not name an app.
    """
    name = option("CELERY_APP")
    if name is None:
        return current_app._get_current_object()
    module, _, attribute = str(name).partition(":")
    try:
        # find_app would search for a module if the attribute is missing, and report the wrong name.
        found: Any = find_app(module) if not attribute else getattr(import_from_cwd(module), attribute)
    except AttributeError:
        raise ConfigurationError(f"{CELERY_APP}={name!r}: {_missing(module, attribute)}") from None
    except (ImportError, ValueError) as error:
        raise ConfigurationError(f"{CELERY_APP}={name!r}: {error}") from error
    if not isinstance(found, Celery):
        raise ConfigurationError(f"{CELERY_APP}={name!r}: expected a Celery app, got {type(found).__name__}")
    return found


def _missing(module: str, attribute: str) -> str:
    known = [key for key, value in vars(sys.modules.get(module, sys)).items() if isinstance(value, Celery)]
    problem = f"module {module!r} has no {attribute!r}" if attribute else f"{module!r} has no Celery app"
    return f"{problem}; its Celery app is {module + ':' + known[0]!r}" if known else problem
