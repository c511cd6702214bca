"""The relay: what is committed goes from the outbox into the DelayQueue, at least once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple

from django.db import Error, connections, router, transaction
from django.db.models import F, QuerySet

from redis_queue.celery.message.attempt import CALL, call_name
from redis_queue.celery.message.task_call import TaskCall
from redis_queue.contrib.django.outbox.fields import ServerTime
from redis_queue.contrib.django.outbox.models import Call
from redis_queue.contrib.django.outbox.redis_access import (
    COMMIT_TIMEOUT,
    RELAY_TIMEOUT,
    breaker_of,
    check_answers,
    reach,
)
from redis_queue.contrib.django.project import celery_app
from redis_queue.delay.model import Push
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import RedisQueueError, StoreError, StoreRefusedError
from redis_queue.logs import logger_of
from redis_queue.store.chunks import CHUNK, check_limit
from redis_queue.times import MAX_DELAY, to_ms

logger = logger_of(__name__)

ROW: Final = "outbox"
"""Header of an entry with the row that it came from."""

FAILURES: Final = 3
"""Most failed attempts to store single calls in one relay; the next relay continues with others."""


@dataclass(frozen=True, slots=True)
class Relayed:
    """What one relay did: *moved* wait in the DelayQueue, *failed* stay in the outbox with their error."""

    moved: int = 0
    failed: int = 0

    def __add__(self, other: Relayed) -> Relayed:
        return Relayed(self.moved + other.moved, self.failed + other.failed)


def relay(limit: int = CHUNK, *, using: str | None = None, timeout: float = RELAY_TIMEOUT) -> Relayed:
    """Move up to *limit* calls, the oldest first; any number may run at once.

    Each is stored under its task id before its row goes: a relay that dies in between stores it once more, which
    changes nothing while it waits. It replaces an older call that waits, or died, under its id; a newer one stays. A
    call that can never be stored is set aside; one that Redis refuses while it takes others is tried again later.

    *timeout*: seconds for one answer of Redis. Raises StoreError if Redis cannot take them; the rows stay. Raises
    RuntimeError in an open transaction, whose rows may yet be rolled back.
    """
    check_limit(limit, CHUNK)
    using = using or router.db_for_write(Call)
    with transaction.atomic(using=using, durable=True):
        if not waiting(using).exists():
            return Relayed()
    # Before rows (on SQLite: the whole database) are locked, so that no lock waits for a Redis that does not answer.
    queue = reach(celery_app(), timeout)
    with transaction.atomic(using=using, durable=True):
        return _Round(queue, using).run(limit)


def relay_quietly(*, calls: int = 1, using: str | None = None) -> None:
    """Relay up to *calls* rows now, within a second; failed rows are left to the next relay.

    After a failure it does nothing for a while.
    """
    try:
        breaker = breaker_of(celery_app())
        if not breaker.allows():
            return
        try:
            for _ in range(0, calls, CHUNK):
                relay(CHUNK, using=using, timeout=COMMIT_TIMEOUT)
        except StoreError:
            breaker.failed()
            raise
        breaker.succeeded()
    # The caller's transaction is committed: nothing that happens here may look as if it were not.
    except (RedisQueueError, Error) as error:
        logger.warning("not relayed yet: %s", error, extra={"action": "relay_away"})


def waiting(using: str) -> QuerySet[Any]:
    """Return the calls for a relay to move: first those that Redis has never refused."""
    return Call.objects.using(using).filter(set_aside=False).order_by("failures", "id")


class _Item(NamedTuple):
    row: Any
    push: Push


class _Round:
    """One transaction of a relay."""

    def __init__(self, queue: DelayQueue, using: str) -> None:
        self._queue = queue
        self._calls = Call.objects.using(using)
        self._using = using
        self._moved: list[int] = []
        self._failed = 0

    def run(self, limit: int) -> Relayed:
        """Store valid calls and delete their rows. Raises StoreError if Redis stores nothing."""
        items = [item for row in self._take(limit) if (item := self._item(row)) is not None]
        self._store_together([item for item in items if not item.row.failures])
        for item in items:
            if item.row.failures and not self._store_alone(item):
                break
        self._calls.filter(pk__in=self._moved).delete()
        return Relayed(len(self._moved), self._failed)

    def _take(self, limit: int) -> list[Any]:
        """Lock and return rows: nobody can cancel them before this transaction ends."""
        rows = waiting(self._using)
        features: Any = connections[self._using].features
        if features.has_select_for_update:
            rows = rows.select_for_update(skip_locked=features.has_select_for_update_skip_locked)
        else:
            # SQLite locks as a whole, with the first write.
            self._calls.filter(pk=-1).update(failures=0)
        try:
            return list(rows.annotate(now=ServerTime())[:limit])
        except Exception:  # noqa: BLE001 - an unreadable row; if the database failed, the next line raises
            names = list(rows.values_list("pk", "task_id", "task")[:limit])
        return [row for name in names if (row := self._read(*name)) is not None]

    def _read(self, key: int, task_id: str, task: str) -> Any:
        try:
            return self._calls.annotate(now=ServerTime()).get(pk=key)
        except Exception as error:  # noqa: BLE001 - a broken value may make a field raise anything
            self._set_aside(key, task_id, task, error)
            return None

    def _item(self, row: Any) -> _Item | None:
        try:
            payload = {**row.payload, "task": row.task}
            TaskCall.from_payload(payload)
            name = f"{row.pk} {to_ms(row.stored_at)}"
            mark = call_name(ROW, name, row.task_id)
            push = Push(payload, due_at=row.due_at, id=row.task_id, headers={ROW: name, CALL: mark}, mark=mark)
            self._queue.check(push)
        except Exception as error:  # noqa: BLE001 - a row that somebody else wrote may hold anything
            self._set_aside(row.pk, row.task_id, row.task, error)
            return None
        return _Item(row, push)

    def _set_aside(self, key: int, task_id: str, task: str, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}"
        logger.error(
            "%s[%s] is set aside in the outbox: %s",
            task,
            task_id,
            why,
            extra={"action": "relay_refused", "task_id": task_id, "task": task},
        )
        self._calls.filter(pk=key).update(set_aside=True, error=why)
        self._failed += 1

    def _store_together(self, items: Sequence[_Item]) -> None:
        try:
            self._store(items)
        except StoreRefusedError:
            # Login, permission, full Redis: storing calls one by one would fail as well.
            raise
        except StoreError:
            for item in items:
                if not self._store_alone(item) and self._failed >= FAILURES:
                    break

    def _store_alone(self, item: _Item) -> bool:
        row = item.row
        try:
            self._store([item])
        except StoreRefusedError:
            raise
        except StoreError as error:
            # The call itself is the cause only if Redis accepts others.
            check_answers(self._queue)
            logger.warning(
                "%s[%s] cannot be relayed, later relays will try again: %s",
                row.task,
                row.task_id,
                error,
                extra={"action": "relay_failed", "task_id": row.task_id, "task": row.task},
            )
            self._calls.filter(pk=row.pk).update(failures=F("failures") + 1, error=str(error))
            self._failed += 1
            return False
        return True

    def _store(self, items: Sequence[_Item]) -> None:
        flags = self._queue.calls.keep_many([push for _, push in items])
        for item, stored in zip(items, flags, strict=True):
            if not stored:
                self._replace_older(*item)
        self._moved += [row.pk for row, _ in items]

    def _replace_older(self, row: Any, push: Push) -> None:
        """Store *push*, unless its id has a newer entry, or one that an earlier relay stored from this row."""
        # Two ages, each by one clock: that of the row by the database's, that of the entry by Redis'. A millisecond of
        # the first one may come from rounding.
        age = timedelta(milliseconds=max(0, row.now - to_ms(row.stored_at) - 1))
        self._queue.calls.replace_older(push, age=min(age, MAX_DELAY))
