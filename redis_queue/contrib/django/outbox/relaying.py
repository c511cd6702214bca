"""The relay: what is committed goes from the outbox into the DelayQueue, at least once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import Error, connections, router, transaction

from redis_queue.batches import CHUNK, check_limit
from redis_queue.celery.delayed import DelayedTasks
from redis_queue.contrib.django.outbox.models import Call
from redis_queue.contrib.django.project import celery_app
from redis_queue.delay_model import Push
from redis_queue.errors import InvalidValueError, RedisQueueError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Relayed:
    """What one relay did: *moved* wait in the DelayQueue, *failed* stay in the outbox with their error."""

    moved: int = 0
    failed: int = 0

    def __add__(self, other: Relayed) -> Relayed:
        return Relayed(self.moved + other.moved, self.failed + other.failed)


def relay(limit: int = CHUNK, *, using: str | None = None) -> Relayed:
    """Move up to *limit* calls, the oldest first; any number may run at once.

    Each is stored under its task id before its row goes: a relay that dies in between stores it once more, which
    changes nothing while it waits. Raises StoreError if Redis cannot take them; the rows stay. Raises RuntimeError in
    an open transaction, whose rows may yet be rolled back.
    """
    check_limit(limit, CHUNK)
    using = using or router.db_for_write(Call)
    with transaction.atomic(using=using, durable=True):
        rows = _take(limit, using)
        if not rows:
            return Relayed()
        good = _stored(rows)
        Call.objects.using(using).filter(pk__in=[row.pk for row in good]).delete()
        return Relayed(len(good), len(rows) - len(good))


def relay_quietly(*, calls: int = 1, using: str | None = None) -> None:
    """Relay now as many as *calls*; what fails is left to the next relay."""
    try:
        for _ in range(0, calls, CHUNK):
            relay(CHUNK, using=using)
    # The caller's transaction is committed: nothing that happens here may look as if it were not.
    except (RedisQueueError, Error) as error:
        logger.warning("not relayed yet: %s", error, extra={"action": "relay_away"})


def _take(limit: int, using: str) -> list[Any]:
    """Return rows that nobody can cancel before this transaction ends."""
    rows = Call.objects.using(using).filter(failures=0)
    features: Any = connections[using].features
    if features.has_select_for_update:
        rows = rows.select_for_update(skip_locked=features.has_select_for_update_skip_locked)
    else:
        # SQLite locks as a whole, with the first write.
        Call.objects.using(using).filter(pk=-1).update(failures=0)
    return list(rows[:limit])


def _stored(rows: Sequence[Any]) -> list[Any]:
    """Store *rows*; return those that need not stay."""
    queue = DelayedTasks.of(celery_app()).queue
    good, pushes = [], []
    for row in rows:
        push = Push(row.payload, due_at=row.due_at, id=row.task_id)
        try:
            queue.check(push)
        except InvalidValueError as error:
            logger.exception("cannot be relayed", extra={"action": "relay_refused", "task_id": row.task_id})
            row.failures, row.error = row.failures + 1, str(error)
            row.save(update_fields=["failures", "error"])
            continue
        good.append(row)
        pushes.append(push)
    queue.keep_many(pushes)
    return good
