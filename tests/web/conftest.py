"""The dashboard of a filled Redis, in this process and as a separate process."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from flask import Flask
from jinja2 import FileSystemBytecodeCache

from redis_queue.testing.server import DeathGuard
from redis_queue.web import dashboard
from tests.support.paths import ROOT
from tests.support.wait import wait_until
from tests.support.web.browser import Browser
from tests.support.web.contents import KEY, Open, Serve, Served, delayed_of, fill


@pytest.fixture(scope="session", autouse=True)
def compiled_templates(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep compiled templates: each dashboard has its own environment, and would compile its pages again."""
    cache = FileSystemBytecodeCache(str(tmp_path_factory.mktemp("templates")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flask, "jinja_options", {**Flask.jinja_options, "bytecode_cache": cache})
        yield


@pytest.fixture
def app(app: Celery, client: redis.Redis) -> Celery:
    delayed_of(app, client)
    return app


@pytest.fixture
def filled(client: redis.Redis, app: Celery) -> redis.Redis:
    """The shared Redis with entries in every state."""
    fill(client, app)
    return client


@pytest.fixture
def open_dashboard(filled: redis.Redis, app: Celery) -> Open:
    """Return a browser on a dashboard of the app, or of another source, with the given settings."""

    def open_dashboard(source: Any = None, **options: Any) -> Browser:
        headers = options.pop("headers", None)
        made = dashboard(app if source is None else source, **{"secret_key": KEY, **options})
        made.testing = False
        return Browser(made, headers=headers)

    return open_dashboard


@pytest.fixture
def reader(open_dashboard: Open) -> Browser:
    return open_dashboard()


@pytest.fixture
def writer(open_dashboard: Open) -> Browser:
    return open_dashboard(allow_write=True)


@pytest.fixture(scope="session")
def serve() -> Iterator[Serve]:
    """Start `redis-queue web --port 0` with more arguments; the processes end with the tests."""
    with contextlib.ExitStack() as ends:

        def serve(
            *arguments: str, url: str, environment: dict[str, str] | None = None, group: tuple[str, ...] = ()
        ) -> Served:
            directory = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="dashboard-")))
            module = group or ("redis_queue",)
            with (directory / "log").open("wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", *module, "web", "--port", "0", *arguments],
                    cwd=ROOT,
                    env={**os.environ, "REDIS_QUEUE_URL": url, **(environment or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            guard = DeathGuard(process.pid, directory)
            ends.callback(process.wait)
            ends.callback(guard.dismiss)
            ends.callback(process.kill)
            served = Served(process, 0, directory / "log")

            def port() -> int:
                assert process.poll() is None, served.output
                found = re.search(r"dashboard on http://\S+?:(\d+)/", served.output)
                return int(found[1]) if found else 0

            served.port = wait_until(port, description="the dashboard to print its port")
            return served

        yield serve
