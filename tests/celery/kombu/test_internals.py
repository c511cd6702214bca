"""What atomic fetch uses of kombu and Celery is checked by its shape; without it, workers consume as stock ones."""

from __future__ import annotations

import ast
import logging
import os
import pickle
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import socket, socketpair
from types import SimpleNamespace
from typing import Any

import celery
import kombu
import pytest
from celery import Celery
from celery.concurrency import asynpool
from kombu.asynchronous import Hub
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

from redis_queue.celery.fetch import channel, message, poller
from redis_queue.celery.kombu import connection, internals
from redis_queue.celery.kombu.internals import keep_partial_results
from redis_queue.celery.leases import qos, step
from redis_queue.celery.store_consumer import channel as store_channel
from redis_queue.celery.store_consumer import consumer
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

NEW_ENOUGH = hasattr(kombu_redis.MultiChannelPoller, "_pause_brpop")

TABLES = (internals.METHODS, internals.ATTRIBUTES, internals.CLASS_ATTRIBUTES)

KINDS = (kombu_redis.Channel, kombu_redis.QoS, kombu_redis.MultiChannelPoller, virtual.Transport)

MODULES = (channel, message, poller, connection, qos, step, store_channel, consumer)


def lease_step() -> step.LeaseStep:
    app = Celery("tests", broker="redis://localhost:1", set_as_current=False)
    app.conf.redis_queue_url = "redis://localhost:1"
    controller = SimpleNamespace(_process_task=None)
    worker = {"blueprint": SimpleNamespace(start=None), "on_ready": None, "ensure_connected": None}
    parent = SimpleNamespace(app=app, steps=[], connect=None, controller=controller, on_task_request=None, **worker)
    return step.LeaseStep(parent)


def test_the_installed_versions_are_known() -> None:
    assert bool(internals.lacking()) is not NEW_ENOUGH


@pytest.mark.parametrize("name", ["_fd_to_chan", "on_readable", "can_consume", "global_keyprefix"])
def test_with_another_kombu_a_worker_consumes_as_a_stock_one_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    for table in TABLES:
        for owner, lines in list(table.items()):
            other = (f"{line}_of_another_kombu" if line.split()[0] == name else line for line in lines)
            monkeypatch.setitem(table, owner, tuple(other))
    with caplog.at_level(logging.WARNING):
        assert lease_step()._fetching is False
    (record,) = caplog.records
    assert "atomic fetch is off" in record.message
    assert internals.versions() in record.message
    assert name in record.message


def test_all_private_names_of_kombu_in_use_are_in_the_tables() -> None:
    private = {name for kind in KINDS for name in dir(kind) if name.startswith("_") and not name.startswith("__")}
    used = set()
    for module in MODULES:
        tree = ast.parse(Path(module.__file__).read_text())
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        used |= names & private
    assert used <= {line.split()[0] for table in TABLES for lines in table.values() for line in lines}


def names_of(part: internals.Part) -> list[str]:
    return sorted({line.split()[0] for table in part for lines in table.values() for line in lines})


@pytest.fixture
def other_celery(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with a Celery and a kombu that have another name for one of theirs."""
    for package in (celery, kombu):
        source = Path(package.__path__[0])
        shutil.copytree(source, tmp_path / source.name)
        for path in (tmp_path / source.name).rglob("*.py"):
            text = path.read_text()
            changed = re.sub(rf"\b{request.param}\b", f"{request.param}_of_another", text)
            if changed != text:
                path.write_text(changed)
    return tmp_path


APP = """
import sys
from celery import Celery, chord, group
from redis_queue.celery import DurableTasks

app = Celery("other", broker=sys.argv[1], backend=sys.argv[1], set_as_current=False)
app.conf.update(redis_queue_url=sys.argv[1], redis_queue_task_lease=5)
DurableTasks(app, leases=sys.argv[2] == "leases")

@app.task(name="double", bind=True, shared=False)
def double(self, number):
    if self.request.retries < number % 2:
        raise self.retry(countdown=0.1)
    return 2 * number

@app.task(name="total", shared=False)
def total(numbers):
    return sum(numbers)
"""

USE = f"""{APP}
from celery.contrib.testing.worker import start_worker

with start_worker(app, pool="solo", perform_ping_check=False):
    several = [double.s(number) for number in range(6)]
    results = [double.delay(number) for number in range(4)]
    results += [double.apply_async((4,), countdown=0.2), chord(several, total.s()).apply_async()]
    results += [group(several).apply_async(), *DurableTasks.of(app).send_many(several)]
    found = [result.get(timeout=30) for result in results]
assert found == [0, 2, 4, 6, 8, 30, [0, 2, 4, 6, 8, 10], 0, 2, 4, 6, 8, 10], found
"""


def run_with(other: Path, program: str, url: str, leases: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(other)}
    command = [sys.executable, "-c", program, url, leases]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("other_celery", names_of(internals.SENDING), indirect=True)
def test_with_another_celery_messages_are_sent_as_by_celery_and_it_is_said_once(
    other_celery: Path, server: RedisServer, request: pytest.FixtureRequest
) -> None:
    done = run_with(other_celery, USE, f"redis+socket://{server.socket}", "delays")
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "sent as by Celery alone" in line]
    assert len(lines) == 1
    assert request.node.callspec.params["other_celery"] in lines[0]


START = f"""{APP}
app.worker_main(["worker", "--pool=solo", "--loglevel=INFO"])
"""


@pytest.mark.parametrize("other_celery", names_of(internals.LEASES), indirect=True)
def test_with_another_celery_no_worker_starts_without_the_leases_it_promised(
    other_celery: Path, server: RedisServer, request: pytest.FixtureRequest
) -> None:
    done = run_with(other_celery, START, f"redis+socket://{server.socket}", "leases")
    assert done.returncode != 0
    assert request.node.callspec.params["other_celery"] in done.stderr
    assert "pip install 'celery<" in done.stderr


RESULT = "x" * 20_000
BODY = pickle.dumps(RESULT)
SENT = struct.pack(">i", len(BODY)) + BODY


class OneProcess(asynpool.ResultHandler):
    """The pool of one process, as far as its results are read, and its loop."""

    def __init__(self, fd: int) -> None:
        self.fileno_to_outq = self._fileno_to_outq = {fd: "process"}
        self._pool, self.read = self, list[Any]()
        self.on_state_change = self.read.append
        self.hub = Hub()
        keep_partial_results(self.hub, self)
        self.register_with_event_loop(self.hub)

    def register_with_event_loop(self, hub: Hub) -> None:
        super().register_with_event_loop(hub)
        for fd in self.fileno_to_outq:
            hub.add_reader(fd, self.handle_event, fd)

    def reconnect(self) -> None:
        self.hub.reset()
        self.register_with_event_loop(self.hub)


@pytest.fixture
def pool() -> Iterator[tuple[OneProcess, socket]]:
    """A pool, and what its process writes to."""
    process, worker = socketpair()
    worker.setblocking(False)
    with process, worker:
        pool = OneProcess(worker.fileno())
        yield pool, process
        pool.hub.close()


@pytest.mark.parametrize("arrived", [2, 4, 10_000])
def test_a_result_of_which_a_part_was_read_is_read_on_after_a_lost_connection(
    pool: tuple[OneProcess, socket], arrived: int
) -> None:
    worker, process = pool
    process.sendall(SENT[:arrived])
    next(worker.hub.create_loop())
    worker.reconnect()
    process.sendall(SENT[arrived:] + SENT)
    loop = worker.hub.create_loop()
    wait_until(lambda: next(loop) or len(worker.read) == 2, timeout=5, description="both results")
    assert worker.read == [RESULT] * 2


def test_of_a_process_that_has_ended_no_part_is_read_on(pool: tuple[OneProcess, socket]) -> None:
    worker, process = pool
    process.sendall(SENT[:10_000])
    loop = worker.hub.create_loop()
    next(loop)
    process.close()
    with pytest.raises(OSError, match="End of file"):
        next(loop)
    worker.reconnect()
    ((reader, _),) = worker.hub.readers.values()
    assert reader == worker.handle_event
