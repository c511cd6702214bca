"""The delaying app in workers that write their spans to the file SPANS.

INSTRUMENTED says when OpenTelemetry's own instrumentation of Celery is installed: "links" (before the app is created,
with its span links) or "parent" (after that).
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.support.celery.delaying_names import AGAIN, FAILING
from tests.support.celery.spans import FileExporter

provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(FileExporter(os.environ["SPANS"])))
trace.set_tracer_provider(provider)
if os.environ["INSTRUMENTED"] == "links":
    CeleryInstrumentor().instrument(use_span_links=True)  # type: ignore[no-untyped-call]
app = import_module("tests.support.celery.delaying_app").app
if os.environ["INSTRUMENTED"] == "parent":
    CeleryInstrumentor().instrument()  # type: ignore[no-untyped-call]


@app.task(name=FAILING, shared=False)  # type: ignore[untyped-decorator]
def failing() -> None:
    raise LookupError("nothing is there")


@app.task(bind=True, name=AGAIN, shared=False)  # type: ignore[untyped-decorator]
def again(self: Any) -> None:
    """Retry once without a delay, so that the message of the second attempt is never stored."""
    if not self.request.retries:
        raise self.retry(countdown=0)
