"""Settings without which leases protect no task, for apps that say nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from celery import Celery

ATTRIBUTE: Final = "task_leases"
"""Under this name an app has its TaskLeases."""

SAFE: Final = {
    "task_acks_late": "CELERY_ACKS_LATE",
    "task_reject_on_worker_lost": "CELERY_REJECT_ON_WORKER_LOST",
}
"""Each setting with its old name. Early acknowledgement settles a task before it starts; without the second setting the
pool drops the task of a child that was killed."""


def prefer_safe_settings(app: Celery) -> None:
    """Make True the default of each of SAFE in *app*; whatever the app sets itself, before or after, is left alone."""
    # Sent whenever the configuration is read, which may be more than once.
    app.on_after_configure.connect(_fill, weak=False, dispatch_uid="redis_queue_safe_settings")
    if app.configured:
        _fill(source=app.conf)


def _fill(source: Any, **_: Any) -> None:
    # The last map holds Celery's defaults, of this app alone. What add_defaults() takes goes before a module or
    # an object that the app is configured from.
    defaults = source.maps[-1]
    for name, old in SAFE.items():
        # Of an app that is configured by old names, the defaults have them as well.
        defaults[old if old in defaults else name] = True


def set_for(app: Celery) -> list[str]:
    """Return those of SAFE that are on because *app* says nothing else."""
    return [name for name in SAFE if app.conf[name] and not app.conf.value_set_for(name)]


def turned_off(app: Celery) -> list[str]:
    """Return those of SAFE that *app* has turned off."""
    return [name for name in SAFE if not app.conf[name]]
