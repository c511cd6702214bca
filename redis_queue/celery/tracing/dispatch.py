"""Spans of dispatches, each linked to its schedule."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import PARENT
from redis_queue.celery.tracing.spans import (
    TEXT_LENGTH,
    context_of,
    current_tracer,
    describe,
    lateness,
    log_errors,
    operation,
    queue_of,
    short_name,
)

with suppress(ImportError):
    from opentelemetry import context as contexts
    from opentelemetry import trace

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from redis_queue.model import Entry


class DispatchSpans:
    """The spans of one batch: one for each entry whose schedule was sampled. Those that are not ended are dropped."""

    def __init__(self) -> None:
        self._tracer = current_tracer()
        self._open: dict[str, Span] = {}

    def begin(self, entry: Entry, envelope: Envelope | None = None) -> None:
        """Begin the span of *entry*; *envelope* is read from it by default."""
        if self._tracer is None:
            return
        with log_errors():
            if envelope is None:
                if PARENT.encode() not in entry.payload:
                    return
                envelope = Envelope.unpack(entry.payload, entry.id, entry.headers)
            scheduled = context_of(envelope.headers)
            if scheduled is not None and scheduled.trace_flags.sampled:
                self._open[entry.id] = self._tracer.start_span(
                    f"dispatch {short_name(envelope.task)}",
                    context=contexts.Context(),
                    kind=trace.SpanKind.PRODUCER,
                    links=[trace.Link(scheduled)],
                    attributes={**describe(envelope.task, entry.id, queue_of(envelope)), **operation("dispatch")},
                )

    def end(self, entry: Entry, why: str | None = None) -> None:
        """End the span of *entry*: the broker has it, or refused it for the reason *why*."""
        span = self._open.pop(entry.id, None)
        if span is None:
            return
        with log_errors():
            now = time.time()
            waited = round(max(0.0, now - entry.put_at.timestamp()), 3)
            span.set_attributes({**lateness(entry.due_at, now), "redis_queue.waited": waited})
            if why is not None:
                span.set_status(trace.Status(trace.StatusCode.ERROR, why[:TEXT_LENGTH]))
            span.end()
