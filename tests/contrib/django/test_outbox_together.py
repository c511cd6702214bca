"""Concurrent transactions, relays and cancels on servers that isolate them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any

import psycopg
import pymysql
import pytest

from redis_queue.delay.entries import MarkedEntries
from tests.support.django.project import environment
from tests.support.django.project import write as write_row
from tests.support.services import mariadb_connection
from tests.support.wait import wait_until

RELAY_AND_DIE = """
import os, signal, django
django.setup()
from redis_queue.delay.entries import MarkedEntries
from redis_queue.contrib.django.outbox import relay
keep_many = MarkedEntries.keep_many
def die(calls, items):
    keep_many(calls, items)
    os.kill(os.getpid(), signal.SIGKILL)
MarkedEntries.keep_many = die
relay()
"""


pytestmark = pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)


class Postgres:
    """A separate connection, to query the server and to end other connections."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self.close = self._connection.close

    def waits(self) -> bool:
        """Return whether one statement waits for a lock."""
        waiting = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return self._connection.execute("SELECT count(*) " + waiting).fetchone() == (1,)

    def kill_others(self) -> int:
        """End the other connections; return how many there were."""
        others = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        killed = self._connection.execute("SELECT pg_terminate_backend(pid) " + others).fetchall()
        # A connection that was closed a moment ago may still be in the list.
        return sum(done for (done,) in killed)


class MariaDB:
    """A separate connection, to query the server and to end other connections."""

    def __init__(self, url: str) -> None:
        connection = mariadb_connection(url)
        self._cursor = connection.cursor()
        self.close = connection.close

    def waits(self) -> bool:
        """Return whether one statement waits for a lock."""
        # Asked often, InnoDB does not tell of new locks.
        return bool(self._ids("info LIKE 'DELETE FROM %'"))

    def kill_others(self) -> int:
        """End the other connections; return how many there were."""
        others = self._ids("id <> CONNECTION_ID()")
        for id_ in others:
            with suppress(pymysql.OperationalError):
                self._cursor.execute("KILL %s", [id_])
        return len(others)

    def _ids(self, which: str) -> list[int]:
        self._cursor.execute(f"SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND {which}")  # noqa: S608
        return [id_ for (id_,) in self._cursor.fetchall()]


@pytest.fixture
def server(database: str) -> Iterator[Postgres | MariaDB]:
    server = Postgres(database) if database.startswith("postgresql") else MariaDB(database)
    yield server
    server.close()


@pytest.fixture
def threads(tables: Any) -> Iterator[Callable[..., Future[Any]]]:
    """Run a function in a thread with its own database connections."""
    from django.db import connections

    def run(work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return work(*arguments)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(16) as pool:
        yield lambda work, *arguments: pool.submit(run, work, *arguments)


class PausedRelay:
    """Stops the first relay after it stored its calls in Redis and before its commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = Event()
        self.go_on = Event()
        keep_many = MarkedEntries.keep_many

        def hold(calls: MarkedEntries, items: Any) -> Any:
            stored = keep_many(calls, items)
            if not self.reached.is_set():
                self.reached.set()
                assert self.go_on.wait(20)
            return stored

        monkeypatch.setattr(MarkedEntries, "keep_many", hold)


@pytest.fixture
def paused_relay(monkeypatch: pytest.MonkeyPatch) -> Iterator[PausedRelay]:
    paused_relay = PausedRelay(monkeypatch)
    yield paused_relay
    paused_relay.go_on.set()


def write(*ids: str) -> None:
    """Write calls to the outbox, as a process leaves them that dies right after its commit."""
    for id_ in ids:
        write_row(task_id=id_)


def rows() -> list[str]:
    from redis_queue.contrib.django.outbox.models import Call

    return list(Call.objects.values_list("task_id", flat=True))


def scheduled(delayed: Any) -> list[str]:
    return sorted(entry.id for entry in delayed.scan())


def relay_and_die(redis_url: str, database: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RELAY_AND_DIE], env={**os.environ, **environment(redis_url, database)}, timeout=60
    )
    assert done.returncode == -signal.SIGKILL


def test_two_relays_share_the_calls_without_waiting(
    outbox: Any, delayed: Any, threads: Any, paused_relay: PausedRelay
) -> None:
    ids = [f"x{number}" for number in range(10)]
    write(*ids)
    first = threads(outbox.relay, 4)
    assert paused_relay.reached.wait(20)
    assert outbox.relay() == outbox.Relayed(moved=6)
    assert not first.done()
    paused_relay.go_on.set()
    assert first.result(20) == outbox.Relayed(moved=4)
    assert (scheduled(delayed), rows()) == (ids, [])


def test_a_relay_skips_a_call_that_an_open_transaction_cancels(
    tables: Any, outbox: Any, delayed: Any, threads: Any
) -> None:
    write("x", "y")
    with tables.atomic():
        assert outbox.cancel("x")
        assert threads(outbox.relay).result(20) == outbox.Relayed(moved=1)
    assert outbox.relay() == outbox.Relayed()
    assert (scheduled(delayed), rows()) == (["y"], [])


def test_a_call_is_relayed_after_its_cancel_was_rolled_back(
    tables: Any, outbox: Any, delayed: Any, threads: Any
) -> None:
    write("x")
    with tables.atomic():
        assert outbox.cancel("x")
        assert threads(outbox.relay).result(20) == outbox.Relayed()
        tables.set_rollback(True)
    assert outbox.relay() == outbox.Relayed(moved=1)
    assert scheduled(delayed) == ["x"]


def test_cancels_wait_for_a_relay_and_cancel_its_entries(
    outbox: Any, delayed: Any, threads: Any, server: Postgres | MariaDB, paused_relay: PausedRelay
) -> None:
    from django.db import transaction

    write("x", "y")
    relay = threads(outbox.relay)
    assert paused_relay.reached.wait(20)

    def cancel_both() -> list[bool]:
        with transaction.atomic():
            return [outbox.cancel("y"), outbox.cancel("x")]

    cancels = threads(cancel_both)
    wait_until(server.waits, description="the cancel to wait for the lock")
    paused_relay.go_on.set()
    assert relay.result(20) == outbox.Relayed(moved=2)
    assert cancels.result(20) == [True, True]
    assert (scheduled(delayed), rows()) == ([], [])


def test_a_relay_killed_before_its_commit_loses_and_duplicates_nothing(
    redis_url: str, database: str, outbox: Any, delayed: Any
) -> None:
    write("x")
    relay_and_die(redis_url, database)
    assert (scheduled(delayed), rows()) == (["x"], ["x"])
    # The server takes a moment to notice that its client is gone.
    wait_until(lambda: outbox.relay().moved, description="the row to be free")
    assert (scheduled(delayed), rows()) == (["x"], [])


def test_a_cancel_after_a_killed_relay_removes_row_and_entry(
    redis_url: str, database: str, outbox: Any, delayed: Any
) -> None:
    write("x")
    relay_and_die(redis_url, database)
    assert outbox.cancel("x")
    assert outbox.relay() == outbox.Relayed()
    assert (scheduled(delayed), rows()) == ([], [])


def test_a_cancel_without_redis_raises_and_cancels_nothing(
    tables: Any, outbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redis_queue.errors import StoreError

    def away(*_: Any, **__: Any) -> Any:
        raise StoreError

    write("x")
    monkeypatch.setattr(MarkedEntries, "cancel", away)
    with tables.atomic(), pytest.raises(StoreError):
        outbox.cancel("x")
    assert rows() == ["x"]


@pytest.mark.parametrize("breaks", [False, True])
def test_atomic_requests_include_the_outbox(
    tables: Any, delayed: Any, monkeypatch: pytest.MonkeyPatch, breaks: bool
) -> None:
    from django.db import connections
    from django.test import Client, override_settings

    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    with override_settings(ROOT_URLCONF="tests.support.django.request_urls"):
        answer = Client(raise_request_exception=False).post("/", {"fail": "1"} if breaks else {})
    assert answer.status_code == (500 if breaks else 200)
    assert (scheduled(delayed), rows()) == ([] if breaks else ["x"], [])


def test_a_late_commit_is_not_skipped(
    tables: Any, outbox: Any, delayed: Any, threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_queue.contrib.django.outbox.calls.try_relay", lambda **_: None)
    written, commit = Event(), Event()

    def slow() -> None:
        with tables.atomic():
            outbox.schedule("shop.remind", countdown=60, task_id="early")
            written.set()
            assert commit.wait(20)

    early = threads(slow)
    assert written.wait(20)
    outbox.schedule("shop.remind", countdown=60, task_id="late")
    assert outbox.relay() == outbox.Relayed(moved=1)
    assert scheduled(delayed) == ["late"]
    commit.set()
    early.result(20)
    assert outbox.relay() == outbox.Relayed(moved=1)
    assert scheduled(delayed) == ["early", "late"]


def test_a_hundred_commits_at_once_are_each_moved_once(
    tables: Any, outbox: Any, delayed: Any, threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[str] = []
    keep_many = MarkedEntries.keep_many
    finished = Event()

    def note(calls: MarkedEntries, items: Any) -> Any:
        moved.extend(item.id for item in items)
        return keep_many(calls, items)

    def commit(number: int) -> None:
        with tables.atomic():
            outbox.schedule("shop.remind", (number,), countdown=60, task_id=f"x{number}")
            tables.set_rollback(number % 5 == 4)

    def relay() -> None:
        while not finished.is_set():
            outbox.relay(7)

    monkeypatch.setattr(MarkedEntries, "keep_many", note)
    relays = [threads(relay) for _ in range(2)]
    try:
        for commits in [threads(commit, number) for number in range(125)]:
            commits.result(30)
    finally:
        finished.set()
    for each in relays:
        each.result(20)
    outbox.relay()
    expected = sorted(f"x{number}" for number in range(125) if number % 5 < 4)
    assert len(expected) == 100
    assert (sorted(moved), scheduled(delayed), rows()) == (expected, expected, [])


def test_a_connection_lost_after_the_commit_does_not_raise(
    tables: Any, outbox: Any, server: Postgres | MariaDB
) -> None:
    from django.db import connection

    with tables.atomic():
        tables.on_commit(server.kill_others)
        outbox.schedule("shop.remind", countdown=60, task_id="x")
    connection.close()
    assert rows() == ["x"]


def test_the_relay_continues_after_a_lost_connection(
    redis_url: str, database: str, tables: Any, delayed: Any, server: Postgres | MariaDB
) -> None:
    from django.db import connection

    process = subprocess.Popen(
        [sys.executable, "-m", "examples.shop", "redis_queue_relay", "--interval", "0.05"],
        env={**os.environ, **environment(redis_url, database)},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        write("x")
        wait_until(lambda: scheduled(delayed) == ["x"], timeout=40, description="the first call to be relayed")
        connection.close()
        assert server.kill_others()
        write("y")
        wait_until(lambda: scheduled(delayed) == ["x", "y"], description="the second call to be relayed")
        process.terminate()
        _, log = process.communicate(timeout=60)
        assert (process.returncode, "cannot relay" in log) == (0, True), log
    finally:
        process.kill()
        process.communicate()
