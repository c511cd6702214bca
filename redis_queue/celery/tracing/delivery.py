"""What follows a schedule: the span of its dispatch, which is linked to it, and the lateness on the span of its run.

The span of a run is made by OpenTelemetry's own instrumentation of Celery.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from celery import signals

from redis_queue.basics.times import iso_time
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import DUE_AT, PARENT
from redis_queue.celery.tracing.spans import (
    INSTALLED,
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


def describe_runs() -> None:
    """Add attributes to the spans of delayed tasks that run in this process; no-op if already installed."""
    if INSTALLED:
        signals.task_prerun.connect(_on_prerun, weak=False, dispatch_uid="redis_queue_prerun")
        signals.task_postrun.connect(_on_postrun, weak=False, dispatch_uid="redis_queue_postrun")


_runs: dict[tuple[str, int], Mapping[str, Any]] = {}
"""Attributes for spans that begin after this module has heard of the run, and end after it has heard of its end.

That is so if the instrumentation was installed after redis_queue: receivers of a signal are called in that order.
"""


def _on_prerun(task_id: str, task: Any, **_: Any) -> None:
    due = getattr(task.request, DUE_AT, None)
    if due is None or current_tracer() is None:
        return
    with log_errors():
        due_at = iso_time(due)
        if due_at is None:
            return
        attributes = lateness(due_at, time.time())
        span = trace.get_current_span()
        if span.is_recording():
            span.set_attributes(attributes)
        else:
            _runs[task_id, threading.get_ident()] = attributes


def _on_postrun(task_id: str, **_: Any) -> None:
    attributes = _runs.pop((task_id, threading.get_ident()), None) if _runs else None
    if attributes is not None:
        with log_errors():
            trace.get_current_span().set_attributes(attributes)
