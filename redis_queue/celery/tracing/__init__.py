"""Tracing: OpenTelemetry spans for the schedule, the dispatch and the run of a delayed task, tied by links.

Without the API, or while no tracer provider is set, nothing here does anything. Nothing here raises: a broken exporter
must not keep a task from being stored, sent or run.
"""

from redis_queue.celery.message.trace_headers import DUE_AT, with_schedule, without_schedule
from redis_queue.celery.tracing.dispatch import DispatchSpans
from redis_queue.celery.tracing.run import trace_runs
from redis_queue.celery.tracing.schedule import scheduling, scheduling_call

__all__ = [
    "DUE_AT",
    "DispatchSpans",
    "scheduling",
    "scheduling_call",
    "trace_runs",
    "with_schedule",
    "without_schedule",
]
