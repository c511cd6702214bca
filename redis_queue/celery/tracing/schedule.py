"""Spans of schedules: each lasts while its task is being stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from redis_queue.basics.times import Seconds
from redis_queue.celery.message.entry import TaskCall
from redis_queue.celery.message.envelope import Due, Envelope
from redis_queue.celery.tracing.spans import (
    TASK,
    context_of,
    current_tracer,
    describe,
    fail,
    log_errors,
    operation,
    queue_of,
    with_context,
)

with suppress(ImportError):
    from opentelemetry import trace

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

Message = tuple[Envelope, Due]


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
