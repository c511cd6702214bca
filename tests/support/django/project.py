"""Django in the process of the tests, configured once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, _state

SETTINGS = "examples.shop.settings"


def environment(redis_url: str, database: Path | str) -> dict[str, str]:
    """Return what the settings of the shop read."""
    # kombu knows a unix socket by another name than redis-py.
    broker = redis_url.replace("unix://", "redis+socket://").partition("?")[0]
    return {
        "DJANGO_SETTINGS_MODULE": SETTINGS,
        "DATABASE": str(database),
        "CELERY_BROKER_URL": broker,
        "REDIS_QUEUE_URL": redis_url,
        "PAY_WITHIN": "60",
    }


def configure(redis_url: str, folder: Path) -> Path:
    """Set Django up with the settings of the shop, make its tables, and return its database."""
    database = folder / "shop.sqlite3"
    # Neither may the shop's app become that of other tests, nor its environment theirs.
    before = _state.default_app
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment(redis_url, database).items():
            patch.setenv(name, value)
        import django
        from django.conf import settings
        from django.core.management import call_command

        django.setup()
        settings.REDIS_QUEUE = {"CELERY_APP": "examples.shop.celery:app"}
    _state.set_default_app(before)
    _state._tls.current_app = None
    call_command("migrate", verbosity=0)
    return database


@contextmanager
def served_by(database: str) -> Iterator[None]:
    """Make *database*, as the settings of the shop name it, the default one of this process."""
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
    """Return what is in the outbox."""
    from redis_queue.contrib.django.outbox.models import Call

    return list(Call.objects.all())


def write(**fields: Any) -> None:
    """Leave a call in the outbox, as a process that died right behind its commit."""
    from redis_queue.contrib.django.outbox.models import Call

    Call.objects.create(**{"task": "shop.remind", "payload": {}, "due_at": DUE_AT, **fields})


DUE_AT = datetime(2030, 1, 1, tzinfo=timezone.utc)


def use_app(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the outbox use *app* instead of the one of the shop."""
    for module in ("transfer", "calls"):
        monkeypatch.setattr(f"redis_queue.contrib.django.outbox.{module}.celery_app", lambda: app)
