"""OpenTelemetry spans for tests: recorded in this process, or written to a file by a worker and read back as rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler


@dataclass(frozen=True)
class SpanRow:
    """A span as a backend stores it. A context is the trace id and the span id in one string."""

    name: str
    kind: str
    context: str
    parent: str
    links: list[str]
    status: str
    attributes: Mapping[str, Any]
    events: list[str] = field(default_factory=list)

    @property
    def trace_id(self) -> str:
        return self.context.partition("-")[0]

    @classmethod
    def of(cls, span: ReadableSpan) -> SpanRow:
        """Return a row for a span of the SDK."""
        return cls(
            name=span.name,
            kind=span.kind.name,
            context=_text(span.context),
            parent=_text(span.parent),
            links=[_text(link.context) for link in span.links],
            status=span.status.status_code.name,
            attributes=dict(span.attributes or {}),
            events=[event.name for event in span.events],
        )


def _text(context: trace.SpanContext | None) -> str:
    return "" if context is None else f"{context.trace_id:032x}-{context.span_id:016x}"


class FileExporter(SpanExporter):
    """Appends each span to a file as one line of JSON; also works in forked processes."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            file.write("".join(json.dumps(asdict(SpanRow.of(span))) + "\n" for span in spans))
        return SpanExportResult.SUCCESS


def read(path: Path) -> list[SpanRow]:
    """Return the spans in a worker's file, without an incomplete last line."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [SpanRow(**json.loads(line)) for line in lines if line.endswith("\n")]


class Recorder:
    """The finished spans of this process."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter

    def __iter__(self) -> Iterator[SpanRow]:
        return map(SpanRow.of, self._exporter.get_finished_spans())

    def named(self, name: str) -> list[SpanRow]:
        return [span for span in self if span.name == name]


@contextmanager
def recording(monkeypatch: Any, *, sampler: Sampler | None = None) -> Iterator[Recorder]:
    """Install a tracer provider for this process and remove it afterwards: the API allows setting it only once."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with monkeypatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", provider)
        yield Recorder(exporter)
    provider.shutdown()
