"""What atomic fetch uses of kombu and Celery is checked by its shape; without it, workers consume as stock ones."""

from __future__ import annotations

import ast
import logging
import pickle
import struct
from collections.abc import Iterator
from pathlib import Path
from socket import socket, socketpair
from types import SimpleNamespace
from typing import Any

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
