"""Schedule and cancel calls within a database transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from celery.utils import uuid
from django.db import IntegrityError, connections, router, transaction

from redis_queue.basics.times import Seconds, duration_ms, point_ms
from redis_queue.celery.message.entry import APPLIED, TaskCall, applied_call
from redis_queue.celery.store import MAX_BODY
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.contrib.django import celery_app
from redis_queue.contrib.django.outbox.models import Call
from redis_queue.contrib.django.outbox.transfer import COMMIT_TIMEOUT, reach, try_relay
from redis_queue.errors import EntryExistsError, InvalidDelayError
from redis_queue.store.codec import JSON, Codec
from redis_queue.store.ids import check_id


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
    """Write a call of *task* (a Celery task, its name or a signature) to the outbox; return the task id.

    It is part of the open transaction. The call runs after *countdown* seconds from now or at *eta* (aware), and not
    before the commit. *options* are those of ``apply_async``; they, *countdown*, *eta* and *task_id* have precedence
    over those of a signature. Arguments may have any type that Celery can write as JSON, such as UUID, datetime or
    Decimal. The call replaces an older waiting call with the same *task_id*.

    The ``apply_async`` of the task is called now, within the transaction. If it sends nothing, nothing is written, and
    the id of its result is returned. Raises what it raises, InvalidValueError for calls that cannot be sent or stored,
    such as a chain, group or chord, and EntryExistsError if *task_id* is already in the outbox; nothing is written
    then.
    """
    app = celery_app()
    call, own = TaskCall.of(task, args, kwargs, options)
    task_id = own.get("task_id") if task_id is None else task_id
    name = uuid() if task_id is None else check_id(task_id, name="task_id")
    if countdown is None and eta is None:
        countdown, eta = own.get("countdown"), own.get("eta")
    _check_times(countdown, eta)
    given = {option: value for option, value in (("countdown", countdown), ("eta", eta)) if value is not None}
    applied, times, result = applied_call(app, call, name, given)
    if applied is None:
        return str(getattr(result, "id", name))
    eta = times.get("eta")
    wait = _check_times(times.get("countdown"), eta)
    # Without Redis, which may be unreachable: scheduling must not depend on it.
    payload = {**applied.routed(app).payload(app), APPLIED: True}
    Codec(JSON, MAX_BODY).encode(payload)
    using = using or router.db_for_write(Call)
    calls = Call.objects.using(using)
    try:
        with transaction.atomic(using=using):
            calls.create(task_id=name, task=payload.pop("task"), payload=payload, due_at=eta, countdown=wait)
    except IntegrityError:
        if not calls.filter(task_id=name).exists():
            raise
        raise EntryExistsError(
            f"task_id={name!r} is already in the outbox: cancel it first, or use another id"
        ) from None
    _relay_with_commit(using)
    return name


def cancel(task_id: str, *, using: str | None = None) -> bool:
    """Cancel a call in the outbox or in Redis. True: it will not run. False: it is unknown, or may have been sent.

    One exception: if a relay was killed, or got no reply, after it stored the call and before its commit, and the call
    was sent since, the answer is True although it has run.

    In the outbox, the cancel is part of the transaction: after a rollback the call is scheduled as before. In Redis it
    takes effect at once, and a rollback does not restore the call. Raises StoreError if Redis does not answer within a
    second; the row stays.
    """
    check_id(task_id, name="task_id")
    using = using or router.db_for_write(Call)
    # Before the row (on SQLite: the whole database) is locked.
    reach(celery_app(), COMMIT_TIMEOUT)
    with transaction.atomic(using=using):
        # The row first, so that no relay can take it. A relay that was killed may have stored the call before.
        # By its key, as the relay locks it: in another order, MySQL would end one of the two as a deadlock.
        calls = Call.objects.using(using)
        deleted, _ = calls.filter(pk__in=list(calls.filter(task_id=task_id).values_list("pk", flat=True))).delete()
        outcome = StoredTasks.of(celery_app()).cancel(task_id)
        return bool(outcome) or (bool(deleted) and not outcome.taken_out)


class _CommitRelay:
    """One relay after a commit, for all calls of the transaction."""

    def __init__(self, using: str) -> None:
        self._using = using
        self.calls = 0
        self.started = False

    def __call__(self) -> None:
        # Once, with short timeouts, since the request waits. If it fails, the relay service moves the rows later.
        if not self.started:
            self.started = True
            try_relay(calls=self.calls, using=self._using)


def _relay_with_commit(using: str) -> None:
    """Relay once after the open transaction is committed."""
    waiting = (function for _, function, *_ in reversed(connections[using].run_on_commit))
    known = next(
        (function for function in waiting if isinstance(function, _CommitRelay) and not function.started), None
    )
    relay = known or _CommitRelay(using)
    relay.calls += 1
    # Registered for each call: rolling back a savepoint removes functions that were registered after it.
    transaction.on_commit(relay, using=using)


def _check_times(countdown: Seconds | None, eta: datetime | None) -> int | None:
    """Return the milliseconds to wait; None if *eta* is given."""
    if countdown is not None and eta is not None:
        raise InvalidDelayError("countdown and eta: must not be given together")
    if eta is not None:
        point_ms(eta, name="eta")
        return None
    return 0 if countdown is None else duration_ms(countdown, name="countdown")
