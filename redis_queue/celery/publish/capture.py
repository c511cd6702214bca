"""Capture: every publish with a delay becomes an entry, whatever part of Celery it comes from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, Final, cast

import redis
from celery import current_task
from celery.app.amqp import AMQP
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.exceptions import OperationalError
from kombu.utils.functional import retry_over_time

from redis_queue.celery.message.attempt import Attempt, without_copied_headers
from redis_queue.celery.message.envelope import Due, Envelope
from redis_queue.celery.message.intercepting_producer import Tap
from redis_queue.celery.publish.arguments import check_eta, seconds_of
from redis_queue.celery.publish.same_broker import OwnBroker
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.celery.tracing import without_schedule
from redis_queue.errors import InvalidDelayError, InvalidValueError, StoreError, StoreUnavailableError
from redis_queue.logs import logger_of
from redis_queue.store.ids import check_id
from redis_queue.store.redis_errors import redact
from redis_queue.times import from_ms

logger = logger_of(__name__)

LEFT_ALONE: Final = frozenset({"celery.chord_unlock"})
"""Tasks that poll: they come each second and mean nothing when late."""

CAPTURED: Final = "redis_queue_captured"
"""Attribute of a wrapped AMQP object: the methods of WRAPPED that the instance itself, not its class, had before."""

WRAPPED: Final = ("create_task_message", "send_task_message")


class _Sending(threading.local):
    """What this thread's send was asked for: the message itself only tells the eta that came of it."""

    task_id: str | None = None
    countdown: float | None = None
    #: Where push_many collects instead of storing.
    batch: list[tuple[Envelope, Due]] | None = None


class Capture:
    """Stands between one AMQP object and its producers."""

    def __init__(self, delayed: StoredTasks) -> None:
        self._delayed = delayed
        self._app = delayed.app
        self._sending = _Sending()
        self._own_broker = OwnBroker(delayed.app)
        self._told: set[str] = set()

    def wrap(self, amqp: AMQP) -> None:
        """Capture what *amqp* sends from now on; doing so twice is harmless."""
        if CAPTURED in vars(amqp):
            return
        setattr(amqp, CAPTURED, [found for name in WRAPPED if (found := vars(amqp).get(name)) is not None])
        amqp.create_task_message = self._noting(_made_late(amqp, "create_task_message"))
        amqp.send_task_message = self._sender(_made_late(amqp, "send_task_message"))

    def collect(self, send: Callable[[], Any]) -> list[tuple[Envelope, Due]]:
        """Run *send* and return the messages that it would have delayed, in order.

        Raises InvalidValueError before it sends anything without a delay.
        """
        batch: list[tuple[Envelope, Due]] = []
        before, self._sending.batch = self._sending.batch, batch
        try:
            send()
        finally:
            self._sending.batch = before
        return batch

    def _noting(self, create: Callable[..., Any]) -> Callable[..., Any]:
        def create_task_message(  # noqa: PLR0917 - as Celery calls it
            task_id: str,
            name: str,
            args: Any = None,
            kwargs: Any = None,
            countdown: Any = None,
            eta: Any = None,
            *rest: Any,
            **named: Any,
        ) -> Any:
            # A retry is left as it is: Celery drops a task whose retry raises.
            if not _is_retry(task_id):
                countdown = self._checked(countdown, eta)
            self._sending.task_id, self._sending.countdown = task_id, countdown
            return create(task_id, name, args, kwargs, countdown, eta, *rest, **named)

        return create_task_message

    def _checked(self, countdown: Any, eta: Any) -> Any:
        """Return *countdown* as Celery takes it; raises InvalidDelayError for a delay that cannot be."""
        if not countdown and not eta:
            # What Celery takes for no delay is none here.
            return countdown
        # Settings that cannot be are told first: a time zone is one of them.
        _ = self._delayed.settings
        if countdown and eta:
            raise InvalidDelayError(f"countdown={countdown!r} and eta={eta!r}: give one of them")
        if eta:
            check_eta(eta, self._app)
        return seconds_of(countdown) if countdown else countdown

    def _sender(self, send: Callable[..., Any]) -> Callable[..., Any]:
        def send_task_message(producer: Any, name: str, message: Any, **given: Any) -> Any:
            # A retry copies the headers of the message that its task came with.
            options = without_copied_headers(without_schedule(given)) if current_task else given
            due = None if name in LEFT_ALONE else self._due(message)
            if due is None:
                if self._sending.batch is not None and not _eta(message):
                    raise InvalidValueError(f"{name} has no countdown and no eta: give push_many(countdown=…)")
                return send(producer, name, message, **options)
            if not self._is_ours(producer):
                return send(producer, name, message, **options)
            task_id = _id(message)
            if task_id is not None and not _is_retry(task_id):
                check_id(task_id, name="task_id")
            tap = Tap(self._app, producer, lambda *found: self._keep(due, *found))
            return send(tap, name, message, **options)

        return send_task_message

    def _is_ours(self, producer: Any) -> bool:
        """Tell whether the app's dispatchers would send where *producer* does; a call may bring one of its own."""
        connection = producer.connection
        if connection is None or self._own_broker.is_that_of(connection):
            return True
        broker = redact(connection.as_uri())
        if self._sending.batch is not None:
            raise InvalidValueError(f"push_many stores for the app's own broker: it cannot send to {broker}")
        if broker not in self._told:
            self._told.add(broker)
            logger.warning(
                "what is sent to %s with a delay waits there: only the app's own broker has its delayed tasks stored",
                broker,
                extra={"action": "other_broker"},
            )
        return False

    def _due(self, message: Any) -> Due | None:
        """Return when *message* is due, or None if it is not to be stored."""
        eta = _eta(message)
        if not eta:
            return None
        shortest = self._delayed.settings.min_delay_seconds
        countdown = self._sending.countdown if self._sending.task_id == _id(message) else None
        if countdown:
            return (max(0.0, float(countdown)), None) if countdown > shortest else None
        # As a worker reads it, so that a naive eta means here what it means there.
        due_at = maybe_make_aware(maybe_iso8601(eta), self._app.timezone)
        if shortest and (due_at - self._app.now()).total_seconds() <= shortest:
            return None
        return None, max(due_at, from_ms(1))

    def _keep(self, due: Due, envelope: Envelope, options: Mapping[str, Any], publish: Callable[[], Any]) -> Any:
        if self._sending.batch is not None:
            self._sending.batch.append((envelope, due))
            return None
        try:
            return _insist(lambda: self._store(envelope, due), options)
        except StoreError as error:
            policy = self._delayed.settings.on_store_error
            if policy != "broker" and not (policy is None and _is_retry(envelope.id)):
                raise OperationalError(str(error)) from error
            action, reason = "store_unavailable", f"the store is away: {error}"
        except InvalidValueError as error:
            # The task came by the broker: what it took once it takes again.
            if not _is_retry(envelope.id):
                raise
            action, reason = "store_refused", str(error)
        logger.warning(
            "%s waits in the broker: %s", envelope.id, reason, extra={"action": action, "task_id": envelope.id}
        )
        return publish()

    def _store(self, envelope: Envelope, due: Due) -> None:
        if not _is_retry(envelope.id):
            self._delayed.writer.store([(envelope, due)])
            return
        request = current_task.request
        self._delayed.writer.store_attempt(envelope, due, Attempt.of(vars(request), request.delivery_info))


def _is_retry(task_id: Any) -> bool:
    """Tell whether a message is sent from inside the task that has its id; Celery drops a task whose retry raises."""
    return bool(current_task) and str(current_task.request.id) == str(task_id)


def _id(message: Any) -> Any:
    return message.headers.get("id") or message.properties.get("correlation_id")


def _eta(message: Any) -> Any:
    # Protocol 1 has the eta in the body.
    body = message.body
    return message.headers.get("eta") or (body.get("eta") if isinstance(body, Mapping) else None)


def _made_late(amqp: AMQP, name: str) -> Callable[..., Any]:
    """Return what *amqp* calls by *name*, made at its first call: until then the app may still be configured."""
    if name in vars(amqp):
        return cast("Callable[..., Any]", vars(amqp)[name])

    @cache
    def made() -> Any:
        found = getattr(type(amqp), name)
        return found.func(amqp) if isinstance(found, cached_property) else found.__get__(amqp)

    def call(*args: Any, **kwargs: Any) -> Any:
        return made()(*args, **kwargs)

    return call


def _insist(store: Callable[[], Any], options: Mapping[str, Any]) -> Any:
    """Store under Celery's own policy for retrying a publish."""
    try:
        return store()
    except StoreUnavailableError as error:
        policy = options.get("retry_policy") or {}
        if not options.get("retry") or policy.get("max_retries") == 0 or _was_silent(error):
            raise
    return retry_over_time(
        store,
        (StoreUnavailableError,),
        errback=_next_interval,
        max_retries=policy.get("max_retries", 3),
        interval_start=policy.get("interval_start", 0),
        interval_step=policy.get("interval_step", 0.2),
        interval_max=policy.get("interval_max", 0.2),
    )


def _next_interval(error: StoreUnavailableError, intervals: Iterator[float], _retries: int) -> float:
    if _was_silent(error):
        raise error
    return next(intervals)


def _was_silent(error: StoreUnavailableError) -> bool:
    """Tell whether Redis timed out: more attempts would take as long, and the caller has already waited."""
    return isinstance(error.__cause__, redis.TimeoutError)
