"""Per-application state of the dashboard: access, audit log, history of runs, findings of the doctor."""

from __future__ import annotations

from typing import Final

from flask import current_app

from redis_queue.monitor.history import History
from redis_queue.monitor.workers import Workers
from redis_queue.operate.access import Access
from redis_queue.operate.audit import Audit
from redis_queue.web.health import Health

EXTENSION: Final = "redis_queue"
"""Key of the context in ``app.extensions``."""


class Context:
    """Access to the queues of one dashboard, its audit log, the history of runs, and the findings of the doctor."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.catalog = access.catalog
        self.inspector = access.inspector
        self.audit = Audit(access.catalog.client, access.catalog.prefix)
        self.history = History(access.catalog.client, access.catalog.prefix, access.catalog.clock)
        self.workers = Workers(access.catalog.client, access.catalog.prefix, access.catalog.clock)
        self.health = Health(access)


def context() -> Context:
    """Return the context of the application that serves this request."""
    found: Context = current_app.extensions[EXTENSION]
    return found
