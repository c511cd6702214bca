"""Desk: what every page works with."""

from __future__ import annotations

from typing import Final

from flask import current_app

from redis_queue.operate.access import Access
from redis_queue.operate.audit import Audit

DESK: Final = "redis_queue"


class Desk:
    """The queues that are shown, and the list of what was done to them."""

    def __init__(self, access: Access) -> None:
        self.access = access
        self.inspector = access.inspector
        self.audit = Audit(access.inspector.client, access.inspector.prefix)


def desk() -> Desk:
    """Return that of the application which serves this request."""
    found: Desk = current_app.extensions[DESK]
    return found
