"""A Celery app by its name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from celery import Celery


def app_named(name: str) -> Any:
    """Return the app ``package.module:attribute``; ``celery`` or ``app`` where only a module is named.

    Raises ImportError, AttributeError for a name that is not there, TypeError for what is no Celery app.
    """
    place, _, attribute = name.partition(":")
    module = import_module(place)
    names = attribute.split(".") if attribute else [next((n for n in ("app", "celery") if _is_app(module, n)), "app")]
    found: Any = module
    for part in names:
        found = getattr(found, part)
    if not isinstance(found, Celery):
        raise TypeError(f"{'.'.join(names)} of {place} is a {type(found).__name__}, not a Celery app")
    return found


def _is_app(module: Any, name: str) -> bool:
    return isinstance(getattr(module, name, None), Celery)
