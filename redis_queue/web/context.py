"""Per-application state of the dashboard: access, reports of workers, audit log, findings of the doctor."""

from __future__ import annotations

from typing import Final

from flask import current_app

from redis_queue.operate.access import Access
from redis_queue.operate.audit import Audit
from redis_queue.web.health import Health

EXTENSION: Final = "redis_queue"
"""Key of the context in ``app.extensions``."""


class Context:
    """Access to the queues of one dashboard, the reports of workers, its audit log, and the findings of the doctor."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.catalog = access.catalog
        self.inspector = access.inspector
        self.audit = Audit(access.catalog.client, access.catalog.prefix)
        self.monitor = access.monitor
        self.health = Health(access)


def context() -> Context:
    """Return the context of the application that serves this request."""
    found: Context = current_app.extensions[EXTENSION]
    return found
