"""Batch: messages of one thread that are sent together, of a group or of ``send_many``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final

from celery import Celery, Signature, group
from celery.backends.redis import ResultConsumer
from kombu.exceptions import KombuError, OperationalError

from redis_queue.basics.logs import hide_secrets
from redis_queue.basics.times import monotonic
from redis_queue.celery.entries import with_retries
from redis_queue.celery.kombu.internals import SENDING, around, has
from redis_queue.celery.message.envelope import Due, Envelope
from redis_queue.celery.publish.kinds import Call, Like
from redis_queue.celery.settings import extension_of
from redis_queue.errors import RedisQueueError, StoreError
from redis_queue.store.chunks import CHUNK
from redis_queue.store.redis_errors import UNKNOWN, RedisErrors, may_have_arrived, translate

if TYPE_CHECKING:
    from redis_queue.celery.publish.lists import BrokerLists

MAX_CHARACTERS: Final = 1 << 20
"""Characters of messages for the broker that are sent in one round trip, at most by one message more."""

MAX_READING: Final = 0.01
"""Seconds after which no more signatures are read before those that were read are sent."""

Entry = tuple[Envelope, Due]
_Row = tuple[str, str, str]


class PartlySentError(OperationalError):
    """Some messages of a group, or of ``send_many``, were sent, and then one could not be; the cause is attached.

    Those that are in neither list were not sent.
    """

    def __init__(self, text: str, sent: Sequence[str], unknown: Sequence[str]) -> None:
        super().__init__(text)
        #: Ids of the tasks that were sent.
        self.sent = list(sent)
        #: Ids of the tasks of which nobody knows whether they were sent: the reply of Redis was lost.
        self.unknown = list(unknown)


class Batch:
    """Entries for the store and elements for lists of the broker, sent 500 at a time.

    *store* writes entries, and *sending* has Celery's options for retries of the rest.
    """

    def __init__(self, store: Callable[[list[Entry]], Any], sending: Mapping[str, Any]) -> None:
        self._store = store
        self._sending = sending
        self.entries: list[Entry] = []
        #: Ids of those that were sent.
        self.sent: list[str] = []
        self._unknown: list[str] = []
        #: The call before and what sends others like it, if there may be others.
        self.last: tuple[Call, Callable[[Call, Batch], Any]] | None = None
        self._like: Like | None = None
        self._error: Exception | None = None
        self._lists: BrokerLists | None = None
        self._rows: list[_Row] = []
        self._size = 0
        self._channels: list[str] = []
        #: Ids of the tasks to whose results it subscribes when it is sent.
        self.awaited: set[str] = set()
        self._subscriber: Any = None

    def __len__(self) -> int:
        return len(self.sent) + len(self.entries) + len(self._rows)

    def add(self, entry: Entry) -> None:
        """Take an entry for the store."""
        self.entries.append(entry)
        if len(self.entries) >= CHUNK:
            self.send()

    def push(self, lists: BrokerLists, key: str, element: str, task_id: str) -> None:
        """Take an element for the list *key*."""
        if self._lists is not None and self._lists is not lists:
            self.send()
        self._lists = lists
        self._rows.append((key, element, task_id))
        self._size += len(element)
        if len(self._rows) >= CHUNK or self._size >= MAX_CHARACTERS:
            self.send()

    def apply(self, task: Signature, args: Any = None, kwargs: Any = None, chord: Any = None, **options: Any) -> Any:
        """Return ``task.apply_async(...)``; the arguments must be those for the task before."""
        like = self._like
        self.forget()
        call = None if like is None or args or kwargs or chord else like.call(task)
        if like is not None and call is not None:
            taken = self.check()
            result = like.send(call, self)
            if result is not None:
                self._like = like
                self.count(taken, call.id)
                return result
        result = task.apply_async(args, kwargs, chord=chord, **options)
        # In place of that of the last task in *task*, if it is a group.
        self._like = None if self.last is None else Like(task, *self.last)
        return result

    def forget(self) -> None:
        """Let Celery make the next message."""
        self.last = self._like = None

    def check(self) -> int:
        """Return the length; raise the error that ended the batch, if one did: a caller may have caught it."""
        if self._error is not None:
            raise self._error
        return len(self)

    def count(self, before: int, task_id: str) -> None:
        """Note that *task_id* was sent by itself, if the length is still that *before*."""
        if len(self) == before:
            self.sent.append(task_id)

    def send(self) -> None:
        """Send what is left. Raises PartlySentError if some were sent before, else OperationalError."""
        self.check()
        with self.ending():
            if self._channels:
                self._subscribe()
            self._send_rows()
            self._send_entries()

    def subscribe_later(self, consumer: Any, subscribe: Callable[[str], Any], task_id: str) -> None:
        """Let *subscribe*, which belongs to Celery's *consumer* of results, do all but the call of Redis."""
        pubsub = consumer._pubsub
        pubsub.subscribe = self._channels.append
        try:
            subscribe(task_id)
        finally:
            del pubsub.subscribe
        self._subscriber = consumer
        self.awaited.add(task_id)

    def _subscribe(self) -> None:
        """Subscribe to the results of what is sent next. Raises OperationalError."""
        consumer, channels, self._channels = self._subscriber, self._channels, []
        self.awaited = set()
        # Celery 5.5 has no lock: each thread has its own consumer.
        with getattr(consumer, "_locked", nullcontext)():
            wanted = [channel for channel in channels if channel in consumer.subscribed_to]
            if not wanted:
                return
            try:
                with consumer.reconnect_on_error():
                    consumer._pubsub.subscribe(*wanted)
            except RedisErrors as error:
                raise OperationalError(hide_secrets(str(error))) from error

    @contextmanager
    def ending(self) -> Iterator[None]:
        """End the batch if the `with` block fails: what was not sent is dropped, and the error tells what was."""
        try:
            yield
        except Exception as error:
            if error is not self._error:
                self._error = self._told(error)
            if self._error is error:
                raise
            raise self._error from error

    def _told(self, error: Exception) -> Exception:
        """Return the error to raise for the *error* that ends the batch."""
        self.entries, self._rows = [], []
        if self._subscriber is not None:
            # Whoever waits for them all the same has to subscribe.
            self._subscriber.subscribed_to.difference_update(self._channels)
        if isinstance(error, PartlySentError):
            return error
        if not self.sent and not self._unknown:
            return OperationalError(str(error)) if isinstance(error, StoreError) else error
        doubt = f"; whether the next {len(self._unknown):,} were is unknown" if self._unknown else ", and no more"
        text = f"{len(self.sent):,} messages were sent{doubt}, because of {type(error).__name__}: {error}"
        if isinstance(error, KombuError | RedisQueueError):
            return PartlySentError(text, self.sent, self._unknown)
        # An error of the caller's own code, or a time limit, stays what it is. Python 3.10 has no notes.
        getattr(error, "add_note", str)(text)
        return error

    def _send_rows(self) -> None:
        rows, self._rows, self._size = self._rows, [], 0
        if rows:
            with_retries(partial(self._push, self._lists, rows), self._sending)

    def _push(self, lists: Any, rows: list[_Row]) -> None:
        """Send *rows*, and take out of it those that were sent."""
        # Also if a signal ends the call, such as that of a time limit.
        self._unknown = [id_ for *_, id_ in rows]
        try:
            errors = lists.push_many([(key, element) for key, element, _ in rows])
        except RedisErrors as error:
            failed = translate(error, unknown=may_have_arrived(error))
            if may_have_arrived(error):
                # Not again: they would be sent twice.
                raise self._told(failed) from error
            self._unknown = []
            raise failed from error
        self._unknown = []
        self.sent += [id_ for (*_, id_), error in zip(rows, errors, strict=True) if error is None]
        rows[:] = [row for row, error in zip(rows, errors, strict=True) if error is not None]
        if rows:
            first = next(filter(None, errors))
            raise translate(first) from first

    def _send_entries(self) -> None:
        if not self.entries:
            return
        entries, self.entries = self.entries, []
        self._unknown = [envelope.id for envelope, _ in entries]
        try:
            # Each replaces the entry of its id.
            with_retries(partial(self._store, entries), self._sending)
        except StoreError as error:
            if UNKNOWN not in str(error):
                self._unknown = []
            raise
        self.sent += self._unknown
        self._unknown = []


def read_ahead(items: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield *items* in lists of up to 500. None is read after 10 ms: what was read before must not wait for it."""
    # To read a list takes no code of the user.
    longest = math.inf if type(items) in (list, tuple) else MAX_READING
    chunk: list[Any] = []
    until = monotonic() + longest
    for item in items:
        chunk.append(item)
        if len(chunk) >= CHUNK or monotonic() >= until:
            yield chunk
            chunk = []
            until = monotonic() + longest
    if chunk:
        yield chunk


def subscribe_in_batches(app: Celery, batch_of: Callable[[str], Batch | None]) -> None:
    """Subscribe to results of *app* in Redis when a batch is sent, in one command; *batch_of* returns that of a task.

    Celery sends one SUBSCRIBE for each result, which takes longer than to send the task.
    """
    consumer = getattr(app.backend, "result_consumer", None) if app.conf.result_backend and has(SENDING) else None
    if not isinstance(consumer, ResultConsumer) or "_consume_from" in vars(consumer):
        return

    def consume(subscribe: Callable[[str], Any], task_id: str) -> None:
        batch = batch_of(task_id)
        if batch is None or consumer._pubsub is None:
            subscribe(task_id)
        else:
            batch.subscribe_later(consumer, subscribe, task_id)

    around(consumer, "_consume_from", consume)


def batch_groups() -> None:
    """Let a group of an app with DurableTasks send its messages in batches; headers of chords are groups.

    Not if code of the user takes part in reading or sending them, as that of a generator, a receiver or a task's own
    ``apply_async``: it may wait for a message that waits in the batch.
    """
    if not has(SENDING) or hasattr(group._apply_tasks, "__wrapped__"):
        return
    original = group._apply_tasks

    @wraps(original)
    def apply_tasks(self: Any, tasks: Any, producer: Any = None, app: Any = None, *args: Any, **options: Any) -> Any:
        app = app or self.app
        durable = extension_of(app)
        if durable is None or not durable.delays:
            return original(self, tasks, producer, app, *args, **options)
        sends = durable.sends
        if not durable.capture.may_batch([self]):
            if sends.batch is not None:
                sends.batch.send()
            return sends.alone(lambda: list(original(self, tasks, producer, app, *args, **options)))
        with durable.batch() as batch:
            members = ((_Member(batch, task) if type(task) is Signature else task, *rest) for task, *rest in tasks)
            try:
                return list(original(self, members, producer, app, *args, **options))
            except Exception as raised:  # noqa: BLE001 - raised below
                error = raised
        # As with Celery, the messages before this one were sent.
        raise error

    group._apply_tasks = apply_tasks


class _Member:
    """What a group uses of the signature of one task."""

    __slots__ = ("apply_async", "options")

    def __init__(self, batch: Batch, task: Signature) -> None:
        self.options = task.options
        self.apply_async = partial(batch.apply, task)

    def __len__(self) -> int:
        return 1
