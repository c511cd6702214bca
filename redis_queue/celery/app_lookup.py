"""Find the app that a command line names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery.app.utils import find_app

from redis_queue.errors import ConfigurationError
from redis_queue.store.redis_errors import redact

if TYPE_CHECKING:
    from celery import Celery


def load_app(name: str) -> Celery:
    """Return the app that ``celery -A name`` would find. It imports, and so runs, the module.

    Raises ConfigurationError for any error there.
    """
    try:
        app: Celery = find_app(name)
    except Exception as error:
        raise ConfigurationError(
            f"cannot load the app {name!r}: {type(error).__name__}: {redact(str(error))}"
        ) from error
    return app
