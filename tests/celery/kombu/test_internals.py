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

import asgiref
import billiard
import celery
import kombu
import pytest
from celery import Celery
from celery.concurrency import asynpool
from kombu.asynchronous import Hub
from kombu.transport import redis as kombu_redis
from kombu.transport import virtual

import redis_queue
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
    worker = {"blueprint": SimpleNamespace(start=None), "on_ready": None, "on_close": None, "ensure_connected": None}
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


PARTS = [value for value in vars(internals).values() if isinstance(value, internals.Part)]


def names_of(*parts: internals.Part) -> list[str]:
    tables = [table for part in parts for table in (part.methods, part.attributes, part.class_attributes)]
    return sorted({line.split()[0] for table in tables for lines in table.values() for line in lines})


DOCUMENTED = {"_asdict", "_exit", "_get_running_loop", "_default_manager", "_meta", "_get_current_object"}
"""Of Python, Django, and proxies of Celery."""

OF_OTHERS = {"_map", "_sock"}
"""Of waitress and redis-py."""

BY_NAME = {"around", "delattr", "getattr", "hasattr", "setattr"}


def private_names(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Return the names with an underscore that the code uses, and those that it defines itself."""
    used, own = set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name("self" | "cls"), attr=name, ctx=ast.Store()):
                own.add(name)
            case ast.Attribute(attr=name):
                used.add(name)
            case ast.Call(func=ast.Name(function), args=[_, ast.Constant(str(name)), *_]) if function in BY_NAME:
                used.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                own.add(name)
            case ast.ImportFrom(names=names):
                used |= {alias.name for alias in names}
            case ast.Name(id=name, ctx=ast.Store()):
                own.add(name)
    return {name for name in used if name.startswith("_") and not name.startswith("__")}, own


def test_all_private_names_of_other_packages_in_use_are_in_the_tables() -> None:
    found = [private_names(ast.parse(path.read_text())) for path in Path(redis_queue.__path__[0]).rglob("*.py")]
    used = set[str]().union(*(names for names, _ in found))
    own = set[str]().union(*(names for _, names in found))
    known = {*names_of(*PARTS), *internals.OPTIONAL, *DOCUMENTED, *OF_OTHERS, "_state"}
    assert used - own - known == set()
    assert internals.OPTIONAL - used - own == set()
    private = {name for kind in KINDS for name in dir(kind) if name.startswith("_") and not name.startswith("__")}
    overridden = set[str]().union(
        *({*names} for module in MODULES for names in private_names(ast.parse(Path(module.__file__).read_text())))
    )
    assert overridden & private <= known


@pytest.fixture
def other_celery(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with packages that have other names for some of theirs."""
    names = re.compile(rf"\b({'|'.join(names_of(*request.param))})\b")
    for package in (asgiref, billiard, celery, kombu):
        source = Path(package.__path__[0])
        shutil.copytree(source, tmp_path / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (tmp_path / source.name).rglob("*.py"):
            text = path.read_text()
            changed = names.sub(r"\1_of_another", text)
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
from asgiref.sync import sync_to_async
from celery.contrib.testing.worker import start_worker

@app.task(name="inner", shared=False)
async def inner(number):
    return await sync_to_async(abs)(number)

with start_worker(app, pool="solo", perform_ping_check=False, loglevel="WARNING"):
    several = [double.s(number) for number in range(6)]
    results = [double.delay(number) for number in range(4)]
    results += [double.apply_async((4,), countdown=0.2), chord(several, total.s()).apply_async()]
    results += [group(several).apply_async(), *DurableTasks.of(app).send_many(several)]
    results += [inner.delay(-3)]
    found = [result.get(timeout=30) for result in results]
assert found == [0, 2, 4, 6, 8, 30, [0, 2, 4, 6, 8, 10], 0, 2, 4, 6, 8, 10, 3], found
"""


def run_with(other: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(other)}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def said_in(done: subprocess.CompletedProcess[str], *parts: internals.Part) -> None:
    """Check that the program said once for each part what is so without it, with all names that it lacks."""
    for part in parts:
        assert part.without in done.stderr
        (line,) = [line for line in done.stderr.splitlines() if part.without in line]
        assert [name for name in names_of(part) if name not in line] == []


@pytest.mark.parametrize("other_celery", [[internals.SENDING, internals.MONITOR, internals.ASGIREF]], indirect=True)
def test_with_another_celery_messages_are_sent_as_by_celery_and_it_is_said_once(
    other_celery: Path, server: RedisServer, request: pytest.FixtureRequest
) -> None:
    done = run_with(other_celery, USE, f"redis+socket://{server.socket}", "delays")
    assert done.returncode == 0, done.stderr
    said_in(done, *request.node.callspec.params["other_celery"])


WORK = f"""{APP}
@app.task(name="end", shared=False)
def end():
    app.control.shutdown()

double.delay(2)
end.delay()
app.worker_main(["worker", "--pool=prefork", "--beat", "--concurrency=1", f"--schedule={{sys.argv[3]}}/beat"])
"""


@pytest.mark.parametrize("other_celery", [[internals.POOL, internals.BEAT]], indirect=True)
def test_with_another_celery_its_pool_and_its_beat_work_as_those_of_celery(
    other_celery: Path, server: RedisServer, request: pytest.FixtureRequest
) -> None:
    done = run_with(other_celery, WORK, f"redis+socket://{server.socket}", "leases", str(other_celery))
    assert done.returncode == 0, done.stderr
    said_in(done, *request.node.callspec.params["other_celery"])


START = """
app.worker_main(["worker", "--pool=solo", "--loglevel=INFO"])
"""

ASYNC = """
@app.task(name="wait", shared=False)
async def wait():
    pass
"""


@pytest.mark.parametrize(
    ("other_celery", "tasks", "mode"),
    [([internals.LEASES], "", "leases"), ([internals.ASYNC_TASKS], ASYNC, "delays")],
    indirect=["other_celery"],
)
def test_with_another_celery_no_worker_starts_without_what_it_promised(
    other_celery: Path, server: RedisServer, tasks: str, mode: str, request: pytest.FixtureRequest
) -> None:
    done = run_with(other_celery, APP + tasks + START, f"redis+socket://{server.socket}", mode)
    assert done.returncode != 0
    assert "pip install 'celery<" in done.stderr
    assert [name for name in names_of(*request.node.callspec.params["other_celery"]) if name not in done.stderr] == []


RESULT = "x" * 20_000
BODY = pickle.dumps(RESULT)
SENT = struct.pack(">i", len(BODY)) + BODY


class OneProcess(asynpool.ResultHandler):
    """The pool of one process, as far as its results are read, and its loop."""

    uses_semaphore = True

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
