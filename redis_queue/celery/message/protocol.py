"""Read the body of a stored message, in both versions of Celery's protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from kombu.serialization import dumps

from redis_queue.celery.message.attempt import OWN
from redis_queue.celery.message.envelope import Envelope
from redis_queue.errors import InvalidValueError
from redis_queue.store.codec import read_document

MOST_RETRIES: Final = 2**31


def plain_body(envelope: Envelope) -> Any:
    """Return the body, or None if it is not plain JSON. kombu's own types stay as they are."""
    if envelope.content_type != "application/json" or "compression" in envelope.headers:
        return None
    try:
        return read_document(envelope.body)
    except ValueError:
        return None


def json_body(envelope: Envelope) -> Mapping[str, Any] | None:
    """Return the body of protocol 1; None for another protocol, and for a body that is not plain JSON."""
    body = None if "task" in envelope.headers else plain_body(envelope)
    return body if isinstance(body, Mapping) and "task" in body else None


def retries_of(envelope: Envelope) -> int:
    """Return the number of retries before *envelope*; 0 if unknown."""
    call = envelope.headers if "task" in envelope.headers else json_body(envelope) or {}
    found = call.get("retries")
    return found if isinstance(found, int) and 0 <= found <= MOST_RETRIES else 0


def with_eta(envelope: Envelope, due_at: datetime) -> Envelope:
    """Return *envelope* as Celery itself delays it; raises InvalidValueError if the eta cannot be added to its body."""
    eta = due_at.isoformat()
    headers = {name: value for name, value in envelope.headers.items() if name not in OWN}
    if "task" in headers:
        return replace(envelope, headers={**headers, "eta": eta})
    body = json_body(envelope)
    if body is None:
        raise InvalidValueError("a message of protocol 1 has its eta in the body, and this body is not plain JSON")
    content_type, encoding, text = dumps({**body, "eta": eta}, serializer="json")
    return replace(
        envelope, body=text.encode(encoding), content_type=content_type, content_encoding=encoding, headers=headers
    )
