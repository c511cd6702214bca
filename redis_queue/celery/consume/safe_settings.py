"""Safe defaults with leases: late acknowledgement, and redelivery when a child of the pool dies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from celery import Celery

ATTRIBUTE: Final = "task_leases"
"""Attribute of an app that holds its TaskLeases."""

SAFE: Final = {
    "task_acks_late": "CELERY_ACKS_LATE",
    "task_reject_on_worker_lost": "CELERY_REJECT_ON_WORKER_LOST",
}
"""Each setting with its old name. With early acknowledgement a task is settled before it starts; without the second
setting the pool drops the task of a killed child."""


def prefer_safe_settings(app: Celery) -> None:
    """Turn on each setting of SAFE by default; values that *app* sets, before or after, are kept."""
    # The signal is sent whenever the configuration is read, which may be more than once.
    app.on_after_configure.connect(_fill, weak=False, dispatch_uid="redis_queue_safe_settings")
    if app.configured:
        _fill(source=app.conf)


def _fill(source: Any, **_: Any) -> None:
    # The last map holds Celery's defaults, of this app alone. Values of add_defaults() would override the module or
    # object from which the app is configured.
    defaults = source.maps[-1]
    for name, old in SAFE.items():
        # An app that is configured by old names has them in its defaults as well.
        defaults[old if old in defaults else name] = True


def active_defaults(app: Celery) -> list[str]:
    """Return the settings of SAFE that are on by default, not set by *app*."""
    return [name for name in SAFE if app.conf[name] and not app.conf.value_set_for(name)]


def disabled_settings(app: Celery) -> list[str]:
    """Return the settings of SAFE that *app* has turned off."""
    return [name for name in SAFE if not app.conf[name]]
