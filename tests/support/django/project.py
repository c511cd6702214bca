"""Django, configured once for the test process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, _state

SETTINGS = "examples.shop.settings"


def environment(redis_url: str, database: Path | str) -> dict[str, str]:
    """Return the environment variables that the settings of the shop read."""
    # kombu and redis-py use different URL schemes for a unix socket.
    broker = redis_url.replace("unix://", "redis+socket://").partition("?")[0]
    return {
        "DJANGO_SETTINGS_MODULE": SETTINGS,
        "DATABASE": str(database),
        "CELERY_BROKER_URL": broker,
        "REDIS_QUEUE_URL": redis_url,
        "PAY_WITHIN": "60",
    }


def configure(redis_url: str, folder: Path) -> Path:
    """Configure Django with the settings of the shop, create its tables and return its database."""
    database = folder / "shop.sqlite3"
    # Keep the app of the shop and its environment variables out of other tests.
    before = _state.default_app
    with pytest.MonkeyPatch.context() as patch:
        # Django sets the time zone of the process to its own.
        for name, value in {**environment(redis_url, database), "TZ": "UTC"}.items():
            patch.setenv(name, value)
        import django
        from django.conf import settings
        from django.core.management import call_command

        django.setup()
        settings.REDIS_QUEUE = {"CELERY_APP": "examples.shop.celery:app"}
    time.tzset()
    _state.set_default_app(before)
    _state._tls.current_app = None
    call_command("migrate", verbosity=0)
    return database


@contextmanager
def served_by(database: str) -> Iterator[None]:
    """Make *database*, given as in the settings of the shop, the default database of this process."""
    from django.contrib.contenttypes.models import ContentType
    from django.db import connections

    from examples.shop import settings

    def use(options: dict[str, object]) -> None:
        connections["default"].close()
        del connections["default"]
        connections.settings["default"] = options
        ContentType.objects.clear_cache()

    before = connections.settings["default"]
    use({**before, **settings.database(database)})
    try:
        yield
    finally:
        use(before)


def rows() -> list[Any]:
    from redis_queue.contrib.django.outbox.models import Call

    return list(Call.objects.all())


def write(**fields: Any) -> None:
    """Leave a row in the outbox, like a process that died right after its commit."""
    from redis_queue.contrib.django.outbox.models import Call

    Call.objects.create(**{"task": "shop.remind", "payload": {}, "due_at": DUE_AT, **fields})


DUE_AT = datetime(2030, 1, 1, tzinfo=timezone.utc)


def use_redis(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the outbox use an app with the Redis *url*, not connected to it yet, instead of the app of the shop."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.redis_queue_url = url
    for module in ("transfer", "calls"):
        monkeypatch.setattr(f"redis_queue.contrib.django.outbox.{module}.celery_app", lambda: app)
