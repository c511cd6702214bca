"""The due time and the lateness on the span of a run, which OpenTelemetry's instrumentation of Celery makes."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from celery import signals

from redis_queue.celery.message.headers import DUE_AT
from redis_queue.celery.tracing.spans import INSTALLED, current_tracer, lateness, log_errors

with suppress(ImportError):
    from opentelemetry import trace


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
    with log_errors(), suppress(ValueError, TypeError):
        due_at = datetime.fromisoformat(due)
        if due_at.tzinfo is None:
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
