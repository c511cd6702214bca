"""Spans of runs in a worker, each linked to its schedule."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery import signals

from redis_queue.celery.message.headers import DUE_AT, PARENT, STATE
from redis_queue.celery.tracing.attributes import PROCESS, describe, lateness, operation, short_name
from redis_queue.celery.tracing.context import context_of
from redis_queue.celery.tracing.provider import INSTALLED, current_tracer, fail, log_errors

with suppress(ImportError):
    from opentelemetry import context as contexts
    from opentelemetry import trace

if TYPE_CHECKING:
    from opentelemetry.trace import Span


def trace_runs() -> None:
    """Make spans for the runs of delayed tasks in this process; no-op if already installed."""
    if INSTALLED:
        signals.task_prerun.connect(_on_prerun, weak=False, dispatch_uid="redis_queue_prerun")
        signals.task_postrun.connect(_on_postrun, weak=False, dispatch_uid="redis_queue_postrun")


@dataclass(frozen=True, slots=True)
class _RunSpan:
    """A run in progress: its *span*, or *attributes* for the span of another instrumentation."""

    attributes: Mapping[str, Any]
    span: Span | None = None
    token: Any = None


_runs: dict[tuple[str, int], _RunSpan] = {}


def _on_prerun(task_id: str, task: Any, **_: Any) -> None:
    due = getattr(task.request, DUE_AT, None)
    if due is None:
        return
    with log_errors():
        run = _begin(task_id, task, due)
        if run is not None:
            _runs[task_id, threading.get_ident()] = run


def _on_postrun(task_id: str, state: Any = None, retval: Any = None, **_: Any) -> None:
    run = _runs.pop((task_id, threading.get_ident()), None) if _runs else None
    if run is None:
        return
    with log_errors():
        if run.span is None:
            trace.get_current_span().set_attributes(run.attributes)
            return
        contexts.detach(run.token)
        run.span.set_attribute("celery.state", str(state))
        if state == "FAILURE" and isinstance(retval, BaseException):
            fail(run.span, retval)
        run.span.end()


def _begin(task_id: str, task: Any, due: Any) -> _RunSpan | None:
    """Begin a span, or return the attributes for the span that another instrumentation begins after this."""
    tracer, due_at = current_tracer(), _time(due)
    request = task.request
    scheduled = context_of({PARENT: getattr(request, PARENT, None), STATE: getattr(request, STATE, None)})
    if tracer is None or due_at is None or scheduled is None:
        return None
    attributes = lateness(due_at, time.time())
    current, instrumented = trace.get_current_span(), _is_instrumented()
    if current.is_recording():
        current.set_attributes(attributes)
        if not instrumented:
            current.add_link(scheduled)
        return None
    if instrumented:
        return _RunSpan(attributes)
    if not scheduled.trace_flags.sampled:
        return None
    route = getattr(request, "delivery_info", None) or {}
    span = tracer.start_span(
        f"run {short_name(task.name)}",
        context=contexts.Context(),
        kind=trace.SpanKind.CONSUMER,
        links=[trace.Link(scheduled)],
        attributes={
            **describe(task.name, task_id, route.get("routing_key")),
            **operation("run", PROCESS),
            **attributes,
            "celery.retries": request.retries if isinstance(request.retries, int) else 0,
        },
    )
    return _RunSpan(attributes, span, contexts.attach(trace.set_span_in_context(span)))


def _is_instrumented() -> bool:
    """Tell whether OpenTelemetry's instrumentation of Celery makes a span for each run."""
    module = sys.modules.get("opentelemetry.instrumentation.celery")
    return module is not None and bool(module.CeleryInstrumentor().is_instrumented_by_opentelemetry)


def _time(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found if found.tzinfo is not None else None
