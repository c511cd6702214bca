"""Context: what every page works with."""

from __future__ import annotations

from typing import Final

from flask import current_app

from redis_queue.operate.access import Access
from redis_queue.operate.audit import Audit

EXTENSION: Final = "redis_queue"


class Context:
    """The queues that are shown, and the list of what was done to them."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.inspector = access.inspector
        self.audit = Audit(access.inspector.client, access.inspector.prefix)


def context() -> Context:
    """Return that of the application which serves this request."""
    found: Context = current_app.extensions[EXTENSION]
    return found
