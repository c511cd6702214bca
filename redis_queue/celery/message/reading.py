"""Read an entry, whether it holds a captured message or a call, and make the message that Celery sends of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from redis_queue.celery.message.attempt import CALL, ETA, call_in, call_name
from redis_queue.celery.message.destinations import Destinations
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.intercepting_producer import InterceptingProducer
from redis_queue.celery.message.task_call import TaskCall, task_options
from redis_queue.celery.message.trace_headers import with_schedule
from redis_queue.celery.message.unique_header import UniqueHeader
from redis_queue.errors import InvalidValueError
from redis_queue.model import Entry, Item

if TYPE_CHECKING:
    from celery import Celery

_REPRS: Final = ("argsrepr", "kwargsrepr")

Message: TypeAlias = Envelope | TaskCall
"""What an entry holds: a captured message or a call."""


def read_entry(entry: Entry) -> Message:
    """Return the message or the call that *entry* holds; raises InvalidValueError for an unreadable one."""
    if isinstance(entry.payload, bytes):
        return Envelope.unpack(entry.payload, entry.id, entry.headers)
    return TaskCall.from_payload(entry.payload)


def unique_header_of(entry: Entry | Item | None) -> UniqueHeader | None:
    """Return which key the message in *entry* owns; None for none, and for an unreadable entry."""
    payload = entry.body if isinstance(entry, Item) else entry and entry.payload
    if entry is None or not isinstance(payload, bytes):
        return None
    with contextlib.suppress(InvalidValueError):
        return UniqueHeader.of(Envelope.unpack(payload, entry.id, entry.headers).headers)
    return None


def read_readable(entries: Iterable[Entry]) -> dict[str, Message]:
    """Return what *entries* hold, by id, without the unreadable ones."""
    found: dict[str, Message] = {}
    for entry in entries:
        with contextlib.suppress(InvalidValueError):
            found[entry.id] = read_entry(entry)
    return found


def envelope_of_call(app: Celery, call: TaskCall, task_id: str) -> Envelope:
    """Return the message that *call* becomes; raises what Celery raises for a call that it cannot send."""
    kept: list[Envelope] = []
    options = {**task_options(app, call.task), **call.options}
    with app.producer_or_acquire() as producer:
        intercepting = InterceptingProducer(app, producer, lambda envelope, *_: kept.append(envelope))
        args, kwargs = list(call.args), dict(call.kwargs)
        app.send_task(call.task, args, kwargs, task_id=task_id, producer=intercepting, add_to_parent=False, **options)
    envelope = kept[0]
    # Celery also copies these two options into the properties of the message.
    properties = {name: value for name, value in envelope.properties.items() if name not in _REPRS}
    return with_schedule(replace(envelope, properties=properties), call.options.get("headers"))


def envelope_of_entry(
    app: Celery, entry: Entry, destinations: Destinations, message: Message | None = None
) -> Envelope:
    """Return the message that *entry* becomes; *message* is what it holds, if that was read already.

    Raises InvalidValueError for an unreadable entry, and for a call to a forbidden queue.
    """
    message = message or read_entry(entry)
    if isinstance(message, Envelope):
        return message
    destinations.check_call(message.options)
    envelope = envelope_of_call(app, message, entry.id)
    name = call_in(entry.headers) or call_name(entry.id, entry.put_at.timestamp())
    own = {ETA: entry.due_at.isoformat(), CALL: name}
    return replace(envelope, headers={**envelope.headers, **own})
