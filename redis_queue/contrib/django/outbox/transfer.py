"""Transfer of committed calls from the outbox into the DelayQueue, at least once; Redis is skipped after failures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

from celery import Celery
from django.db import connections, router, transaction
from django.db.models import ExpressionWrapper, F, QuerySet, TextField

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import MAX_DELAY, monotonic, to_ms
from redis_queue.basics.waits import Background, Backoff
from redis_queue.celery.message.entry import APPLIED, TaskCall
from redis_queue.celery.message.headers import CALL, call_name
from redis_queue.celery.store import Store
from redis_queue.contrib.django import TASK_HEADER, celery_app
from redis_queue.contrib.django.outbox.models import Call, ServerTime
from redis_queue.delay.model import Push
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import StoreError, StoreRefusedError, StoreUnavailableError
from redis_queue.store.chunks import CHUNK, check_limit, chunks
from redis_queue.store.scripts import CALL_ATTEMPTS

logger = logger_of(__name__)

COMMIT_TIMEOUT: Final = 0.3
"""Seconds to wait for each reply of Redis in a view. Three attempts take a second."""

RELAY_TIMEOUT: Final = 5.0
"""Seconds to wait for each reply of Redis in a relay process."""

_QUEUES: Final[WeakKeyDictionary[Store, dict[float, DelayQueue]]] = WeakKeyDictionary()

FIRST_PAUSE: Final = 5.0
MAX_PAUSE: Final = 60.0

ROW: Final = "outbox"
"""Header that names the outbox row of an entry."""

FAILURES: Final = 3
"""Maximum number of failed attempts with single calls per relay; the next relay continues with other calls."""


def reach(app: Celery, timeout: float) -> DelayQueue:
    """Return the DelayQueue of *app* after a check that Redis answers; *timeout*: seconds for each reply.

    Raises StoreError after three attempts.
    """
    known = _QUEUES.setdefault(Store.of(app), {})
    queue = known.get(timeout)
    if queue is None:
        # Opening the queue sends commands to Redis, too.
        queue = known[timeout] = Store.of(app).within(timeout).delay_queue()
    else:
        check_answers(queue)
    return queue


def check_answers(queue: DelayQueue) -> None:
    """Raise StoreError unless the Redis of *queue* answers."""
    # A short read; not PING, which the role of a producer does not allow.
    queue.moves.leader()


class Breaker:
    """Circuit breaker: skip Redis for 5 s after a failure, and for up to a minute after repeated failures.

    After the pause one caller tries; the others skip Redis until that attempt ends.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._backoff = Backoff(first=FIRST_PAUSE, cap=MAX_PAUSE)
        self._pause_until: float | None = None

    def allows(self) -> bool:
        """Return whether to try. After a failure True means: this caller is the one that tries."""
        if self._pause_until is None:
            return True
        now = self._clock()
        if now < self._pause_until:
            return False
        self._pause_until = now + FIRST_PAUSE
        return True

    def failed(self) -> None:
        """Record that Redis did not answer."""
        self._pause_until = self._clock() + self._backoff.next()

    def succeeded(self) -> None:
        """Record that Redis answered."""
        self._pause_until = None
        self._backoff.reset()


_BREAKERS: Final[WeakKeyDictionary[Store, Breaker]] = WeakKeyDictionary()
"""The breaker of each Redis in this process."""


@dataclass(frozen=True, slots=True)
class Relayed:
    """Result of a relay: *moved* calls are in the DelayQueue, *failed* ones stay in the outbox with their error."""

    moved: int = 0
    failed: int = 0

    def __add__(self, other: Relayed) -> Relayed:
        return Relayed(self.moved + other.moved, self.failed + other.failed)


def relay(limit: int = CHUNK, *, using: str | None = None, timeout: float = RELAY_TIMEOUT) -> Relayed:
    """Move up to *limit* calls, oldest first; any number of relays may run at once.

    Each call is stored under its task id before its row is deleted. If the relay is killed in between, the next relay
    stores the call again, which has no effect while the call waits. A call replaces an older waiting call or dead
    letter with the same id; a newer one stays. An invalid call is set aside; a call that Redis refuses while accepting
    others is tried again later.

    *timeout*: seconds to wait for each reply of Redis. Raises StoreError if Redis stores nothing; the rows stay. So do
    the rows of Django's tasks whose records the result backend does not take in three times *timeout*: StoreError, too,
    after the others are moved. Raises RuntimeError in an open transaction, which could be rolled back.
    """
    check_limit(limit, CHUNK)
    using = using or router.db_for_write(Call)
    with transaction.atomic(using=using, durable=True):
        first = list(waiting(using).values_list("pk", flat=True)[:limit])
        text = ExpressionWrapper(F("payload"), output_field=TextField())
        tasks = Call.objects.using(using).filter(pk__in=first).annotate(text=text).filter(text__contains=TASK_HEADER)
        has_tasks = tasks.exists()
    if not first:
        return Relayed()
    # Before rows (on SQLite: the whole database) are locked, so that no lock is held while a server does not answer.
    queue = reach(celery_app(), timeout)
    records = _Records(celery_app(), timeout * CALL_ATTEMPTS)
    if has_tasks:
        records.write({})
    with transaction.atomic(using=using, durable=True):
        done = _RelayTransaction(queue, using, records).run(limit)
    if records.failure is not None:
        raise records.failure
    return done


def try_relay(*, calls: int = 1, using: str | None = None) -> None:
    """Relay up to *calls* rows within a second; failed rows are left to the next relay. It raises nothing.

    After a failure, calls of this function are ignored for a while.
    """
    try:
        breaker = _BREAKERS.setdefault(Store.of(celery_app()), Breaker())
        if not breaker.allows():
            return
        try:
            for _ in range(0, calls, CHUNK):
                relay(CHUNK, using=using, timeout=COMMIT_TIMEOUT)
        except StoreError:
            breaker.failed()
            raise
        breaker.succeeded()
    # The caller's transaction is committed: an error would keep its other functions from being called.
    except Exception as error:  # noqa: BLE001 - the database, the app of the project, and others raise their own
        logger.warning("not relayed yet: %s", error, extra={"action": "relay_away"})


def waiting(using: str) -> QuerySet[Any]:
    """Return the calls to relay, those that Redis has refused last."""
    return Call.objects.using(using).filter(set_aside=False).order_by("failures", "id")


_RECORDING: Final = Background()
os.register_at_fork(after_in_child=_RECORDING.forget)


class _Records:
    """Writes the records of Django's tasks before the tasks are sent; *seconds*: how long each write may take.

    After the first failure it writes nothing.
    """

    def __init__(self, app: Celery, seconds: float) -> None:
        self._app = app
        self._seconds = seconds
        self.failure: StoreUnavailableError | None = None

    def write(self, calls: Mapping[str, TaskCall]) -> bool:
        """Write the records of *calls*, by task id, unless they exist; return whether they are written."""
        if self.failure is None:
            try:
                self._write(calls)
            except Exception as error:  # noqa: BLE001 - each result backend has its own errors
                text = f"the result backend does not take the records of tasks: {type(error).__name__}: {error}"
                self.failure = StoreUnavailableError(text)
        return self.failure is None

    def _write(self, calls: Mapping[str, TaskCall]) -> None:
        # Celery's backends wait for minutes, so a thread waits.
        backend = import_module("redis_queue.contrib.django.task_backend")
        done: Future[None] = Future()

        def work() -> None:
            try:
                done.set_result(backend.record_waiting(self._app, calls))
            except Exception as error:  # noqa: BLE001 - the caller raises it
                done.set_exception(error)

        _RECORDING.run(work)
        if not wait([done], self._seconds).done:
            raise TimeoutError(f"no answer within {self._seconds:g} s")
        done.result()


class _RelayItem(NamedTuple):
    row: Any
    push: Push


def _has_record(call: TaskCall) -> bool:
    return TASK_HEADER in (call.options.get("headers") or ()) and not call.options.get("ignore_result")


class _RelayTransaction:
    """One transaction of a relay."""

    def __init__(self, queue: DelayQueue, using: str, records: _Records) -> None:
        self._queue = queue
        self._records = records
        self._calls = Call.objects.using(using)
        self._using = using
        self._moved: list[int] = []
        self._failed = 0

    def run(self, limit: int) -> Relayed:
        """Store valid calls and delete their rows. Raises StoreError if Redis stores nothing."""
        items = self._recorded([item for row in self._take(limit) if (item := self._item(row)) is not None])
        self._store_together([item for item in items if not item.row.failures])
        for item in items:
            if item.row.failures and not self._store_alone(item):
                break
        for rows in self._rows(self._moved):
            rows.delete()
        return Relayed(len(self._moved), self._failed)

    def _rows(self, keys: Sequence[int]) -> Iterator[QuerySet[Any]]:
        # Of many keys, MySQL may read the whole table, and wait for the rows that others have locked.
        is_mysql = connections[self._using].vendor == "mysql"
        return (self._calls.filter(pk__in=some) for some in chunks(keys, 1 if is_mysql else CHUNK))

    def _recorded(self, items: Sequence[_RelayItem]) -> Sequence[_RelayItem]:
        """Return *items* without those whose records cannot be written: nobody could read their results."""
        calls = {item.row.task_id: TaskCall.from_payload(item.push.payload) for item in items}
        tasks = {task_id: call for task_id, call in calls.items() if _has_record(call)}
        if not tasks or self._records.write(tasks):
            return items
        for rows in self._rows([item.row.pk for item in items if item.row.task_id in tasks]):
            rows.update(failures=F("failures") + 1, error=str(self._records.failure))
        return [item for item in items if item.row.task_id not in tasks]

    def _take(self, limit: int) -> list[Any]:
        """Lock and return rows, so that nobody can cancel them before this transaction ends."""
        rows = waiting(self._using)
        features: Any = connections[self._using].features
        if features.has_select_for_update:
            rows = rows.select_for_update(skip_locked=features.has_select_for_update_skip_locked)
        else:
            # SQLite locks the whole database with the first write.
            self._calls.filter(pk=-1).update(failures=0)
        try:
            return list(rows.annotate(now=ServerTime())[:limit])
        except Exception:  # noqa: BLE001 - an unreadable row; if the database is down, the next line raises
            names = list(rows.values_list("pk", "task_id", "task")[:limit])
        return [row for name in names if (row := self._read(*name)) is not None]

    def _read(self, key: int, task_id: str, task: str) -> Any:
        try:
            return self._calls.annotate(now=ServerTime()).get(pk=key)
        except Exception as error:  # noqa: BLE001 - fields may raise anything for a broken value
            self._set_aside(key, task_id, task, error)
            return None

    def _item(self, row: Any) -> _RelayItem | None:
        try:
            payload = {**row.payload, "task": row.task}
            applied = {APPLIED: "1"} if payload.pop(APPLIED, False) else {}
            TaskCall.from_payload(payload)
            name = f"{row.pk} {to_ms(row.stored_at)}"
            mark = call_name(ROW, name, row.task_id)
            # By the clock of the database alone, which may have been set meanwhile.
            waited = max(0, row.now - to_ms(row.stored_at))
            left = None if row.countdown is None else timedelta(milliseconds=max(0, row.countdown - waited))
            push = Push(payload, left, row.due_at, row.task_id, headers={ROW: name, CALL: mark, **applied}, mark=mark)
            self._queue.check(push)
        except Exception as error:  # noqa: BLE001 - rows from other tools may hold anything
            self._set_aside(row.pk, row.task_id, row.task, error)
            return None
        return _RelayItem(row, push)

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

    def _store_together(self, items: Sequence[_RelayItem]) -> None:
        try:
            self._store(items)
        except StoreRefusedError:
            # Login, permission, full Redis: storing calls one by one would fail as well.
            raise
        except StoreError:
            for item in items:
                if not self._store_alone(item) and self._failed >= FAILURES:
                    break

    def _store_alone(self, item: _RelayItem) -> bool:
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

    def _store(self, items: Sequence[_RelayItem]) -> None:
        flags = self._queue.marked.keep_many([push for _, push in items])
        for item, stored in zip(items, flags, strict=True):
            if not stored:
                self._replace_older(*item)
        self._moved += [row.pk for row, _ in items]

    def _replace_older(self, row: Any, push: Push) -> None:
        """Store *push*, unless its id has a newer entry, or one that an earlier relay stored from this row."""
        # Compare ages, each measured by one clock: the row's by the database, the entry's by Redis. Rounding may
        # make the row's age a millisecond too high.
        age = timedelta(milliseconds=max(0, row.now - to_ms(row.stored_at) - 1))
        self._queue.marked.replace_older(push, age=min(age, MAX_DELAY))
