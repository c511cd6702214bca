"""The tracer, and protection against its errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from redis_queue.basics.logs import logger_of

try:
    from opentelemetry import trace
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

logger = logger_of(__name__)

TRACER: Final = "redis_queue"
"""The instrumentation scope of all spans."""


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
