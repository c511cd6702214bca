"""The built wheel with each extra, in an environment without other packages."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.docs.blocks import DOCS
from tests.docs.reader import Background
from tests.packaging.environments import EMBEDDED, USES, Environment, Environments
from tests.packaging.sections import SECTIONS
from tests.support.ports import free_port
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("client")]

TRACED = """
import os
from celery import Celery
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from redis_queue.celery import DurableTasks

app = Celery("traced", broker=os.environ["REDIS_URL"])
DurableTasks(app, leases=False)
CeleryInstrumentor().instrument(use_span_links=True)


@app.task
def remind(order): ...
"""

PROVIDER = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

spans = open("spans.jsonl", "a")
provider = TracerProvider()
exporter = ConsoleSpanExporter(out=spans, formatter=lambda span: span.to_json(indent=None) + os.linesep)
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
"""

TESTING = (DOCS / "testing.md").read_text()
PROJECT = ("shop.py", "pytest.ini", "test_shop.py")
"""The files in docs/testing.md that need only the extra; tests with a clock need time-machine."""


@pytest.mark.parametrize("extra", USES)
def test_an_extra_needs_no_other_packages(
    extra: str, environments: Environments, redis_server: RedisServer, tmp_path: Path
) -> None:
    code = f"URL = {redis_server.url!r}; {USES[extra]}"
    output_of(environments.get(extra).run("-W", "error::ImportWarning", "-c", code, cwd=tmp_path))


def test_every_extra_is_tested(wheel: Path) -> None:
    tested = {*USES, "embedded", "testing", "tracing", "web", *(extras for extras, _ in SECTIONS.values())} - {""}
    (file,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("dist-info/METADATA"))
    metadata = HeaderParser().parsestr(zipfile.ZipFile(wheel).read(file).decode())
    assert set(metadata.get_all("Provides-Extra", [])) <= tested


def test_the_dashboard_is_served(environments: Environments, redis_server: RedisServer, tmp_path: Path) -> None:
    port = free_port()
    command = f"redis-queue web --url '{redis_server.url}' --port {port}"
    served = Background(command, tmp_path, environments.get("web").variables(PYTHONUNBUFFERED="1"))
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as page:
            assert "read-only" in page.read().decode()
    finally:
        served.kill()


def test_embedded_provides_a_server(environments: Environments, tmp_path: Path) -> None:
    done = environments.get("embedded").run("-c", EMBEDDED, cwd=tmp_path, machine=False)
    assert output_of(done) == "{'order': 42}\n"


def test_a_project_can_test_its_delayed_tasks(environments: Environments, tmp_path: Path) -> None:
    for name, code in re.findall(r"^```(?:python|ini)\n# (\S+)\n(.*?)^```", TESTING, re.DOTALL | re.MULTILINE):
        if name in PROJECT:
            with (tmp_path / name).open("a") as file:
                file.write(code)
    tests = ("-m", "pytest", "-W", "error")
    environment = environments.get("testing")
    assert " 4 passed in " in output_of(environment.run(*tests, cwd=tmp_path))

    refused = environment.run(*tests, "-k", "reminder", cwd=tmp_path, machine=False)
    assert refused.returncode == 1
    assert "pip install 'celery-redis-queue[embedded]'" in refused.stdout
    environments.add(environment, "testing,embedded")
    assert " 4 passed in " in output_of(environment.run(*tests, cwd=tmp_path, machine=False))


def test_tracing_records_spans_if_a_provider_is_set(
    environments: Environments, server: RedisServer, tmp_path: Path
) -> None:
    environment = environments.get("tracing")
    output_of(
        environment.run("-c", "from opentelemetry import trace; print(trace.get_tracer_provider())", cwd=tmp_path)
    )
    send(environment, TRACED, server, tmp_path)
    with server.client() as client:
        assert not re.search(b"traceparent|redis_queue_due_at", stored(client))
        client.flushall()

    # The extra is the API and the instrumentation, which record nothing; the SDK is the application's choice.
    environments.add(environment, "tracing", "opentelemetry-sdk")
    send(environment, PROVIDER + TRACED, server, tmp_path)
    with server.client() as client:
        assert b"traceparent" in stored(client)
    command = "celery -A traced worker --pool solo --loglevel INFO"
    worker = Background(command, tmp_path, environment.variables(REDIS_URL=server.url, C_FORCE_ROOT="1"))
    try:
        spans = wait_until(
            lambda: schedule_and_run(tmp_path / "spans.jsonl"), description="the spans of schedule and run"
        )
    finally:
        worker.kill()
    schedule, run = spans["schedule traced.remind"], spans["run/traced.remind"]
    assert [link["context"]["trace_id"] for link in run["links"]] == [schedule["context"]["trace_id"]]


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
    return done.stdout


def send(environment: Environment, module: str, server: RedisServer, folder: Path) -> None:
    """Delay a task of the app in *module* by a second."""
    (folder / "traced.py").write_text(f"import os\n{module}")
    code = "from traced import remind; print(remind.apply_async((42,), countdown=1).id)"
    output_of(environment.run("-c", code, cwd=folder, REDIS_URL=server.url))


def stored(client: redis.Redis) -> bytes:
    """Return the stored records of the waiting task."""
    values = [client.hvals(key) for key in client.scan_iter(_type="hash")]
    found = [value for some in values for value in some if b"traced.remind" in value]
    assert found
    return b"".join(found)


def schedule_and_run(file: Path) -> dict[str, Any] | None:
    """Return the spans by name as soon as those of schedule and run exist."""
    lines = file.read_text().splitlines() if file.exists() else []
    spans = {span["name"]: span for span in map(json.loads, lines)}
    return spans if {"schedule traced.remind", "run/traced.remind"} <= set(spans) else None
