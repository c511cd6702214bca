"""A task class with its own ``apply_async``: a header names the tenant, and each call is noted by another message."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import celery_singleton
from celery import Celery, Task
from celery_singleton import Singleton

AUDIT = "shop.audit"
HEADER = "tenant"
CURRENT: ContextVar[str] = ContextVar("tenant", default="none")


class TenantTask(Task):  # type: ignore[misc]
    """A task that runs for the tenant of its caller."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        self.app.send_task(
            AUDIT, [self.name, options.get("task_id")], queue=f"{self.app.conf.task_default_queue}-audit"
        )
        headers = {**(options.pop("headers", None) or {}), HEADER: CURRENT.get()}
        return super().apply_async(args, kwargs, headers=headers, **options)


class TenantSingleton(TenantTask, Singleton):  # type: ignore[misc]
    """One that is also not sent while an equal call waits or runs."""

    abstract = True


def work(*args: Any, **kwargs: Any) -> None:
    """Do the work of a task."""


def single_task(app: Celery, url: str, name: str = "shop.once", base: type[Any] = TenantSingleton) -> Any:
    """Return a task of *app* whose locks are in the Redis at *url*."""
    # The library keeps its first connection for all apps of a process.
    celery_singleton.backends._backend = None
    app.conf.singleton_backend_url = url
    return app.task(base=base, name=name, shared=False)(work)
