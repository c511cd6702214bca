"""The doctor's check for Celery queues with messages that no worker consumes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

from redis_queue.basics.options import nearest
from redis_queue.doctor import Finding
from redis_queue.doctor.finding import CHECK_BROKER, first, warning
from redis_queue.operate.access import Access

ANSWER_WITHIN: Final = 1.0
"""Seconds to wait for answers of workers."""

SIMILAR: Final = 0.7
"""Least similarity of a consumed queue that the advice names."""


def unread_queues(access: Access) -> Iterator[Finding]:
    """Check that a worker consumes each Celery queue with messages."""
    if access.celery_queues is None:
        return
    overview = access.celery_queues.overview()
    if overview.error:
        yield warning(f"could not be checked: {overview.error}", CHECK_BROKER)
        return
    # The check of workers of flows reports the messages that wait for a place.
    unread = [row for row in overview.rows if row.is_unread and row.listed]
    if not unread:
        return
    # Workers without the extension do not report what they consume.
    consumed = _consumed(access.app) | {row.name for row in overview.rows if row.consumers}
    unread = [row for row in unread if row.name not in consumed]

    def findings() -> Iterator[Finding]:
        for row in unread:
            waits = "1 message waits" if row.listed == 1 else f"{row.listed:,} messages wait"
            near = nearest(row.name, consumed, similarity=SIMILAR)
            hint = f"; workers consume {near[0]}, which has a similar name" if near else ""
            yield warning(
                f"Celery queue {row.name}: {waits}, and no worker consumes it{hint}",
                f"start a worker with -Q {row.name}, or move them: redis-queue -A APP celery-queue {row.name} move "
                f"--all --to {near[0] if near else 'QUEUE'}",
            )

    yield from first(findings(), len(unread), "Celery queues are not consumed", "redis-queue queues")


def _consumed(app: Any) -> set[str]:
    # Errors of the broker, of any type, are not checked here.
    with contextlib.suppress(Exception):
        answers = app.control.inspect(timeout=ANSWER_WITHIN).active_queues() or {}
        return {str(queue.get("name")) for queues in answers.values() for queue in queues}
    return set()
