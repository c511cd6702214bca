"""Find a Celery app by its name."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from celery import Celery


def find_app(name: str) -> Any:
    """Return the app ``package.module:attribute``; without an attribute, the module's ``app`` or ``celery``.

    Raises ImportError or AttributeError for an unknown name, TypeError for another kind of object.
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
