"""KombuBacklog: read the delayed tasks that stock Celery keeps in the keys of kombu's Redis transport."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from celery import Celery
from celery.utils.time import maybe_iso8601, maybe_make_aware

from redis_queue.basics.times import END_OF_CALENDAR_MS, from_ms
from redis_queue.celery.brokers.base import Broker
from redis_queue.celery.brokers.redis import RedisBroker
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.keys import InFlightKeys, ListNames
from redis_queue.celery.message.body import json_body
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.producer import envelope_of
from redis_queue.celery.queues.names import QueueNames
from redis_queue.delay.model import ForeignMessage
from redis_queue.errors import ConfigurationError
from redis_queue.store.chunks import CHUNK, chunks
from redis_queue.store.codec import MAX_DIGITS, read_document
from redis_queue.store.scripts import Scripts

_RECORD_LENGTH: Final = 3
"""Items of an in-flight record: message, exchange and routing key."""

_TRANSPORT_PROPERTIES: Final = ("delivery_info", "delivery_tag", "body_encoding", "expiration")


@dataclass(frozen=True, slots=True)
class BacklogTask:
    """One delayed task in the broker; *place* is its queue, or the key of the in-flight records of workers."""

    id: str
    due_at: datetime
    place: str
    envelope: Envelope
    foreign: ForeignMessage

    @property
    def task(self) -> str:
        """The name of the task."""
        return self.envelope.task or str((json_body(self.envelope) or {}).get("task") or "")


@dataclass(frozen=True, slots=True)
class RemainingTask:
    """A delayed task that stays in the broker, with the *reason*."""

    id: str
    place: str
    reason: str


class KombuBacklog:
    """The delayed tasks in the lists of kombu's Redis transport, and in its records of messages in flight."""

    def __init__(self, app: Celery, broker: Broker) -> None:
        if not isinstance(broker, RedisBroker):
            kind = broker.connection.transport.driver_type
            raise ConfigurationError(f"the broker is {kind}: must be Redis; other brokers hold nothing to adopt")
        self._app = app
        self._queue_names = QueueNames(app)
        self.shared = broker.shares_store
        self._names: ListNames = broker.names
        self.server = client_of(broker.channel)
        self._in_flight = InFlightKeys.of(broker.channel)
        self._scripts = Scripts(self.server)
        self._send = self._scripts.command

    def pages(self) -> Iterator[list[BacklogTask | RemainingTask]]:
        """Yield all delayed tasks, page by page; no task is skipped if others are taken out meanwhile."""
        for queue in list(self._app.amqp.queues):
            for key in self._names.all_of(queue):
                yield from self._in_list(queue, key)
        yield from self._in_records()

    def _in_list(self, queue: str, key: str) -> Iterator[list[BacklogTask | RemainingTask]]:
        # Pages begin at the left end: to take out their elements does not move the elements of later pages.
        start = -int(self._send("LLEN", key))
        while start < 0:
            elements = self._send("LRANGE", key, start, min(start + CHUNK, 0) - 1)
            places = range(min(start + CHUNK, 0) - len(elements), 0)
            rows = [
                self._read(queue, ForeignMessage(element, key, place), loads_element(element))
                for element, place in zip(elements, places, strict=False)
            ]
            yield [row for row in rows if row is not None]
            start += CHUNK

    def _in_records(self) -> Iterator[list[BacklogTask | RemainingTask]]:
        for page in self._scripts.scan("HSCAN", self._in_flight.unacked, count=CHUNK):
            for chunk in chunks(page):
                scores = self._send("ZMSCORE", self._in_flight.index, *(tag for tag, _ in chunk))
                rows = [self._read_record(*pair, score) for pair, score in zip(chunk, scores, strict=True)]
                yield [row for row in rows if row is not None]

    def _read_record(self, tag: bytes, value: bytes, score: Any) -> BacklogTask | RemainingTask | None:
        known = loads_element(value)
        if not isinstance(known, list) or len(known) != _RECORD_LENGTH:
            return None
        message, exchange, routing_key = known
        keys, since = self._in_flight, None if score is None else float(score)
        foreign = ForeignMessage(value, keys.unacked.decode(), tag, keys.index.decode(), since)
        return self._read(self._queue_names.bound(exchange, routing_key), foreign, message, place=foreign.key)

    def _read(
        self, queue: str, foreign: ForeignMessage, message: Any, place: str = ""
    ) -> BacklogTask | RemainingTask | None:
        """Return the task in *message*, None if it has no eta."""
        if not isinstance(message, Mapping) or "body" not in message:
            return None
        place = place or queue
        try:
            envelope, due_at = envelope_and_eta(self._app, message, queue)
            if due_at is None:
                return None
            if not envelope.id:
                raise ValueError("it has no id")
            return BacklogTask(envelope.id, due_at, place, envelope, foreign)
        except Exception as error:  # noqa: BLE001 - one unreadable message must not stop the others
            return RemainingTask(_id_of(message), place, f"cannot be read: {type(error).__name__}: {error}")


class _Plain:
    """Replaces the producer: the message is already serialised."""

    serializer = "json"
    compression = None


def loads_element(data: bytes) -> Any:
    """Return the JSON document in *data*, or None if it is not JSON."""
    try:
        return read_document(data)
    except ValueError:
        return None


def envelope_and_eta(app: Celery, message: Mapping[str, Any], queue: str) -> tuple[Envelope, datetime | None]:
    """Return a message of kombu's Redis transport as DurableTasks would have stored it, and its due time.

    That is None if it has no eta. *queue* is the queue that it reached, "" if unknown.
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
        call = json_body(Envelope(body, str(message["content-type"]), "utf-8", headers, {}, "", "")) or {}
        body, options = call, {"serializer": "json"}
    due_at = max(_aware(app, call["eta"]), from_ms(1)) if call.get("eta") else None
    route = properties.get("delivery_info") or {}
    known = app.amqp.queues.get(queue)
    envelope = envelope_of(
        app,
        _Plain,
        body,
        {
            **{name: value for name, value in properties.items() if name not in _TRANSPORT_PROPERTIES},
            **options,
            "headers": headers,
            "exchange": route.get("exchange") or "",
            "routing_key": route.get("routing_key") or "",
            "declare": [] if known is None else [known],
        },
    )
    return replace(envelope, expires_at=_expires_at(app, call, properties)), due_at


def _expires_at(app: Celery, call: Mapping[str, Any], properties: Mapping[str, Any]) -> int | None:
    left = properties.get("expiration")
    if left is None:
        return None
    if call.get("expires"):
        return round(_aware(app, call["expires"]).timestamp() * 1000)
    # The time of the publish is unknown: rather keep the message too long than too short.
    return min(round(time.time() * 1000) + int(str(left)[:MAX_DIGITS]), END_OF_CALENDAR_MS)


def _aware(app: Celery, value: Any) -> datetime:
    """Read a time as a worker does."""
    found: datetime = maybe_make_aware(maybe_iso8601(value), app.timezone)
    return found


def _id_of(message: Mapping[str, Any]) -> str:
    headers, properties = message.get("headers"), message.get("properties")
    known = (headers if isinstance(headers, Mapping) else {}), (properties if isinstance(properties, Mapping) else {})
    return str(known[0].get("id") or known[1].get("correlation_id") or "")
