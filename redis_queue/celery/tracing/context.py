"""Write the trace context of a schedule into the headers of its message, and read it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any

from redis_queue.celery.message.headers import CARRIED, DUE_AT, PARENT, STATE

with suppress(ImportError):
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

_PARENT_LENGTH, _STATE_LENGTH = 55, 512
"""Most characters of the two headers, by W3C."""


def with_context(headers: Mapping[str, Any], span: Span, due_at: datetime) -> dict[str, Any] | None:
    """Return *headers* with the context of *span*; None if it has no context."""
    context = span.get_span_context()
    if not context.is_valid:
        return None
    found: dict[str, Any] = {name: value for name, value in headers.items() if name not in CARRIED}
    TraceContextTextMapPropagator().inject(found, trace.set_span_in_context(span, contexts.Context()))
    if len(found.get(STATE, "")) > _STATE_LENGTH:
        del found[STATE]
    if context.trace_flags.sampled:
        found[DUE_AT] = due_at.isoformat()
    return found


def context_of(headers: Mapping[str, Any]) -> SpanContext | None:
    """Return the context in *headers*; None if missing or invalid."""
    parent, state = headers.get(PARENT), headers.get(STATE)
    if not isinstance(parent, str) or len(parent) != _PARENT_LENGTH:
        return None
    carrier = {PARENT: parent}
    if isinstance(state, str) and len(state) <= _STATE_LENGTH:
        carrier[STATE] = state
    context = TraceContextTextMapPropagator().extract(carrier, contexts.Context())
    found = trace.get_current_span(context).get_span_context()
    return found if found.is_valid else None
