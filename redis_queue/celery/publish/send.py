"""Send: one call on its way into a message, from ``send_task`` to the broker or the store."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from celery import Celery
from celery.app.amqp import task_message
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.json import dumps

from redis_queue.basics.times import MAX_DELAY, Seconds, duration_ms
from redis_queue.celery.message.envelope import Due, Envelope
from redis_queue.celery.message.headers import FlowHeader, UniqueHeader
from redis_queue.errors import InvalidDelayError

if TYPE_CHECKING:
    from redis_queue.celery.publish.batch import Batch
    from redis_queue.celery.publish.lists import Seen

T = TypeVar("T")

_OPTIONS: Final = ("global_keyprefix", "master_name")
"""Transport options that select other queues on the same server."""


class Progress(IntEnum):
    """How far a send got."""

    #: No part of the message has left this process.
    MADE = 0
    #: The sending has begun: the message may have arrived even if the sending fails.
    BEGUN = 1
    #: The message was stored in place of another one, which is gone.
    REPLACED = 2
    #: Redis knows that the message was sent: the key of a unique task needs no second step.
    CONFIRMED = 3


class LostKeyError(Exception):
    """Another message owns the key by now: the message was not sent."""


@dataclass(slots=True)
class Send:
    """The sending of the message *task_id*: what the message carries, and how far the sending got."""

    task_id: Any
    #: Whether the running task sends it with its own id. Celery drops a task whose retry raises.
    is_retry: bool = False
    #: The delay that was given: the message has only the eta that Celery computed from it.
    countdown: Any = None
    #: When it is due, if it is to be stored until then.
    due: Due | None = None
    #: The batch with which it is sent.
    batch: Batch | None = None
    #: Gets the message in place of store and broker, if it is there.
    kept: list[tuple[Envelope, Due]] | None = None
    #: The key that the message of a unique task owns.
    key: UniqueHeader | None = None
    #: Whether it replaces a message that waits in the store: then it is stored too, in place of that message.
    through_store: bool = False
    #: The queue to which it goes, if its task may belong to a flow.
    queue: str | None = None
    #: The flow and the keys that stand in the message.
    header: FlowHeader | None = None
    progress: Progress = Progress.MADE

    @property
    def carries_key(self) -> bool:
        """Whether the key of its unique task stands in the message."""
        return self.header is not None and self.header.unique is not None


class SentMessage(task_message):  # type: ignore[misc]
    """Celery's message with its Send. Celery passes only the message from ``create_task_message`` to the sender."""

    send: Send

    @classmethod
    def of(cls, message: Any, send: Send) -> Any:
        """Return *message* with *send*; as it is if another library made it."""
        if type(message) is not task_message:
            return message
        found = cls(*message)
        found.send = send
        return found


class Sends(threading.local):
    """What a thread is about to send.

    It is kept per thread, since Celery passes no data of ours from ``send_task`` to ``create_task_message``.
    """

    #: The next message of a unique task, or of one that is kept.
    opened: Send | None = None
    #: What takes the calls that this thread makes.
    batch: Batch | None = None
    #: What takes the call to whose result Celery subscribes.
    subscribing: Batch | None = None
    #: What became of the messages that Celery makes, if somebody watches.
    seen: list[Seen] | None = None

    @contextmanager
    def collect(self, batch: Batch) -> Iterator[None]:
        """Add the messages of the `with` block to *batch*."""
        with self._set(opened=None, batch=batch):
            yield

    def alone(self, work: Callable[..., T], *args: Any, **options: Any) -> T:
        """Return ``work(*args, **options)``; what it sends is sent at once, for it may wait for that."""
        batch, self.batch = self.batch, None
        try:
            return work(*args, **options)
        finally:
            self.batch = batch

    def subscribe(self, batch: Batch | None, work: Callable[..., Any], *args: Any) -> None:
        """Call *work*, with which Celery subscribes to the result of a call in *batch*."""
        self.subscribing = batch
        try:
            work(*args)
        finally:
            self.subscribing = None

    def batch_of_result(self, task_id: Any) -> Batch | None:
        """Return the batch that takes, or has taken, the call *task_id*, to whose result Celery subscribes."""
        if self.opened is not None and self.opened.task_id == task_id:
            return self.opened.batch
        # Celery unsubscribes when the result of the call goes, and a group subscribes again by its own.
        has_taken = self.batch is not None and task_id in self.batch.awaited
        return self.batch if has_taken else self.subscribing

    @contextmanager
    def keep(self, task_id: str) -> Iterator[list[tuple[Envelope, Due]]]:
        """Yield a list that gets the message *task_id* of the `with` block; all others are sent, each at once.

        That of a unique task is sent as well.
        """
        kept: list[tuple[Envelope, Due]] = []
        with self._set(opened=Send(task_id, kept=kept), batch=None):
            yield kept

    @contextmanager
    def watch(self) -> Iterator[list[Seen]]:
        """Yield a list of what becomes of the messages that Celery makes in the `with` block."""
        found: list[Seen] = []
        with self._set(seen=found):
            yield found

    @contextmanager
    def open(self, send: Send) -> Iterator[None]:
        """Use *send* for the message that the `with` block sends under its id."""
        with self._set(opened=send, batch=None):
            yield

    def take(self, send: Send, seen: Seen) -> bool:
        """Note what becomes of a message for a list of the broker; return whether it is sent later, as *send* is."""
        if self.seen is not None:
            self.seen.append(seen)
        task_id = seen.message["properties"].get("correlation_id")
        # User code may send others meanwhile.
        if send.batch is None or seen.lists is None or task_id != send.task_id:
            return False
        send.batch.push(seen.lists, seen.key, dumps(seen.message), str(task_id))
        return True

    def of(self, app: Celery, task_id: Any) -> Send:
        """Return the Send for the message *task_id* of *app*: the open one if it has this id, else a new one."""
        found = self.opened
        if found is not None and found.task_id == task_id:
            return found
        return Send(task_id, is_retry_of(app, task_id))

    @contextmanager
    def _set(self, **values: Any) -> Iterator[None]:
        before = {name: getattr(self, name) for name in values}
        try:
            for name, value in values.items():
                setattr(self, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)


class OwnBroker:
    """The broker to which *app* writes."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._known: set[tuple[Any, ...]] = set()

    def is_that_of(self, connection: Any) -> bool:
        """Return whether kombu's *connection* leads to this broker, with any login. It does not connect."""
        options = _options_of(connection)
        if options in self._known:
            return True
        with self._app.connection_for_write() as own:
            same = _place_of(connection) == _place_of(own)
        # Others are not remembered: an app may get its settings late.
        if same:
            self._known.add(options)
        return same


def is_retry_of(app: Celery, task_id: Any) -> bool:
    """Return whether the running task sends a message with its own id; Celery drops a task whose retry raises."""
    task = app.current_task
    return task is not None and str(task.request.id) == str(task_id)


def seconds_of(countdown: Seconds | None) -> float | None:
    """Return *countdown* in seconds; negative values are sent at once. Raises InvalidDelayError.

    It may be more than ten years: the store does not take such a call, and Celery does.
    """
    if countdown is None:
        return None
    seconds = countdown.total_seconds() if isinstance(countdown, timedelta) else countdown
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        # Celery refuses numbers of more than 32 bits.
        if -math.inf < seconds < 0:
            return max(seconds, -MAX_DELAY.total_seconds())
        if MAX_DELAY.total_seconds() < seconds < 1 << 31:
            return seconds
    duration_ms(countdown, name="countdown")
    return seconds


def check_eta(eta: Any, app: Celery) -> datetime:
    """Return *eta*, a datetime or one in ISO 8601, with a time zone; raises InvalidDelayError.

    It may be more than ten years away: the store does not take such a call, and Celery does.
    """
    if not isinstance(eta, str | datetime):
        raise InvalidDelayError(f"eta={eta!r}: must be a datetime")
    try:
        moment: datetime = maybe_make_aware(maybe_iso8601(eta), app.timezone)
    except (ValueError, OverflowError):
        raise InvalidDelayError(f"eta={eta!r}: must be a datetime, or one in ISO 8601") from None
    try:
        moment.astimezone(timezone.utc)
    except OverflowError:
        raise InvalidDelayError(f"eta={eta!r}: must be in the calendar of UTC") from None
    return moment


def _options_of(connection: Any) -> tuple[Any, ...]:
    """Return the options of a connection; they are equal for all connections of one pool."""
    options = connection.transport_options or {}
    # With several alternatives, a connection may be to any of them.
    place = tuple(connection.alt) or (connection.hostname, connection.port, connection.virtual_host)
    return connection.transport_cls, place, *(options.get(name) for name in _OPTIONS)


def _place_of(connection: Any) -> tuple[Any, ...]:
    """Return the options of a connection with the defaults of its transport."""
    info, options = connection.info(), connection.transport_options or {}
    # The default database is 0; the virtual host "/" may also be written as "".
    place = tuple(connection.alt) or (info["hostname"], info["port"], str(info["virtual_host"] or "").strip("/") or "0")
    return connection.get_transport_cls(), place, *(options.get(name) or "" for name in _OPTIONS)
