"""pytest plugin for a run of the tests of Celery or kombu: a Redis for each process, and the outcomes in a file.

With ``REDIS_QUEUE_GUEST_LINE`` each app has DurableTasks, and each transport of kombu's tests the channels of workers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from celery import Celery
from kombu.transport.redis import Transport

from redis_queue.celery import DurableTasks
from redis_queue.celery.leases.qos import lease_channels
from tests.support.ports import HOST
from tests.support.servers import RedisServer

LINE: Final = "REDIS_QUEUE_GUEST_LINE"
"""Variable: if it is set, the run is one with the line."""

OUTCOMES: Final = "REDIS_QUEUE_GUEST_OUTCOMES"
"""Variable: the file for the outcomes."""

server = RedisServer(tcp=True)
outcomes: dict[str, str] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Start the server of this process, one for each process of xdist, before a conftest reads its address."""
    server.start()
    os.environ.update(TEST_BROKER=server.url, TEST_BACKEND=server.url, REDIS_HOST=HOST, REDIS_PORT=str(server.port))
    if os.environ.get(LINE):
        after_init(Celery, DurableTasks)
        after_init(Transport, use_our_channels)


def after_init(kind: Any, then: Callable[[Any], Any]) -> None:
    """Call *then* with each new object of *kind*."""
    original = kind.__init__

    @wraps(original)
    def init(self: Any, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        then(self)

    kind.__init__ = init


def use_our_channels(transport: Any) -> None:
    """Give *transport* the channels of workers if it is one of kombu's own tests: the others have workers."""
    if type(transport).__module__ != Transport.__module__:
        leases = SimpleNamespace(unread=[], is_ours=lambda _tag: True, hold=lambda *_: None, drop=lambda _tag: None)
        lease_channels(transport, leases, fetching=True)


@pytest.fixture(autouse=True, scope="session")
def worker(request: pytest.FixtureRequest) -> None:
    """Start the worker of Celery's integration tests first: some of them need it without saying so."""
    if any(item.path.parent.name == "integration" for item in request.session.items):
        request.getfixturevalue("celery_session_worker")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note how a test ended."""
    if report.failed:
        outcomes[report.nodeid] = "failed"
    elif report.skipped:
        outcomes.setdefault(report.nodeid, "skipped")
    elif report.when == "call":
        outcomes.setdefault(report.nodeid, "passed")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the outcomes; the processes of xdist have reported theirs to this one."""
    if not hasattr(session.config, "workerinput"):
        path = os.environ.get(OUTCOMES)
        if path:
            Path(path).write_text(json.dumps(outcomes))


def pytest_unconfigure() -> None:
    """Stop the server."""
    server.stop()
