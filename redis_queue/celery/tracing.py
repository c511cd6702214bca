"""OpenTelemetry spans for the schedule and the dispatch of a delayed task, connected by links.

Its run has the span of OpenTelemetry's own instrumentation of Celery, to which the due time and the lateness are added.

Without the API, or without a tracer provider, all calls are no-ops. None of them raises: a broken exporter must not
keep a task from being stored, sent or run.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from celery import signals

from redis_queue.basics.logs import hide_secrets, logger_of
from redis_queue.basics.times import Seconds, iso_time
from redis_queue.celery.message.entry import TaskCall
from redis_queue.celery.message.envelope import Due, Envelope
from redis_queue.celery.message.headers import CARRIED, DUE_AT, PARENT, STATE

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer

    from redis_queue.model import Entry

logger = logger_of(__name__)

try:
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True


TRACER: Final = "redis_queue"
"""The instrumentation scope of all spans."""

TEXT_LENGTH: Final = 200
"""Maximum characters of a name in a span."""

TASK: Final = "celery.task_name"

_PARENT_LENGTH, _STATE_LENGTH = 55, 512
"""Maximum characters of the two headers, by W3C."""

Message = tuple[Envelope, Due]


def current_tracer() -> Tracer | None:
    """Return the tracer; None without a provider, which may be set at any time, as in a fork."""
    if not INSTALLED:
        return None
    provider = trace.get_tracer_provider()
    return None if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider) else _tracer_of(provider)


@lru_cache(maxsize=1)
def _tracer_of(provider: Any) -> Tracer:
    found: Tracer = provider.get_tracer(TRACER)
    return found


def fail(span: Span, error: BaseException) -> None:
    """Mark *span* as failed with *error*, without likely secrets."""
    trace_text = hide_secrets("".join(traceback.format_exception(error)))
    span.record_exception(
        error, attributes={"exception.message": hide_secrets(str(error)), "exception.stacktrace": trace_text}
    )
    span.set_status(trace.Status(trace.StatusCode.ERROR, type(error).__name__))


@contextmanager
def log_errors() -> Iterator[None]:
    """Log exceptions of the `with` block, and continue after it."""
    try:
        yield
    except Exception:
        logger.warning("a span is missing", exc_info=True, extra={"action": "tracing_failed"})


def describe(task: str, id: str, queue: Any) -> dict[str, Any]:
    """Return the attributes for a task and its destination."""
    found = {"messaging.system": TRACER, "messaging.message.id": id, TASK: short_name(task)}
    return {**found, "messaging.destination.name": str(queue)[:TEXT_LENGTH]} if queue else found


def operation(name: str) -> dict[str, str]:
    """Return the attributes for an operation that sends the message."""
    # The second name is for backends older than semantic conventions 1.26.
    return {"messaging.operation.name": name, "messaging.operation": "publish"}


def lateness(due_at: datetime, now: float) -> dict[str, Any]:
    """Return the attributes for the due time and the lateness in seconds at *now*."""
    late = round(max(0.0, now - due_at.timestamp()), 3)
    return {"redis_queue.due_at": due_at.isoformat(), "redis_queue.lateness": late}


def short_name(task: str) -> str:
    # In messages of protocol 1 only the body has the name.
    return str(task)[:TEXT_LENGTH] or "task"


def queue_of(envelope: Envelope) -> str:
    """Return the destination of the message, if it has one."""
    return envelope.queue or envelope.exchange


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


@contextmanager
def schedule_spans(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Give each of *messages* a span for the `with` block; yield the messages with its context."""
    tracer = current_tracer()
    if tracer is None:
        yield messages
        return
    with _spans() as spans:
        yield [(_scheduled(tracer, envelope, due, spans), due) for envelope, due in messages]


@contextmanager
def scheduling_call(call: TaskCall, id: str, delay: Seconds | None, due_at: datetime | None) -> Iterator[TaskCall]:
    """Give *call* a span for the `with` block; yield it with the context."""
    tracer = current_tracer()
    if tracer is None:
        yield call
        return
    with _spans() as spans:
        headers = call.options.get("headers") or {}
        queue = call.options.get("queue") or call.options.get("routing_key")
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        carried = _schedule(tracer, describe(call.task, id, queue), headers, (seconds, due_at), spans)
        yield replace(call, options={**call.options, "headers": carried}) if carried else call


def _scheduled(tracer: Tracer, envelope: Envelope, due: Due, spans: list[Span]) -> Envelope:
    described = describe(envelope.task, envelope.id, queue_of(envelope))
    carried = _schedule(tracer, described, envelope.headers, due, spans)
    return replace(envelope, headers=carried) if carried else envelope


def _schedule(
    tracer: Tracer, described: Mapping[str, Any], headers: Mapping[str, Any], due: Due, spans: list[Span]
) -> dict[str, Any] | None:
    """Add a span to *spans* and return *headers* with its context; None if it has no context."""
    with log_errors():
        delay, due_at = due
        now = datetime.now(timezone.utc)
        due_at = due_at or now + timedelta(seconds=delay or 0)
        wait = (due_at - now).total_seconds() if delay is None else delay
        span = tracer.start_span(
            f"schedule {described[TASK]}",
            context=_parent(headers),
            kind=trace.SpanKind.PRODUCER,
            attributes={
                **described,
                **operation("schedule"),
                "redis_queue.due_at": due_at.isoformat(),
                "redis_queue.delay.queue": round(max(0.0, wait), 3),
            },
        )
        spans.append(span)
        return with_context(headers, span, due_at)
    # The error is logged.
    return None  # type: ignore[unreachable]


def _parent(headers: Mapping[str, Any]) -> Any:
    """Return the context of the publish: a context in the headers has precedence over this thread's."""
    found = context_of(headers)
    if found is None or found.span_id == trace.get_current_span().get_span_context().span_id:
        return None
    return trace.set_span_in_context(trace.NonRecordingSpan(found))


@contextmanager
def _spans() -> Iterator[list[Span]]:
    """Yield a list for the `with` block; end the spans in it afterwards."""
    spans: list[Span] = []
    failure: BaseException | None = None
    try:
        yield spans
    except BaseException as error:
        failure = error
        raise
    finally:
        for span in spans:
            with log_errors():
                if failure is not None:
                    fail(span, failure)
                span.end()


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
