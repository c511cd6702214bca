"""Capture: store every publish with a delay, from any part of Celery."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import redis
from celery.app.amqp import AMQP
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.exceptions import OperationalError
from kombu.utils.json import dumps
from kombu.utils.uuid import uuid

from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.basics.logs import hide_secrets, logger_of
from redis_queue.basics.times import MAX_DELAY, from_ms
from redis_queue.celery.admission.policy import FlowPolicy, UniquePolicy
from redis_queue.celery.entries import with_retries
from redis_queue.celery.kombu.internals import method_of
from redis_queue.celery.message.envelope import Due, Envelope
from redis_queue.celery.message.headers import SENT, Attempt, FlowHeader, sent_now, without_copied_headers
from redis_queue.celery.message.producer import InterceptingProducer
from redis_queue.celery.publish.kinds import CAPTURED, POSITIONAL, WRAPPED, Call, Kinds, runs_no_user_code
from redis_queue.celery.publish.lists import BrokerLists, Seen, current
from redis_queue.celery.publish.send import (
    LostKeyError,
    OwnBroker,
    Progress,
    Send,
    Sends,
    SentMessage,
    check_eta,
    is_retry_of,
    seconds_of,
)
from redis_queue.celery.publish.unique_calls import UniqueCalls
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.delay.entries import when
from redis_queue.errors import InvalidDelayError, InvalidValueError, StoreError, quoted
from redis_queue.store.ids import check_id, is_id
from redis_queue.store.redis_errors import FULL, RedisErrors, translate

if TYPE_CHECKING:
    from redis_queue.admission.rules import Unique
    from redis_queue.celery.publish.batch import Batch

logger = logger_of(__name__)

NOT_CAPTURED: Final = frozenset({"celery.chord_unlock"})
"""Tasks that poll each second: they are useless when late."""

NOW: Final[Due] = (0.0, None)


class Capture:
    """Stores the delayed messages of AMQP objects instead of sending them."""

    def __init__(self, stored: StoredTasks) -> None:
        self._stored = stored
        self._app = stored.app
        self._warned: set[str] = set()
        self.sends = Sends()
        self._own_broker = OwnBroker(stored.app)
        self._kinds = Kinds(stored.app)
        self._unique_calls = UniqueCalls(stored, self.sends, self._own_broker)

    @LazyProperty
    def _flows(self) -> FlowPolicy:
        return FlowPolicy.of(self._app)

    @LazyProperty
    def _uniques(self) -> UniquePolicy:
        return UniquePolicy.of(self._app)

    def wrap_calls(self) -> None:
        """Let ``app.send_task``, through which Celery sends every task, keep the keys of unique tasks."""
        self._plain = method_of(self._app, "send_task")

        @functools.wraps(self._app.send_task)
        def send_task(*args: Any, **options: Any) -> Any:
            batch = self.sends.batch
            taken = 0 if batch is None else batch.check()
            unique = self._uniques.of_task(str(args[0] if args else options.get("name")))
            if unique is None:
                result = self.sends.alone(self._send, batch, *args, **options)
            else:
                result = self.sends.alone(self._send_unique, unique, batch, args, options)
            if batch is not None:
                batch.count(taken, str(result.id))
            return result

        cast("Any", self._app).send_task = send_task

    def _send_unique(self, unique: Unique, batch: Batch | None, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if batch is not None:
            # It may wait for its key.
            batch.send()
        return self._unique_calls.send(unique, partial(self._send, batch), args, options)

    def _send(self, batch: Batch | None, /, *args: Any, **options: Any) -> Any:
        """Make and send the message of ``send_task(*args, **options)``, or put it into *batch*; return its result."""
        kinds = self._kinds
        call = kinds.call(args, options)
        if call is None:
            return self._send_by_celery(batch, args, options)
        if kinds.is_new(call):
            with self.sends.watch() as seen:
                result = self._send_by_celery(batch, args, options)
            kinds.learn(call, seen)
            return result
        first = kinds.first(call)
        found = None if first is None else self._send_like(first, call, batch)
        if found is None:
            # With the same id: Redis may have got the message before its connection broke.
            return self._send_by_celery(batch, args, {**options, "task_id": call.id} if call.id else options)
        if first is not None and batch is not None:
            batch.last = call, partial(self.sends.alone, self._made, first)
        return found

    def _send_by_celery(self, batch: Batch | None, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
        # The message of a unique task is open: it is sent at once, or would own its key without being sent.
        if batch is None or self.sends.opened is not None:
            return self._plain()(*args, **options)
        if len(args) > len(POSITIONAL) or not self._kinds.are_quiet():
            # Receivers and routers may take their time, or wait for what was sent before.
            batch.send()
            return self._plain()(*args, **options)
        id_ = options.get("task_id") or uuid()
        with self.sends.open(Send(id_, is_retry_of(self._app, id_), batch=batch)):
            return self._plain()(*args, **{**options, "task_id": id_})

    def may_batch(self, signatures: Sequence[Any]) -> bool:
        """Return whether code of the user takes no part in reading and sending *signatures*.

        Such code may take long, or wait for a message of an earlier one, which must have been sent by then.
        """
        known: set[Any] = set()
        return self._kinds.are_quiet() and all(runs_no_user_code(signature, known) for signature in signatures)

    def _send_like(self, first: Seen, call: Call, batch: Batch | None) -> Any:
        """Send a call like the *first* one of its kind; return its result, or None if Celery is to send it."""
        app, options = self._app, call.options
        producer = options.get("producer")
        if producer is not None and not self._own_broker.is_that_of(producer.connection):
            return None
        call.id = options.get("task_id") or uuid()
        call.root_id, call.parent_id = options.get("root_id"), options.get("parent_id")
        parent = app.current_worker_task
        if parent:
            call.root_id = call.root_id or parent.request.root_id or parent.request.id
            call.parent_id = call.parent_id or parent.request.id
        return self._made(first, call, batch)

    def _made(self, first: Seen, call: Call, batch: Batch | None) -> Any:
        """Put a call where the *first* of its kind went, and return its result; None if it may have to go elsewhere."""
        app, options = self._app, call.options
        send = self.sends.of(app, call.id)
        if type(call.id) is not str or send.is_retry or send.key is not None:
            return None
        send.batch = batch
        ignored = first.headers["ignore_result"]
        if not ignored:
            try:
                self.sends.subscribe(batch, app.backend.on_task_call, None, call.id)
            except RedisErrors as error:
                raise OperationalError(hide_secrets(str(error))) from error
        if not self._put_like(send, first, call):
            return None
        result = (options.get("result_cls") or app.AsyncResult)(call.id)
        result.ignored = ignored
        parent = app.current_worker_task
        if parent and options.get("add_to_parent", True):
            parent.add_trail(result)
        return result

    def _put_like(self, send: Send, first: Seen, call: Call) -> bool:
        countdown = call.options.get("countdown")
        if first.queue is not None:
            send.header = self._header(send, call.name, first.queue, call.args, call.kwargs)
        if first.envelope is None:
            return send.header is None and not countdown and self._push(send, first, call)
        if not countdown:
            if send.header is None or first.queue is None:
                return False
            message = self._kinds.envelope(first.envelope, call)
            return self._put_into_flow(send, send.header, first.queue, message, first.sending)
        settings = self._stored.settings
        shortest = 0.0 if send.header is not None else settings.min_delay_seconds
        # With "broker", Celery itself sends the message if the store does not take it: one attempt is enough.
        if settings.on_store_error == "broker" or not shortest < countdown < MAX_DELAY.total_seconds():
            return False
        send.countdown, send.due = countdown, (float(countdown), None)
        message = self._kinds.envelope(first.envelope, call, self._kinds.eta(countdown))
        return self._put_into_store(send, message, first.sending)

    def _push(self, send: Send, first: Seen, call: Call) -> bool:
        """Put the message of a call into the list of the *first* one of its kind."""
        lists = first.lists
        if lists is None or not lists.is_open:
            self._kinds.forget()
            return False
        element = self._kinds.element(first.form, call)
        if send.batch is not None:
            send.batch.push(lists, first.key, element, call.id)
            return True
        try:
            self._push_now(lists, first.key, element, call.options)
        except redis.TimeoutError as error:
            raise OperationalError(str(translate(error))) from error
        except RedisErrors:
            # Celery sends it again, with its own policy for retries.
            return False
        return True

    def _push_now(self, lists: BrokerLists, key: str, element: str, options: Mapping[str, Any]) -> None:
        """Put the message of a call with *options* into a list.

        Raises OperationalError if it is unknown whether it arrived, else RedisErrors.
        """
        failures = lists.failures
        try:
            lists.push(key, element, partial(self._retries, options))
        finally:
            if lists.failures != failures:
                self._kinds.forget()

    def _retries(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return Celery's options for retries of a publish with *options*."""
        conf, retry = self._app.conf, options.get("retry")
        policy = {**(conf.task_publish_retry_policy or {}), **(options.get("retry_policy") or {})}
        return {"retry": conf.task_publish_retry if retry is None else retry, "retry_policy": policy}

    def _take(self, send: Send, options: Mapping[str, Any], seen: Seen) -> None:
        """Put a message that Celery made, such as that of *send*, where it goes."""
        if not self.sends.take(send, seen) and seen.lists is not None:
            self._push_now(seen.lists, seen.key, dumps(seen.message), options)

    def wrap(self, amqp: AMQP) -> None:
        """Capture the delayed messages of *amqp* from now on; no-op if already wrapped."""
        if CAPTURED in vars(amqp):
            return
        setattr(amqp, CAPTURED, [found for name in WRAPPED if (found := vars(amqp).get(name)) is not None])
        amqp.create_task_message = self._creator(method_of(amqp, "create_task_message"))
        amqp.send_task_message = self._sender(method_of(amqp, "send_task_message"))

    def _creator(self, creator: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
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
            send = self.sends.of(self._app, task_id)
            # A retry is not checked: Celery drops a task whose retry raises.
            send.countdown = countdown if send.is_retry else self._checked(countdown, eta)
            message = creator()(task_id, name, args, kwargs, send.countdown, eta, *rest, **named)
            return SentMessage.of(message, send)

        return create_task_message

    def _checked(self, countdown: Any, eta: Any) -> Any:
        """Return *countdown* in seconds; raises InvalidDelayError for an invalid delay."""
        if not countdown and not eta:
            return countdown
        # Read the settings first: an invalid time zone would be reported as an invalid eta.
        _ = self._stored.settings
        if countdown:
            # As Celery does, whatever the eta is.
            return seconds_of(countdown)
        check_eta(eta, self._app)
        return countdown

    def _sender(self, publisher: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
        def send_task_message(producer: Any, name: str, message: Any, **given: Any) -> Any:
            publish = publisher()
            # A retry copies the headers of its task's message.
            options = without_copied_headers(given) if self._app.current_task else given
            send = message.send if isinstance(message, SentMessage) else self.sends.of(self._app, _id(message))
            may_apply = name not in NOT_CAPTURED and (send.key is not None or self._flows.may_apply(name))
            send.queue = self._queue_of(given) if may_apply else None
            if send.queue is not None:
                send.header = self._header(send, name, send.queue, *_arguments(message))
            send.due = None if name in NOT_CAPTURED else self._due(send, message)
            if send.due is not None or send.through_store or send.kept is not None:
                return publish(self._into_store(producer, send), name, message, **options)
            # The creator of an InterceptingProducer sends the message later.
            is_sent = not isinstance(producer, InterceptingProducer)
            if send.header is not None and is_sent and self._is_ours(producer, send):
                keep = partial(self._put_into_flow, send, send.header, str(send.queue))
                return publish(InterceptingProducer(self._app, producer, keep), name, message, **options)
            # With protocol 1, headers are those of the application.
            if "id" in message.headers:
                message.headers[SENT] = sent_now()
            try:
                with self._taking(producer, send, given):
                    return publish(producer, name, message, **options)
            except (OperationalError, redis.exceptions.OutOfMemoryError, AttributeError) as error:
                _raise_unless_full(error, producer, retry=send.is_retry)
            # The store takes a retry even if its Redis is full: Celery drops a task whose retry is refused.
            send.due = self._due(send, message)
            return publish(self._into_store(producer, send), name, message, **options)

        return send_task_message

    @contextmanager
    def _taking(self, producer: Any, send: Send, options: Mapping[str, Any]) -> Iterator[None]:
        """Let this app take what *producer*, which sends the message of *send*, puts into lists in the `with` block."""
        if BrokerLists.of(producer) is None and send.batch is not None:
            # It must not overtake those that wait: it has no channel yet, or none to Redis.
            send.batch.send()
        before, current.take = current.take, partial(self._take, send, options)
        try:
            yield
        finally:
            current.take = before

    def _header(self, send: Send, name: str, queue: str, args: Any, kwargs: Any) -> FlowHeader | None:
        """Return the flow and the keys of a message for *queue*; None if it has no flow."""
        if not send.is_retry:
            found = self._flows.header(name, queue, args, kwargs)
        else:
            # The retry of a message goes where it was; Celery drops a task whose retry raises.
            request = self._app.current_task.request
            found = FlowHeader.of(vars(request)) or FlowHeader.of(request.headers)
        if send.key is not None:
            return replace(found or FlowHeader(), unique=send.key)
        return None if found is None else replace(found, unique=None)

    def _queue_of(self, options: Mapping[str, Any]) -> str | None:
        """Return the queue to which a send goes; None if an exchange chooses it."""
        queue = options.get("queue")
        if queue is None and not options.get("exchange"):
            queue = self._app.amqp.default_queue
        if isinstance(queue, str):
            queue = self._app.amqp.queues[queue]
        exchange = getattr(queue, "exchange", None)
        return queue.name if queue is not None and (exchange is None or exchange.type == "direct") else None

    def _put_into_flow(
        self, send: Send, header: FlowHeader, queue: str, envelope: Envelope, sending: Mapping[str, Any]
    ) -> bool:
        """Put a message for *queue* into the store, where it waits for admission."""
        if send.batch is not None:
            # Each message of a flow takes a round trip.
            send.batch.send()
        self._watch(send, envelope, sending)
        sent_as = _with_header(envelope, send)
        send.progress = Progress.BEGUN
        try:
            sent = with_retries(self._stored.flow_sender.prepare(sent_as, queue, header), sending)
        except StoreError as error:
            if not send.is_retry:
                raise OperationalError(str(error)) from error
            # Celery drops a task whose retry raises; the store takes it even if its Redis is full.
            return self._put_into_store(send, envelope, sending)
        if not sent:
            raise LostKeyError
        send.progress = Progress.CONFIRMED
        return True

    def _is_ours(self, producer: Any, send: Send) -> bool:
        """Return whether *producer* sends to the app's own broker; a caller may pass another producer."""
        connection = producer.connection
        if connection is None or self._own_broker.is_that_of(connection):
            return True
        broker = hide_secrets(connection.as_uri())
        if send.kept is not None:
            raise InvalidValueError(f"a schedule for {broker}: only tasks for the app's own broker can be stored")
        if broker not in self._warned:
            self._warned.add(broker)
            logger.warning(
                "delayed tasks sent to %s wait there: only tasks for the app's own broker are stored",
                broker,
                extra={"action": "other_broker"},
            )
        return False

    def _due(self, send: Send, message: Any) -> Due | None:
        """Return when *message* is due, or None if it is not to be stored.

        With a flow, short delays are stored, too: in a worker, the message would hold a place in its flow.
        """
        # Protocol 1 has the eta in the body.
        body = message.body if isinstance(message.body, Mapping) else {}
        eta = message.headers.get("eta") or body.get("eta")
        if not eta:
            return None
        shortest = 0.0 if send.header is not None or send.kept is not None else self._stored.settings.min_delay_seconds
        if send.countdown:
            return (max(0.0, float(send.countdown)), None) if send.countdown > shortest else None
        # As a worker reads it: a naive eta has the time zone of the app.
        due_at = maybe_make_aware(maybe_iso8601(eta), self._app.timezone)
        if shortest and (due_at - self._app.now()).total_seconds() <= shortest:
            return None
        return None, max(due_at, from_ms(1))

    def _into_store(self, producer: Any, send: Send) -> Any:
        """Return a producer that stores the message of *send*; *producer* itself if it sends to another broker."""
        if not self._is_ours(producer, send):
            return producer
        return InterceptingProducer(self._app, producer, partial(self._put_into_store, send))

    def _put_into_store(self, send: Send, envelope: Envelope, sending: Mapping[str, Any]) -> bool:
        """Store a message until it is due; return False if the broker is to get it, since it cannot be stored."""
        self._watch(send, envelope, sending)
        sent_as, due = _with_header(envelope, send), send.due or NOW
        if send.kept is not None:
            send.kept.append((sent_as, due))
            return True
        batch, policy = send.batch, self._stored.settings.on_store_error
        if batch is not None and policy != "broker" and not _is_distant(due):
            check_id(envelope.id)
            batch.add((sent_as, due))
            return True
        send.progress = Progress.BEGUN
        try:
            with_retries(partial(self._write, send, sent_as, due), sending)
        except StoreError as error:
            if policy != "broker" and not (policy is None and send.is_retry):
                raise OperationalError(str(error)) from error
            action, reason = "store_unavailable", f"the store is unavailable: {error}"
        except InvalidValueError as error:
            # A retry: the broker took the message before, so it will take it again. Celery takes more than ten
            # years, and any id.
            if not send.is_retry and not isinstance(error, InvalidDelayError) and is_id(envelope.id):
                raise
            action, reason = "store_refused", str(error)
        else:
            return True
        shown = envelope.id if is_id(envelope.id) else quoted(envelope.id)
        logger.warning("%s waits in the broker: %s", shown, reason, extra={"action": action, "task_id": envelope.id})
        return False

    def _watch(self, send: Send, envelope: Envelope, sending: Mapping[str, Any]) -> None:
        if self.sends.seen is not None:
            retries = {name: sending.get(name) for name in ("retry", "retry_policy")}
            self.sends.seen.append(Seen(envelope.headers, envelope, retries, send.queue))

    def _write(self, send: Send, envelope: Envelope, due: Due) -> None:
        if not send.is_retry:
            (is_replacement,) = self._stored.writer.store([(envelope, due)])
            if is_replacement:
                send.progress = Progress.REPLACED
            return
        request = self._app.current_task.request
        self._stored.writer.store_attempt(envelope, due, Attempt.of(vars(request), request.delivery_info))


def _is_distant(due: Due) -> bool:
    """Return whether the store does not take a message with this due time."""
    try:
        when(*due)
    except InvalidDelayError:
        return True
    return False


def _with_header(envelope: Envelope, send: Send) -> Envelope:
    """Return *envelope* with the header of *send*, and the time at which it is sent."""
    if send.header is None:
        return envelope
    # Last: the packed form has phrases of the other headers in their order.
    headers = {**envelope.headers, **send.header.headers, SENT: sent_now()}
    return envelope.like(envelope.body, headers, envelope.properties)


def _raise_unless_full(error: Exception, producer: Any, *, retry: bool) -> None:
    """Raise the *error* of a send by *producer*, unless a full Redis refused a *retry*."""
    # kombu has closed the channel after an outage, and uses it again: nothing was sent.
    if (
        isinstance(error, AttributeError)
        and getattr(getattr(producer, "_channel", None), "connection", producer) is None
    ):
        raise OperationalError("the connection to the broker was lost: send again") from error
    if not isinstance(error.__cause__ or error, redis.exceptions.OutOfMemoryError):
        raise error
    if not retry:
        raise OperationalError(f"{FULL} ({error})") from error


def _id(message: Any) -> Any:
    return message.headers.get("id") or message.properties.get("correlation_id")


def _arguments(message: Any) -> tuple[Any, Any]:
    body = message.body
    return (body["args"], body["kwargs"]) if isinstance(body, Mapping) else body[:2]
