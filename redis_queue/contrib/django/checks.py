"""System checks for ``manage.py check``: invalid settings, wrong flows, missing DurableTasks. Connects to no server."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Final

from celery import Celery
from django.conf import settings
from django.core import checks

from redis_queue.basics.options import nearest
from redis_queue.celery.admission.sender import uses_admission
from redis_queue.celery.settings import NAMESPACE, CelerySettings
from redis_queue.celery.store import Store
from redis_queue.celery.stored_tasks import delayed_of
from redis_queue.celery.worker import check_flows, unknown_flow_queues
from redis_queue.contrib.django import CELERY_APP, celery_app
from redis_queue.errors import ConfigurationError, InvalidValueError, RedisQueueError

SKIP_CHECKS: Final = "CELERY_SKIP_CHECKS"
"""Environment variable that tells Celery not to run Django's checks before it imports the tasks."""

_SETTING: Final = re.compile(rf"\b{NAMESPACE}(\w+)")


def _in_django(app: Celery, name: str) -> str:
    """Return the name of the setting *name* in Django's settings, with the namespace of *app*."""
    return f"{app.conf.prefix or 'CELERY_'}{NAMESPACE}{name}".upper()


def _ignored(app: Celery) -> Iterator[checks.CheckMessage]:
    """Yield warnings about Django settings that look like ours but lack the namespace of *app*."""
    known = {f"{NAMESPACE}{item.name}".upper(): item.name for item in fields(CelerySettings)}
    for name in dir(settings):
        if not name.startswith(NAMESPACE.upper()):
            continue
        near = [name, *nearest(name, known, similarity=0.8)]
        meant = next((known[one] for one in near if one in known), None)
        if meant is not None:
            text = f"The setting {name} is not read."
            yield checks.Warning(text, hint=f"Write {_in_django(app, meant)}.", id="redis_queue.W003")


def _wrong_flows(app: Celery) -> Iterator[checks.CheckMessage]:
    """Yield an error for the first flow or unique task that would stop a worker.

    The tasks are imported only if the app has flows or unique tasks, in its settings or at the tasks imported so far.
    """
    # Celery runs the checks when a worker starts, before it imports the tasks; then the worker checks the flows.
    if app.loader.worker_initialized or not (app.finalized or app.autofinalize):
        return
    try:
        with _nothing_kept(app):
            has_flows = uses_admission(app)
        if has_flows:
            with _skipped_checks():
                app.loader.import_default_modules()
                with _nothing_kept(app):
                    check_flows(app)
                    for text in unknown_flow_queues(app):
                        hint = "Workers with -Q may consume it."
                        yield checks.Warning(_named_in_django(app, text), hint=hint, id="redis_queue.W005")
    except (ConfigurationError, InvalidValueError) as error:
        hint = "A worker does not start with it; see docs/flow.md and docs/unique.md."
        yield checks.Error(_named_in_django(app, error), hint=hint, id="redis_queue.E003")
    except Exception as error:  # noqa: BLE001 - tasks are code of the project, and other commands may not need them
        yield checks.Warning(
            f"The flows cannot be checked, since the tasks cannot be imported: {type(error).__name__}: {error}",
            hint="A worker does not start without its tasks.",
            id="redis_queue.W004",
        )


@contextmanager
def _skipped_checks() -> Iterator[None]:
    """Keep Celery from running these checks again, each time that it imports the tasks."""
    before = os.environ.get(SKIP_CHECKS)
    os.environ[SKIP_CHECKS] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SKIP_CHECKS]
        else:
            os.environ[SKIP_CHECKS] = before


@contextmanager
def _nothing_kept(app: Celery) -> Iterator[None]:
    """Remove what the extension keeps in *app*: a test may change the settings after the checks."""
    before = set(vars(app))
    try:
        yield
    finally:
        for name in vars(app).keys() - before:
            if name.startswith(NAMESPACE):
                del vars(app)[name]


def _named_in_django(app: Celery, error: RedisQueueError | str) -> str:
    return _SETTING.sub(lambda name: _in_django(app, name[1]), str(error))


def _messages() -> Iterator[checks.CheckMessage]:
    try:
        app = celery_app()
    except RedisQueueError as error:
        hint = "Write REDIS_QUEUE = {'CELERY_APP': 'shop.celery:app'}."
        yield checks.Error(str(error), hint=hint, id="redis_queue.E001")
        return
    if app.main in (None, "default"):
        hint = f"Import the app in the __init__.py of the project, or set {CELERY_APP}."
        yield checks.Warning("The project has no Celery app.", hint=hint, id="redis_queue.W001")
        return
    try:
        Store(app)
    except RedisQueueError as error:
        hint = "The settings are listed in docs/delayed-tasks.md."
        yield checks.Error(_named_in_django(app, error), hint=hint, id="redis_queue.E002")
    else:
        yield from _wrong_flows(app)
    yield from _ignored(app)
    if delayed_of(app) is None:
        text = "The Celery app has no DurableTasks with delays, so delayed tasks wait in the memory of workers."
        hint = "Add DurableTasks(app) after the line that creates the Celery app."
        yield checks.Warning(text, hint=hint, id="redis_queue.W002")


@checks.register("redis_queue")
def check_settings(app_configs: Any = None, **_: Any) -> Iterable[checks.CheckMessage]:
    """Check ``CELERY_REDIS_QUEUE_*``, the Celery app of the project, and its flows and unique tasks."""
    del app_configs
    return list(_messages())
