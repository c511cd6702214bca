"""Per-application state of the dashboard: access and audit log."""

from __future__ import annotations

from typing import Final

from flask import current_app

from redis_queue.operate.access import Access
from redis_queue.operate.audit import Audit

EXTENSION: Final = "redis_queue"
"""Key of the context in ``app.extensions``."""


class Context:
    """Access to the queues of one dashboard, and its audit log."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.catalog = access.catalog
        self.inspector = access.inspector
        self.audit = Audit(access.catalog.client, access.catalog.prefix)


def context() -> Context:
    """Return the context of the application that serves this request."""
    found: Context = current_app.extensions[EXTENSION]
    return found
