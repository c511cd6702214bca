"""OpenTelemetry spans for the schedule, the dispatch and the run of a delayed task, connected by links.

Without the API, or without a tracer provider, all calls are no-ops. None of them raises: a broken exporter must not
keep a task from being stored, sent or run.
"""

from redis_queue.celery.message.headers import DUE_AT
from redis_queue.celery.tracing.dispatch import DispatchSpans
from redis_queue.celery.tracing.run import trace_runs
from redis_queue.celery.tracing.schedule import schedule_spans, scheduling_call

__all__ = [
    "DUE_AT",
    "DispatchSpans",
    "schedule_spans",
    "scheduling_call",
    "trace_runs",
]
