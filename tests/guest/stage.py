"""Another extension of Celery at work: ``python -m tests.guest.stage GUEST URL [line]`` prints what it saw as JSON.

A process of its own for each, since most of them change Celery for good. With *line* the app has DurableTasks.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery, chord, group
from celery.beat import Scheduler
from kombu import Queue

from tests.support.wait import wait_until

SOON = 0.2


def main(name: str, url: str, *line: str) -> None:
    if line:
        # On stock it is not even imported: that alone may keep a guest from what it patches later.
        from redis_queue.celery import DurableTasks

    def make() -> Celery:
        app = Celery("guest", broker=url, backend=url)
        # An exporter reads their names.
        app.conf.task_queues = [Queue("celery")]
        if line:
            DurableTasks(app)
        return app

    guests = (batches, singleton, sentry, opentelemetry, django_results, prometheus, flower)
    play = next(guest for guest in guests if guest.__name__ == name)
    sys.stdout.write(json.dumps(play(make)))


@contextmanager
def working(app: Celery, concurrency: int = 4) -> Iterator[None]:
    """Run a worker in this process."""
    # Not before: a guest that patches what workers import comes first, as in a program that starts a worker.
    from celery.contrib.testing.worker import start_worker

    with start_worker(
        app, pool="threads", concurrency=concurrency, hostname="w@guest", perform_ping_check=False, shutdown_timeout=30
    ):
        yield


def add_tasks(app: Celery) -> None:
    @app.task(name="guest.add")
    def add(x: int, y: int = 0) -> int:
        return x + y

    @app.task(name="guest.total")
    def total(numbers: list[int]) -> int:
        return sum(numbers)

    @app.task(name="guest.fail")
    def fail() -> None:
        raise LookupError("nothing is there")

    @app.task(name="guest.again", bind=True)
    def again(self: Any) -> str:
        if not self.request.retries:
            raise self.retry(countdown=SOON)
        return "twice"


def call_all(app: Celery) -> None:
    """Run each task, with and without a delay, and wait until they have ended."""
    add, total, fail, again = (app.tasks[f"guest.{name}"] for name in ("add", "total", "fail", "again"))
    results = [
        add.delay(1),
        add.apply_async((2,), countdown=SOON),
        *group(add.s(n) for n in range(2)).delay().results,
        chord([add.s(3), add.s(4)], total.s()).delay(),
        (add.s(5) | add.s(6)).delay(),
        again.delay(),
        fail.delay(),
        app.send_task("guest.add", (7,)),
    ]
    for result in results:
        result.get(timeout=30, propagate=False)


def in_flight(app: Celery) -> int:
    with app.connection_for_read() as connection:
        return int(connection.default_channel.client.hlen("unacked"))


def batches(make: Callable[[], Celery]) -> Any:
    from celery_batches import Batches

    app = make()
    app.conf.worker_prefetch_multiplier = 5
    seen: list[list[int]] = []

    @app.task(base=Batches, flush_every=3, flush_interval=0.5, name="guest.batch")
    def batch(requests: list[Any]) -> None:
        seen.append([request.args[0] for request in requests])
        for request in requests:
            app.backend.mark_as_done(request.id, request.args[0] * 10, request=request)

    results = [batch.delay(n) for n in range(2)]
    results += group(batch.s(n) for n in range(2, 4)).delay().results
    results.append(batch.apply_async((4,), countdown=0))
    with working(app):
        values = [result.get(timeout=30) for result in results]
        later = batch.apply_async((5,), countdown=SOON).get(timeout=30)
        wait_until(lambda: not in_flight(app), description="all batches to be settled")
    return {"batches": sorted(seen), "results": values, "delayed": later}


def singleton(make: Callable[[], Celery]) -> Any:
    from celery_singleton import Singleton

    app = make()
    app.conf.singleton_backend_url = app.conf.broker_url.replace("redis+socket://", "unix://")
    runs: list[int] = []

    @app.task(base=Singleton, name="guest.single")
    def single(n: int) -> int:
        runs.append(n)
        return n

    first = [single.delay(1), single.delay(1), single.apply_async((1,), countdown=SOON)]
    first += group(single.s(1) for _ in range(3)).delay().results
    delayed = [single.apply_async((2,), countdown=SOON) for _ in range(2)]
    with working(app):
        # Members of a group whose calls are dropped never end.
        for result in (first[0], delayed[0]):
            result.get(timeout=30)
        second = single.delay(1)
        second.get(timeout=30)
    ids = {result.id for result in first}
    return {
        "runs": sorted(runs),
        "ids": [len(ids), len({result.id for result in delayed})],
        "new": second.id not in ids,
    }


def sentry(make: Callable[[], Celery]) -> Any:
    import sentry_sdk
    from sentry_sdk.integrations.celery import CeleryIntegration
    from sentry_sdk.transport import Transport

    items: list[Any] = []

    class Memory(Transport):
        def capture_envelope(self, envelope: Any) -> None:
            items.extend((item.type, item.payload.json) for item in envelope.items)

    # A worker initialises Sentry after its app was made.
    app = make()
    sentry_sdk.init(
        "http://key@localhost/1",
        transport=Memory,
        traces_sample_rate=1.0,
        default_integrations=False,
        integrations=[CeleryIntegration(monitor_beat_tasks=True)],
    )
    add_tasks(app)
    scheduler = Scheduler(app, lazy=True)
    scheduler.add(name="each minute", task="guest.add", schedule=60.0, args=(8,), options={"countdown": SOON})

    def checks() -> list[str]:
        return sorted(payload["status"] for kind, payload in items if kind == "check_in")

    with working(app):
        with sentry_sdk.start_transaction(name="web") as web:
            call_all(app)
        scheduler.apply_entry(scheduler.schedule["each minute"])
        wait_until(lambda: "ok" in checks(), description="the run to be checked in")
    runs = [payload for kind, payload in items if kind == "transaction" and payload["transaction"] != "web"]
    (sent,) = (payload for kind, payload in items if kind == "transaction" and payload["transaction"] == "web")
    errors = [payload for kind, payload in items if kind == "event"]

    def spans(kind: str, *but: str) -> Counter[str]:
        found = Counter(span["description"] for span in sent["spans"] if span["op"] == kind)
        return found - Counter(but)

    # A message with a delay is published by the dispatcher, outside of the trace.
    stored = () if "redis_queue" in sys.modules else ("guest.add",)
    return {
        "runs": Counter(f"{run['transaction']} {run['contexts']['trace']['status']}" for run in runs),
        "of the trace": sum(run["contexts"]["trace"]["trace_id"] == web.trace_id for run in runs),
        "submitted": spans("queue.submit.celery"),
        "published": spans("queue.publish", *stored),
        "errors": [(error["exception"]["values"][-1]["type"], error["transaction"]) for error in errors],
        "checks": checks(),
    }


def opentelemetry(make: Callable[[], Celery]) -> Any:
    from opentelemetry import trace
    from opentelemetry.instrumentation.celery import CeleryInstrumentor
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    trace.set_tracer_provider(provider)
    CeleryInstrumentor().instrument()
    app = make()
    add_tasks(app)
    with working(app):
        with trace.get_tracer("guest").start_as_current_span("web"):
            call_all(app)
        # The span of a run ends after its result is there.
        wait_until(lambda: len(memory.get_finished_spans()) >= 27, description="all spans")
    spans = {span.context.span_id: span for span in memory.get_finished_spans()}

    def parent_of(span: Any) -> Any:
        """Return the parent; what DurableTasks tells of a delay lies between a call and its run."""
        parent = spans[span.parent.span_id] if span.parent else None
        return parent_of(parent) if parent and parent.name.startswith("schedule ") else parent

    told = [span for span in spans.values() if span.parent and not span.name.startswith("schedule ")]
    rows = Counter(f"{span.name} of {parent_of(span).name}" for span in told)
    return {"spans": rows, "traces": len({span.context.trace_id for span in spans.values()})}


def django_results(make: Callable[[], Celery]) -> Any:
    import django
    from django.conf import settings
    from django.core.management import call_command

    database = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "results.sqlite3",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 60},
    }
    settings.configure(DATABASES={"default": database}, INSTALLED_APPS=["django_celery_results"], USE_TZ=True)
    django.setup()
    call_command("migrate", verbosity=0)
    from django_celery_results.models import GroupResult, TaskResult

    app = make()
    app.conf.update(result_backend="django-db", result_extended=True)
    add_tasks(app)
    # Threads would wait for each other's locks of the file.
    with working(app, concurrency=1):
        call_all(app)
        saved = app.GroupResult(results=group(app.tasks["guest.add"].s(n) for n in range(2)).delay().results, id="g")
        saved.save()
        values = saved.get(timeout=30)
    rows = Counter(
        f"{row.task_name.removeprefix('guest.')} {'LookupError' if 'LookupError' in row.result else row.result}"
        for row in TaskResult.objects.all()
    )
    return {"rows": rows, "groups": GroupResult.objects.count(), "values": values}


def report_events(app: Celery) -> None:
    app.conf.update(worker_send_task_events=True, task_send_sent_event=True)
    add_tasks(app)


def wait_for_subscription(app: Celery) -> None:
    """Wait until somebody reads events: earlier ones are lost."""
    with app.connection_for_read() as connection:
        wait_until(connection.default_channel.client.pubsub_numpat, description="a subscription")


def prometheus(make: Callable[[], Celery]) -> Any:
    from celery_redis_prometheus.exporter import STATS, CeleryEventReceiver, QueueLengthCollector

    app = make()
    report_events(app)
    # It reads until this process ends.
    threading.Thread(target=CeleryEventReceiver(app).capture, daemon=True).start()

    def counted() -> Counter[str]:
        found: Counter[str] = Counter()
        for metric in STATS["tasks"].collect():
            for sample in metric.samples:
                if sample.name.endswith("_total"):
                    # Without the queue: it knows that only if the event of the sender comes before that of the worker.
                    found[sample.labels["state"]] += int(sample.value)
        return found

    wait_for_subscription(app)
    waiting = app.tasks["guest.add"].delay(1)
    lengths = QueueLengthCollector(app).queue_lengths()
    with working(app):
        waiting.get(timeout=30)
        call_all(app)
        wait_until(lambda: counted()["succeeded"] >= 12, description="all events")
    return {"tasks": counted(), "waiting": dict(lengths)}


def flower(make: Callable[[], Celery]) -> Any:
    from flower.events import Events
    from tornado.ioloop import IOLoop

    app = make()
    report_events(app)
    loop = IOLoop()
    events = Events(app, loop, enable_events=False, max_tasks_in_memory=1000)
    events.start()
    threading.Thread(target=loop.start, daemon=True).start()

    def tasks() -> Counter[str]:
        rows = list(events.state.tasks.values())
        return Counter(f"{row.name}{row.args} {row.state}" for row in rows)

    wait_for_subscription(app)
    with working(app):
        call_all(app)
        wait_until(lambda: tasks().total() >= 12, description="all tasks")
        wait_until(
            lambda: {row.state for row in list(events.state.tasks.values())} <= {"SUCCESS", "FAILURE"},
            description="their ends",
        )
    counter = events.state.counter
    kinds = ("task-sent", "task-received", "task-started", "task-succeeded", "task-failed", "task-retried")
    return {"tasks": tasks(), "events": {kind: sum(of[kind] for of in counter.values()) for kind in kinds}}


if __name__ == "__main__":
    main(*sys.argv[1:])
