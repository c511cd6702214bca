"""Tracing: the spans of a delayed task with real workers, and behaviour without OpenTelemetry."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from redis_queue.celery import Dispatched, DurableTasks, push_task
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import DUE_AT
from redis_queue.celery.stored_tasks import StoredTasks
from tests.support.celery.brokers import Broker, dispatch, stored_messages
from tests.support.celery.delaying_names import AGAIN, FAILING, NOTE, STUBBORN
from tests.support.celery.processes import CeleryProcess
from tests.support.celery.spans import Recorder, SpanRow, read, recording
from tests.support.paths import ROOT
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

SOON = 0.01
PARENT = re.compile(r"00-([0-9a-f]{32}-[0-9a-f]{16})-0[13]")


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    with recording(monkeypatch) as recorder:
        yield recorder


@contextmanager
def instrumented() -> Iterator[None]:
    """Enable OpenTelemetry's own instrumentation of Celery in this process."""
    instrumentor = CeleryInstrumentor()
    instrumentor.instrument()
    try:
        yield
    finally:
        instrumentor.uninstrument()


def settings(server: RedisServer, broker: Broker) -> dict[str, Any]:
    return broker.settings(redis_queue_url=server.url, redis_queue_delay_queue=broker.name("delayed"))


def app_of(server: RedisServer, broker: Broker) -> Celery:
    return broker.app(**settings(server, broker))


def serve(
    server: RedisServer, broker: Broker, app: Celery, spans: Path, *, instrumented: str = "", pool: str = "threads"
) -> CeleryProcess:
    """Return a worker of *app* that is not started yet."""
    conf = {name: app.conf[name] for name in ("redis_queue_delay_queue", "broker_transport_options")}
    environment = {
        "BROKER_URL": broker.url,
        "STORE_URL": server.url,
        "QUEUE": app.conf.task_default_queue,
        "SETTINGS": json.dumps(conf),
        "SPANS": str(spans),
        "INSTRUMENTED": instrumented,
    }
    broker.forget_later(*(f"{app.conf.task_default_queue}-{kind}" for kind in ("control", "events")))
    options = ("--pool", pool, "--concurrency", "1", "--without-gossip", "--without-mingle", "--loglevel", "INFO")
    return CeleryProcess("-A", "tests.support.celery.tracing_app", "worker", *options, environment=environment)


def one(found: Sequence[SpanRow]) -> SpanRow:
    assert len(found) == 1, found
    return found[0]


def named(path: Path, name: str, count: int = 1) -> list[SpanRow]:
    """Return the spans with *name* in a worker's file once there are *count*."""

    def enough() -> list[SpanRow] | None:
        found = [span for span in read(path) if span.name == name]
        return found if len(found) >= count else None

    return wait_until(enough, description=f"{count} spans {name!r}, got {[s.name for s in read(path)]}")


def about(span: SpanRow, *names: str) -> dict[str, Any]:
    return {name: span.attributes.get(name) for name in names}


@pytest.mark.parametrize(
    ("broker", "pool", "kind"),
    [("redis", "prefork", "links"), ("another redis", "threads", "parent"), ("rabbitmq", "threads", "links")],
    indirect=["broker"],
)
def test_run_is_linked_to_its_schedule(
    redis_server: RedisServer, broker: Broker, spans: Recorder, tmp_path: Path, *, pool: str, kind: str
) -> None:
    app, path = app_of(redis_server, broker), tmp_path / "spans"
    DurableTasks(app, leases=False)
    with instrumented():
        with trace.get_tracer("tests").start_as_current_span("request"):
            noted = app.send_task(NOTE, countdown=SOON)
        app.send_task(STUBBORN, args=(1, SOON), countdown=SOON)
    app.send_task(AGAIN, countdown=SOON)
    app.send_task(NOTE)
    with serve(redis_server, broker, app, path, instrumented=kind, pool=pool):
        at_once, run = sorted(named(path, f"run/{NOTE}", 2), key=lambda span: "redis_queue.due_at" in span.attributes)
        first, second = named(path, f"run/{STUBBORN}", 2)
        stored, not_stored = named(path, f"run/{AGAIN}", 2)
        app.send_task(FAILING, countdown=SOON)
        failed = one(named(path, f"run/{FAILING}"))

    def origin(span: SpanRow) -> str:
        """Return the context to which the span of a run points."""
        assert (span.parent == "") is (kind == "links")
        found = [span.parent] if kind == "parent" else span.links
        assert len(found) == 1
        return found[0]

    request, scheduled = one(spans.named("request")), one(spans.named(f"schedule {NOTE}"))
    published = one(spans.named(f"apply_async/{NOTE}"))
    assert (scheduled.kind, scheduled.parent, published.parent) == ("PRODUCER", published.context, request.context)
    assert (run.kind, origin(run), run.trace_id == scheduled.trace_id) == (
        "CONSUMER",
        scheduled.context,
        kind == "parent",
    )
    assert about(
        scheduled, "messaging.system", "messaging.operation.name", "messaging.message.id", "celery.task_name"
    ) == {
        "messaging.system": "redis_queue",
        "messaging.operation.name": "schedule",
        "messaging.message.id": noted.id,
        "celery.task_name": NOTE,
    }
    assert scheduled.attributes["messaging.destination.name"] == app.conf.task_default_queue
    assert scheduled.attributes["redis_queue.delay.queue"] == SOON
    assert run.attributes["redis_queue.due_at"] == scheduled.attributes["redis_queue.due_at"]
    assert 0 <= run.attributes["redis_queue.lateness"] < 60
    assert (run.status, run.attributes["celery.state"]) == ("UNSET", "SUCCESS")
    assert (failed.status, failed.events) == ("ERROR", ["exception"])
    assert "redis_queue.due_at" not in at_once.attributes

    # The first attempt schedules the second one, which is linked to it.
    worker = read(path)
    assert origin(first) == one(spans.named(f"schedule {STUBBORN}")).context
    retried = one([span for span in worker if span.name == f"apply_async/{STUBBORN}"])
    again = one([span for span in worker if span.name == f"schedule {STUBBORN}"])
    assert (origin(second), again.parent, retried.parent) == (again.context, retried.context, first.context)
    # A retry that was not stored has no schedule, although Celery copies the headers of the first attempt.
    assert stored.attributes["celery.state"] == "RETRY"
    assert "redis_queue.due_at" in stored.attributes
    assert "redis_queue.due_at" not in not_stored.attributes
    assert not [span for span in worker if span.name == f"schedule {AGAIN}"]

    dispatched = [span for span in worker if span.name == f"dispatch {NOTE}"]
    if pool == "prefork":
        assert not dispatched, "expected no dispatch span on a shared Redis"
        return
    sent = one(dispatched)
    assert (sent.kind, sent.parent, sent.links) == ("PRODUCER", "", [scheduled.context])
    assert sent.attributes["messaging.message.id"] == noted.id
    assert sent.attributes["messaging.operation.name"] == "dispatch"
    assert sent.attributes["redis_queue.waited"] >= sent.attributes["redis_queue.lateness"] >= 0
    late = run.attributes["redis_queue.lateness"] - sent.attributes["redis_queue.lateness"]
    assert late > -0.1, "expected the run after the dispatch"


# The other tests need no worker.


@pytest.fixture
def app(redis_server: RedisServer, broker: Broker) -> Celery:
    app = app_of(redis_server, broker)
    DurableTasks(app, leases=False)
    return app


def dispatch_due(app: Celery) -> Dispatched:
    queue = StoredTasks.of(app).queue
    wait_until(lambda: queue.moves.due_in() <= 0, description="a due entry")
    return dispatch(app)


def context_in(envelope: Envelope) -> str:
    found = PARENT.fullmatch(envelope.headers["traceparent"])
    assert found
    return found[1]


@pytest.mark.parametrize("broker", ["another redis"], indirect=True)
def test_send_many_creates_a_span_for_each_task(app: Celery, spans: Recorder) -> None:
    results = DurableTasks(app, leases=False).send_many([app.signature(NOTE) for _ in range(3)], countdown=60)
    assert {span.attributes["messaging.message.id"] for span in spans} == {result.id for result in results}
    assert sorted(map(context_in, stored_messages(app))) == sorted(span.context for span in spans)
    assert len({span.context for span in spans}) == 3


@pytest.mark.parametrize("broker", ["another redis"], indirect=True)
@pytest.mark.parametrize("other", [False, True])
def test_pushed_call_keeps_its_own_schedule_span(app: Celery, broker: Broker, spans: Recorder, other: bool) -> None:
    id_ = push_task(StoredTasks.of(app).queue, NOTE, headers={"mine": 1})
    scheduled = one(spans.named(f"schedule {NOTE}"))
    assert scheduled.attributes["messaging.message.id"] == id_
    if other:
        with instrumented():
            assert dispatch_due(app) == Dispatched(1)
    else:
        assert dispatch_due(app) == Dispatched(1)
    assert one(spans.named(f"dispatch {NOTE}")).links == [scheduled.context]
    (message,) = broker.take(app.conf.task_default_queue)
    headers = message.headers
    assert (headers["mine"], PARENT.fullmatch(headers["traceparent"])[1]) == (1, scheduled.context)  # type: ignore[index]
    assert datetime.fromisoformat(headers[DUE_AT]).tzinfo


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_refused_schedule_has_an_error_span(redis_server: RedisServer, broker: Broker, spans: Recorder) -> None:
    with RedisServer() as away:
        app = app_of(away, broker)
    DurableTasks(app, leases=False)
    with pytest.raises(OperationalError):
        app.send_task(NOTE, countdown=60, retry=False)
    scheduled = one(spans.named(f"schedule {NOTE}"))
    assert (scheduled.status, scheduled.events) == ("ERROR", ["exception"])


HOSTILE: list[Any] = [
    7,
    ["00-" + "1" * 32 + "-" + "2" * 16 + "-01"],
    {"a": 1},
    "x",
    "00-" + "0" * 32 + "-" + "0" * 16 + "-01",
    "ff-" + "1" * 32 + "-" + "2" * 16 + "-01",
    "00-" + "1" * 5_000,
    "\ud800" * 55,
]


@pytest.mark.parametrize("broker", ["another redis", "rabbitmq"], indirect=True)
def test_hostile_headers_are_forwarded_and_create_no_link(
    app: Celery, broker: Broker, spans: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    delayed = DurableTasks(app, leases=False)
    with caplog.at_level("WARNING", "redis_queue"):
        for number, value in enumerate(HOSTILE):
            headers = {
                "id": f"hostile-{number}",
                "task": NOTE,
                "traceparent": value,
                "tracestate": value,
                DUE_AT: value,
            }
            envelope = Envelope(
                b"[[], {}, {}]", "application/json", "utf-8", headers, {}, "", app.conf.task_default_queue
            )
            delayed.queue.push_many([delayed.writer.as_push(envelope, (0, None))])
        assert dispatch_due(app) == Dispatched(len(HOSTILE))
    assert len(broker.take_ids(app.conf.task_default_queue)) == len(HOSTILE)
    assert not list(spans)
    assert not caplog.records


@pytest.mark.parametrize("broker", ["another redis"], indirect=True)
def test_unsampled_schedule_creates_no_later_spans(
    app: Celery, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with recording(monkeypatch, sampler=ALWAYS_OFF) as unsampled:
        app.send_task(NOTE, countdown=SOON)
    assert not list(unsampled)
    (envelope,) = stored_messages(app)
    assert envelope.headers["traceparent"][-3:] in ("-00", "-02")
    assert DUE_AT not in envelope.headers
    with recording(monkeypatch) as all_sampled:
        assert dispatch_due(app) == Dispatched(1)
    assert not list(all_sampled)


class Broken(SpanProcessor):
    """A span processor that always fails."""

    def on_start(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("no span begins")


@pytest.mark.parametrize("broker", ["another redis"], indirect=True)
def test_broken_span_processor_blocks_no_task(
    app: Celery, broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with recording(monkeypatch):
        app.send_task(NOTE, countdown=SOON)
        push_task(StoredTasks.of(app).queue, NOTE)
    with recording(monkeypatch):
        provider = trace.get_tracer_provider()
        assert isinstance(provider, TracerProvider)
        provider.add_span_processor(Broken())
        app.send_task(NOTE, countdown=SOON)
        push_task(StoredTasks.of(app).queue, NOTE)
        wait_until(lambda: StoredTasks.of(app).queue.stats().due == 4, description="all entries to be due")
        assert dispatch_due(app) == Dispatched(4)
    assert len(broker.take_ids(app.conf.task_default_queue)) == 4
    assert [record.getMessage() for record in caplog.records if record.name.startswith("redis_queue")] == [
        "a span is missing"
    ] * 4


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_a_long_tracestate_is_not_stored(app: Celery, spans: Recorder) -> None:
    def send(state: dict[str, str]) -> None:
        context = trace.SpanContext(1, 2, True, trace.TraceFlags(1), trace.TraceState(list(state.items())))
        with trace.use_span(trace.NonRecordingSpan(context)):
            app.send_task(NOTE, countdown=60, headers={"tracestate": "stale=1"})

    send({"vendor": "x"})
    (envelope,) = stored_messages(app)
    assert envelope.headers["tracestate"] == "vendor=x"
    StoredTasks.of(app).cancel(envelope.id)
    send({f"vendor{number}": "x" * 200 for number in range(10)})
    (envelope,) = stored_messages(app)
    assert "tracestate" not in envelope.headers
    assert all(span.trace_id == f"{1:032x}" for span in spans)


@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_without_a_provider_nothing_is_added(app: Celery, client: redis.Redis) -> None:
    app.send_task(NOTE, countdown=60)
    (envelope,) = stored_messages(app)
    assert not {"traceparent", "tracestate", DUE_AT} & set(envelope.headers)


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None
from celery import Celery
from redis_queue.celery import DurableTasks, Dispatcher, push_task
app = Celery("without", broker=sys.argv[2], set_as_current=False)
app.conf.update(redis_queue_url=sys.argv[1], task_default_queue=sys.argv[3], redis_queue_delay_queue=sys.argv[3])
delayed = DurableTasks(app, leases=False)
app.send_task("a.task", countdown=0.001)
delayed.send_many([app.signature("a.task")], countdown=0.001)
push_task(delayed.queue, "a.task")
dispatcher, sent = Dispatcher(app, delayed.queue), 0
while sent < 3:
    sent += dispatcher.run().sent
print(sorted(name for name, module in sys.modules.items() if name.startswith("opentelemetry") and module), sent)
"""


@pytest.mark.parametrize("broker", ["another redis"], indirect=True)
def test_everything_works_without_the_api(redis_server: RedisServer, broker: Broker) -> None:
    queue = broker.name()
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, redis_server.url, broker.url, queue],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == ("[] 3\n", 0), done.stderr
    assert len(broker.take_ids(queue)) == 3
