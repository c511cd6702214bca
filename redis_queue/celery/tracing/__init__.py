"""OpenTelemetry spans for the schedule and the dispatch of a delayed task, connected by links.

Its run has the span of OpenTelemetry's own instrumentation of Celery, to which the due time and the lateness are added.

Without the API, or without a tracer provider, all calls are no-ops. None of them raises: a broken exporter must not
keep a task from being stored, sent or run.
"""

from redis_queue.celery.tracing.delivery import DispatchSpans, describe_runs
from redis_queue.celery.tracing.spans import schedule_spans, scheduling_call

__all__ = ["DispatchSpans", "describe_runs", "schedule_spans", "scheduling_call"]
