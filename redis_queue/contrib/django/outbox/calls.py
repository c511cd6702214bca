"""What a view calls: schedule and cancel within its transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from celery.utils import uuid
from django.db import IntegrityError, connections, router, transaction

from redis_queue.celery.message.task_call import TaskCall
from redis_queue.celery.store import CODEC
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.contrib.django.outbox.models import Call
from redis_queue.contrib.django.outbox.redis_access import COMMIT_TIMEOUT, reach
from redis_queue.contrib.django.outbox.relay_loop import relay_quietly
from redis_queue.contrib.django.project import celery_app
from redis_queue.errors import EntryExistsError, InvalidDelayError
from redis_queue.store.ids import check_id
from redis_queue.times import Seconds, duration_ms, point_ms


def schedule(
    task: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    countdown: Seconds | None = None,
    eta: datetime | None = None,
    task_id: str | None = None,
    using: str | None = None,
    **options: Any,
) -> str:
    """Write a call of *task* (a Celery task or its name) into the outbox, in the open transaction; return its id.

    It runs no earlier than after *countdown* (counted from now) or at *eta* (aware), and not before the commit.
    *options* are those of ``apply_async``. Arguments may be of any type that Celery can write as JSON, such as UUID,
    datetime or Decimal. An older call that waits in Redis under *task_id* is replaced. Raises InvalidValueError, before
    anything is written, for calls that cannot be sent, and EntryExistsError if *task_id* is in the outbox already.
    """
    call = TaskCall(getattr(task, "name", task), args, kwargs or {}, options)
    name = uuid() if task_id is None else check_id(task_id, name="task_id")
    due_at = _due(countdown, eta)
    # Without the queue itself, which only Redis can tell: it may be away, and that is what the outbox is for.
    payload = call.payload(celery_app())
    CODEC.encode(payload)
    using = using or router.db_for_write(Call)
    calls = Call.objects.using(using)
    try:
        with transaction.atomic(using=using):
            calls.create(task_id=name, task=payload.pop("task"), payload=payload, due_at=due_at)
    except IntegrityError:
        if not calls.filter(task_id=name).exists():
            raise
        raise EntryExistsError(
            f"task_id={name!r} is in the outbox already: cancel it first, or use another id"
        ) from None
    _relay_with_commit(using)
    return name


def cancel(task_id: str, *, using: str | None = None) -> bool:
    """Take a call out, wherever it is by now. True: it will never run. False: unknown, or on its way already.

    In one case True comes too late: a relay was killed after it had stored the call and before its commit, and the call
    has been sent since.

    While it is in the outbox this is part of the transaction: after a rollback it is scheduled as before. In Redis it
    is gone at once, and no rollback brings it back. Raises StoreError if Redis does not answer within a second; the
    row stays.
    """
    check_id(task_id, name="task_id")
    using = using or router.db_for_write(Call)
    # Before the row is locked, and on SQLite the whole database.
    reach(celery_app(), COMMIT_TIMEOUT)
    with transaction.atomic(using=using):
        # The row first: then no relay can take it any more. One that died before its commit may have stored it.
        deleted, _ = Call.objects.using(using).filter(task_id=task_id).delete()
        outcome = StoredTasks.of(celery_app()).cancel(task_id)
        return bool(outcome) or (bool(deleted) and not outcome.taken_out)


class _Relay:
    """The relay behind one commit, however many calls it brings."""

    def __init__(self, using: str) -> None:
        self._using = using
        self.calls = 0
        self.begun = False

    def __call__(self) -> None:
        # One relay moves all rows. If it fails, the relay service moves them a little later; so it may take only a
        # short part of the request that commits.
        if not self.begun:
            self.begun = True
            relay_quietly(calls=self.calls, using=self._using)


def _relay_with_commit(using: str) -> None:
    """Relay when the open transaction is committed; once, for all that is scheduled in it."""
    waiting = (function for _, function, *_ in reversed(connections[using].run_on_commit))
    known = next((function for function in waiting if isinstance(function, _Relay) and not function.begun), None)
    relay = known or _Relay(using)
    relay.calls += 1
    # Registered each time: a savepoint that is rolled back takes with it what was registered behind it.
    transaction.on_commit(relay, using=using)


def _due(countdown: Seconds | None, eta: datetime | None) -> datetime:
    if countdown is not None and eta is not None:
        raise InvalidDelayError("give countdown= or eta=, not both")
    if eta is not None:
        point_ms(eta, name="eta")
        return eta
    wait = 0 if countdown is None else duration_ms(countdown, name="countdown")
    return datetime.now(timezone.utc) + timedelta(milliseconds=wait)
