"""Adopt: delayed tasks that stock workers left in kombu's Redis transport move into the store."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import redis
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.utils.json import loads

from redis_queue.batches import CHUNK, chunks
from redis_queue.celery.brokers import Broker
from redis_queue.celery.brokers.redis import RedisBroker
from redis_queue.celery.delayed import DelayedTasks
from redis_queue.celery.envelope import Envelope
from redis_queue.celery.listeners import Listeners
from redis_queue.celery.lists import ListNames
from redis_queue.celery.outage import broker_of
from redis_queue.celery.protocol import json_body, retries_of
from redis_queue.celery.tap import envelope_of
from redis_queue.delay import Foreign, Push
from redis_queue.errors import ConfigurationError, InvalidValueError, RedisQueueError
from redis_queue.scripts import Scripts
from redis_queue.times import from_ms

if TYPE_CHECKING:
    from celery import Celery

PASSES: Final = 4
"""Most looks at everything: a second one finds what moved during the first."""

MARGIN: Final = 60.0
"""Seconds by which clocks may differ, and between two looks."""

Progress = Callable[[int, int], None]
"""Takes how many are done and how many there are."""


class HeldByWorkersError(RedisQueueError):
    """A live worker holds these tasks in its memory and would run them as well."""


@dataclass(frozen=True, slots=True)
class Found:
    """One delayed task in the broker. *place* is its queue, or the key of what workers have not acknowledged."""

    id: str
    due_at: datetime
    place: str
    envelope: Envelope
    foreign: Foreign

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.envelope.task or str((json_body(self.envelope) or {}).get("task") or "")


@dataclass(frozen=True, slots=True)
class Left:
    """A delayed task that stays in the broker, and why."""

    id: str
    place: str
    reason: str


class Adoption:
    """Moves the delayed tasks that stock workers of *app* left in its Redis broker into the store.

    They are in the lists of the app's queues, and among what workers fetched and never acknowledged. Each is stored as
    if it had just been sent through DelayedTasks. None is lost or doubled: where broker and store are one Redis, each
    moves in one atomic step. Elsewhere it is stored first and then taken out of the broker; running again after a crash
    finds it stored and only takes it out. (One that falls due and is sent on between the crash and the next run, runs
    twice.)

    One whose id is stored already is left stored as it is. It is taken out of the broker where that loses nothing: when
    what is stored is the same message, or a later attempt (a retry has the id of the attempt before it, whose message
    a killed worker did not acknowledge). Of several attempts in the broker the last one is stored. Anything else with
    the same id is another call: it stays in the broker, where it runs as it would have, and is reported.

    Raises ConfigurationError where the broker is no Redis, HeldByWorkersError where a live worker holds one of these
    tasks, SilentWorkersError where one does not answer, BrokerUnavailableError and StoreUnavailableError where one of
    the two is away. May be interrupted at any point.
    """

    def __init__(self, app: Celery, *, progress: Progress | None = None) -> None:
        self._app = app
        self._delayed = DelayedTasks.of(app)
        self._progress = progress
        self._queue = self._delayed.queue
        #: Messages stored and taken out of the broker.
        self.adopted = 0
        #: Messages only taken out: what is stored covers them.
        self.removed = 0
        #: What stays in the broker.
        self.left: list[Left] = []

    def find(self) -> Iterator[Found]:
        """Yield every delayed task in the broker; :attr:`left` gets those that cannot be read. Changes nothing."""
        with broker_of(self._app, self._queue.client) as broker:
            transport = _Transport(self._app, broker)
            self.left = []
            for page in transport.pages():
                yield from self._readable(page)

    def run(self) -> None:
        """Adopt everything that is there now."""
        with broker_of(self._app, self._queue.client) as broker:
            transport = _Transport(self._app, broker)
            known = self._look(transport)
            if not known.tries:
                return
            self._refuse_if_held(known)
            for number in range(PASSES):
                self.left = []
                if not self._pass(transport, known, first=number == 0) and number:
                    break

    def _look(self, transport: _Transport) -> _Known:
        known = _Known()
        self.left = []
        for page in transport.pages():
            for found in self._readable(page):
                known.add(found)
        return known

    def _readable(self, page: Sequence[Found | Left]) -> list[Found]:
        self.left += [item for item in page if isinstance(item, Left)]
        return [item for item in page if isinstance(item, Found)]

    def _refuse_if_held(self, known: _Known) -> None:
        listeners = Listeners(self._app)
        held = listeners.held(known.overdue) & known.tries.keys() if listeners.ask() else set()
        if held:
            raise HeldByWorkersError(
                f"live workers ({', '.join(listeners.names)}) hold {len(held)} of these tasks in memory, such as "
                f"{min(held)}: stop them first; a warm shutdown puts their tasks back into the queues"
            )

    def _pass(self, transport: _Transport, known: _Known, *, first: bool) -> bool:
        """Go through everything once; tell whether anything went, or may go the next time."""
        before, again = self.adopted + self.removed, False
        for page in transport.pages():
            ours: list[tuple[Found, Push]] = []
            for found in self._readable(page):
                if not known.has(found):
                    self._leave(found, "a worker has just fetched it")
                elif not first or known.is_last(found):
                    ours += self._pushable(found)
            again |= self._take(transport, ours)
            if self._progress is not None:
                self._progress(self.adopted + self.removed, known.count)
        return again or self.adopted + self.removed > before

    def _pushable(self, found: Found) -> list[tuple[Found, Push]]:
        push = self._delayed.as_push(found.envelope, (None, found.due_at))
        try:
            self._queue.check(push)
        except InvalidValueError as error:
            self._leave(found, str(error))
            return []
        return [(found, push)]

    def _take(self, transport: _Transport, ours: Sequence[tuple[Found, Push]]) -> bool:
        """Take what can be taken; tell whether another look may find more."""
        if transport.shared:
            flags = self._queue.adopt([(push, found.foreign) for found, push in ours])
        else:
            flags = self._store_and_take_out(transport, ours)
        self.adopted += sum(map(bool, flags))
        stored = [pair for pair, flag in zip(ours, flags, strict=True) if flag is None]
        covered = [found for found, push in stored if self._is_covered(found, push)]
        # What was adopted before it moved it in its list; then the next pass takes it out.
        taken = self._queue.take_out([found.foreign for found in covered], transport.server)
        self.removed += sum(taken)
        missed = [found for (found, _), flag in zip(ours, flags, strict=True) if flag is False]
        missed += [found for found, flag in zip(covered, taken, strict=True) if not flag]
        for found in missed:
            self._leave(found, "it moved while it was looked at")
        return bool(missed)

    def _store_and_take_out(self, transport: _Transport, ours: Sequence[tuple[Found, Push]]) -> list[bool | None]:
        flags: list[bool | None] = [True if kept else None for kept in self._queue.keep_many(push for _, push in ours)]
        stored = [number for number, flag in enumerate(flags) if flag]
        gone = self._queue.take_out([ours[number][0].foreign for number in stored], transport.server)
        for number, taken in zip(stored, gone, strict=True):
            if not taken:
                # It went elsewhere meanwhile, so it is there and not here.
                self._queue.cancel(ours[number][0].id)
                flags[number] = False
        return flags

    def _leave(self, found: Found, reason: str) -> None:
        self.left.append(Left(found.id, found.place, reason))

    def _is_covered(self, found: Found, push: Push) -> bool:
        entry = self._queue.get(found.id)
        reason = "a dead letter has its id"
        if entry is not None:
            if entry.payload == push.payload:
                return True
            try:
                stored = Envelope.unpack(entry.payload, entry.id, entry.headers)
                if retries_of(stored) > retries_of(found.envelope):
                    return True
            except (InvalidValueError, AttributeError):
                pass
            reason = "another task with its id is stored"
        self._leave(found, reason)
        return False


class _Known:
    """What the first look found: only that may be taken, for only that were the workers asked about."""

    def __init__(self) -> None:
        #: The highest number of retries for each id.
        self.tries: dict[str, int] = {}
        self.count = 0
        #: Those that workers fetched and whose time has passed.
        self.overdue: set[str] = set()
        self._fetched: dict[int | bytes, float | None] = {}

    def add(self, found: Found) -> None:
        """Note one."""
        self.count += 1
        self.tries[found.id] = max(self.tries.get(found.id, 0), retries_of(found.envelope))
        if found.foreign.index:
            self._fetched[found.foreign.place] = found.foreign.score
            if found.due_at.timestamp() <= time.time() + MARGIN:
                self.overdue.add(found.id)

    def has(self, found: Found) -> bool:
        """Tell whether no worker has it: it waits in a list, or has not been fetched again since the look."""
        foreign = found.foreign
        return not foreign.index or self._fetched.get(foreign.place, _NEVER) == foreign.score

    def is_last(self, found: Found) -> bool:
        """Tell whether no later attempt of the same task is there."""
        return retries_of(found.envelope) >= self.tries.get(found.id, 0)


_NEVER: Final = -1.0


class _Transport:
    """What kombu's Redis transport keeps in its lists, and in its hash of messages that no worker acknowledged."""

    def __init__(self, app: Celery, broker: Broker) -> None:
        if not isinstance(broker, RedisBroker):
            kind = broker.connection.transport.driver_type
            raise ConfigurationError(f"the broker is no Redis ({kind}): there is nothing that could be adopted from it")
        self._app = app
        self.shared = broker.shares_store
        self._names: ListNames = broker.names
        with broker.channel.conn_or_acquire() as client:
            # kombu's own client would put its prefix before some keys and not before others.
            self.server = redis.Redis(connection_pool=client.connection_pool)
        self._unacked = f"{self._names.prefix}{broker.channel.unacked_key}"
        self._index = f"{self._names.prefix}{broker.channel.unacked_index_key}"
        self._send = Scripts(self.server).command

    def pages(self) -> Iterator[list[Found | Left]]:
        """Yield all delayed tasks, page by page; what is taken out on the way keeps nothing from being seen."""
        for queue in list(self._app.amqp.queues):
            for key in self._names.all_of(queue):
                yield from self._listed(queue, key)
        yield from self._fetched()

    def _listed(self, queue: str, key: str) -> Iterator[list[Found | Left]]:
        # From the left end, where new ones come in: what is taken out there moves nothing that is yet to be seen.
        start = -int(self._send("LLEN", key))
        while start < 0:
            elements = self._send("LRANGE", key, start, min(start + CHUNK, 0) - 1)
            places = range(min(start + CHUNK, 0) - len(elements), 0)
            rows = [
                self._found(queue, Foreign(element, key, place), loads_element(element))
                for element, place in zip(elements, places, strict=False)
            ]
            yield [row for row in rows if row is not None]
            start += CHUNK

    def _fetched(self) -> Iterator[list[Found | Left]]:
        cursor: Any = b"0"
        while True:
            cursor, fields = self._send("HSCAN", self._unacked, cursor, "COUNT", CHUNK)
            pairs = iter(fields)
            for chunk in chunks(zip(pairs, pairs, strict=True)):
                scores = self._send("ZMSCORE", self._index, *(tag for tag, _ in chunk))
                rows = [self._unacknowledged(*pair, score) for pair, score in zip(chunk, scores, strict=True)]
                yield [row for row in rows if row is not None]
            if int(cursor) == 0:
                return

    def _unacknowledged(self, tag: bytes, value: bytes, score: Any) -> Found | Left | None:
        known = loads_element(value)
        if not isinstance(known, list) or len(known) != _PARTS:
            return None
        message, exchange, routing_key = known
        foreign = Foreign(value, self._unacked, tag, self._index, None if score is None else float(score))
        return self._found(self._queue_of(exchange, routing_key), foreign, message, place=self._unacked)

    def _queue_of(self, exchange: str, routing_key: str) -> str:
        if not exchange:
            return routing_key
        queues = self._app.amqp.queues.values()
        names = (item.name for item in queues if (item.exchange.name, item.routing_key) == (exchange, routing_key))
        return next(names, "")

    def _found(self, queue: str, foreign: Foreign, message: Any, place: str = "") -> Found | Left | None:
        """Return the task in *message* if it has an eta."""
        if not isinstance(message, Mapping) or "body" not in message:
            return None
        place = place or queue
        try:
            read = envelope_and_eta(self._app, message, queue)
            if read is None:
                return None
            envelope, due_at = read
            if not envelope.id:
                raise ValueError("it has no id")
            return Found(envelope.id, due_at, place, envelope, foreign)
        except Exception as error:  # noqa: BLE001 - whatever stands in a broker, the others have to move
            return Left(_id_of(message), place, f"cannot be read: {type(error).__name__}: {error}")


_PARTS: Final = 3
_OF_THE_TRANSPORT: Final = ("delivery_info", "delivery_tag", "body_encoding", "expiration")


class _Plain:
    """Stands for the producer of a message that is serialised already."""

    serializer = "json"
    compression = None


def loads_element(data: bytes) -> Any:
    """Return what *data* holds, or None if it is no JSON."""
    try:
        return loads(data.decode())
    except (ValueError, TypeError, LookupError):
        return None


def envelope_and_eta(app: Celery, message: Mapping[str, Any], queue: str) -> tuple[Envelope, datetime] | None:
    """Return a message of kombu's Redis transport as DelayedTasks would have stored it, and when it is due.

    None if it has no eta. *queue* is the one it reached, "" if that is not known.
    """
    headers = {name: value for name, value in (message.get("headers") or {}).items() if name != "redelivered"}
    properties = dict(message.get("properties") or {})
    body: Any = message["body"]
    if properties.get("body_encoding") == "base64":
        body = base64.b64decode(body)
    elif isinstance(body, str):
        body = body.encode(message.get("content-encoding") or "utf-8")
    options: dict[str, Any] = {"content_type": message["content-type"], "content_encoding": message["content-encoding"]}
    call: Mapping[str, Any] = headers
    if "task" not in headers:
        call = json_body_of(options["content_type"], headers, body) or {}
        body, options = {**call, "eta": None}, {"serializer": "json"}
    if not call.get("eta"):
        return None
    due_at = _aware(app, call["eta"])
    route = properties.get("delivery_info") or {}
    known = app.amqp.queues.get(queue)
    envelope = envelope_of(
        app,
        _Plain,
        body,
        {
            **{name: value for name, value in properties.items() if name not in _OF_THE_TRANSPORT},
            **options,
            "headers": headers,
            "exchange": route.get("exchange") or "",
            "routing_key": route.get("routing_key") or "",
            "declare": [] if known is None else [known],
        },
    )
    return replace(envelope, expires_at=_expires_at(app, call, properties)), max(due_at, from_ms(1))


def _expires_at(app: Celery, call: Mapping[str, Any], properties: Mapping[str, Any]) -> int | None:
    left = properties.get("expiration")
    if left is None:
        return None
    if call.get("expires"):
        return round(_aware(app, call["expires"]).timestamp() * 1000)
    # When it was sent is not known: it lives too long rather than too short.
    return round(time.time() * 1000) + int(left)


def _aware(app: Celery, value: Any) -> datetime:
    """Read a time as a worker does."""
    found: datetime = maybe_make_aware(maybe_iso8601(value), app.timezone)
    return found


def _id_of(message: Mapping[str, Any]) -> str:
    headers, properties = message.get("headers"), message.get("properties")
    known = (headers if isinstance(headers, Mapping) else {}), (properties if isinstance(properties, Mapping) else {})
    return str(known[0].get("id") or known[1].get("correlation_id") or "")


def json_body_of(content_type: Any, headers: Mapping[str, Any], body: bytes) -> Mapping[str, Any] | None:
    """Return the body of a message of protocol 1, or None if it is no JSON."""
    return json_body(Envelope(body, str(content_type), "utf-8", headers, {}, "", ""))
