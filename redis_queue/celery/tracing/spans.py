"""Spans: the tracer, the context that a message carries, and the spans of schedules while their tasks are stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import Seconds
from redis_queue.celery.message.entry import TaskCall
from redis_queue.celery.message.envelope import Due, Envelope
from redis_queue.celery.message.headers import CARRIED, DUE_AT, PARENT, STATE

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer

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
    """Mark *span* as failed with *error*."""
    span.record_exception(error)
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
    spans: list[Span] = []
    with _end_spans(spans):
        yield [(_scheduled(tracer, envelope, due, spans), due) for envelope, due in messages]


@contextmanager
def scheduling_call(call: TaskCall, id: str, delay: Seconds | None, due_at: datetime | None) -> Iterator[TaskCall]:
    """Give *call* a span for the `with` block; yield it with the context."""
    tracer = current_tracer()
    if tracer is None:
        yield call
        return
    spans: list[Span] = []
    with _end_spans(spans):
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
def _end_spans(spans: list[Span]) -> Iterator[None]:
    failure: BaseException | None = None
    try:
        yield
    except BaseException as error:
        failure = error
        raise
    finally:
        for span in spans:
            with log_errors():
                if failure is not None:
                    fail(span, failure)
                span.end()
