"""The body of a stored message, in both versions of Celery's protocol: read it, and change what a retry changes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from kombu.serialization import dumps

from redis_queue.basics.times import iso_time
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import FLOW, OWN
from redis_queue.errors import InvalidValueError
from redis_queue.store.codec import read_document

MAX_RETRIES: Final = 2**31

MAX_REPR: Final = 1024
"""Maximum characters of the text of new arguments, as Celery cuts it."""

_BODY: Final = 3
"""Parts of a body of protocol 2: args, kwargs, and callbacks."""


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
    return retries_in(envelope.headers if "task" in envelope.headers else json_body(envelope) or {})


def retries_in(call: Mapping[str, Any]) -> int:
    """Return the number of retries in headers, or in a body of protocol 1; 0 if it is absent."""
    found = call.get("retries")
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= MAX_RETRIES else 0


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


def fresh(envelope: Envelope, now: datetime) -> Envelope:
    """Return *envelope* with its retries counted from zero, and without an expiry that has passed.

    It belongs to the same flows. If its task is unique, it owns no key: that of the first message is free.
    """
    headers = {name: value for name, value in envelope.headers.items() if name == FLOW or name not in OWN}
    if "task" in headers:
        expires = None if _has_passed(headers.get("expires"), now) else headers.get("expires")
        return replace(envelope, headers={**headers, "retries": 0, "expires": expires})
    body = json_body(envelope)
    if body is None:
        return replace(envelope, headers=headers)
    expires = None if _has_passed(body.get("expires"), now) else body.get("expires")
    return _with_body(replace(envelope, headers=headers), {**body, "retries": 0, "expires": expires})


def with_arguments(envelope: Envelope, args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Envelope:
    """Return *envelope* with other arguments; None leaves them as they are.

    Raises InvalidValueError if the body is not plain JSON.
    """
    if args is None and kwargs is None:
        return envelope
    body = plain_body(envelope)
    if "task" in envelope.headers and isinstance(body, list) and len(body) == _BODY:
        changed = [body[0] if args is None else list(args), body[1] if kwargs is None else dict(kwargs), body[2]]
        texts = {} if args is None else {"argsrepr": repr(tuple(args))[:MAX_REPR]}
        texts |= {} if kwargs is None else {"kwargsrepr": repr(dict(kwargs))[:MAX_REPR]}
        return _with_body(replace(envelope, headers={**envelope.headers, **texts}), changed)
    call = json_body(envelope)
    if call is None:
        raise InvalidValueError("its arguments cannot be changed: the body of its message is not plain JSON")
    given = {name: value for name, value in (("args", args), ("kwargs", kwargs)) if value is not None}
    return _with_body(envelope, {**call, **given})


def _with_body(envelope: Envelope, body: Any) -> Envelope:
    try:
        data = json.dumps(body, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidValueError(f"its arguments cannot be written as JSON: {error}") from None
    return replace(envelope, body=data, content_encoding="utf-8")


def _has_passed(expires: Any, now: datetime) -> bool:
    at = iso_time(expires)
    return at is not None and at <= now
