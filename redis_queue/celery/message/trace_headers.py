"""Headers of a message that carry the trace context of its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from redis_queue.celery.message.envelope import Envelope

DUE_AT: Final = "redis_queue_due_at"
"""Header with the due time, for the worker. Only messages whose schedule is sampled have it."""

PARENT, STATE = "traceparent", "tracestate"
CARRIED: Final = (PARENT, STATE, DUE_AT)
"""Headers that belong to one schedule; the next one must not inherit them."""


def without_schedule(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the *options* of a send without the headers that Celery copied from the message of the current task."""
    headers = options.get("headers")
    if not headers or DUE_AT not in headers:
        return options
    return {**options, "headers": {name: value for name, value in headers.items() if name not in CARRIED}}


def with_schedule(envelope: Envelope, headers: Any) -> Envelope:
    """Return *envelope* with the trace context of *headers*: sending at the dispatch may have replaced it."""
    if not isinstance(headers, Mapping) or DUE_AT not in headers:
        return envelope
    kept = {name: headers[name] for name in CARRIED if name in headers}
    return replace(envelope, headers={**envelope.headers, **kept})
