"""Transactions, relays and cancels at the same time, on a database that keeps them apart: PostgreSQL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event
from typing import Any

import psycopg
import pytest

from redis_queue.delay.calls import Calls
from redis_queue.delay.queue import DelayQueue
from tests.support.django.project import environment
from tests.support.django.project import write as write_row
from tests.support.wait import wait_until

pytestmark = pytest.mark.celery

LOCKED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
KILL_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
RELAY_AND_DIE = """
import os, signal, django
django.setup()
from redis_queue.delay.calls import Calls
from redis_queue.contrib.django.outbox import relay
keep_many = Calls.keep_many
def die(calls, items):
    keep_many(calls, items)
    os.kill(os.getpid(), signal.SIGKILL)
Calls.keep_many = die
relay()
"""


@pytest.fixture
def database(postgres: str) -> str:
    return postgres


@pytest.fixture
def server(database: str) -> Iterator[psycopg.Connection]:
    """A connection that is nobody's, to look and to kill."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def threads(tables: Any) -> Iterator[Callable[..., Future[Any]]]:
    """Start something in a thread with database connections of its own."""
    from django.db import connections

    def run(work: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return work(*arguments)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(16) as pool:
        yield lambda work, *arguments: pool.submit(run, work, *arguments)


class Held:
    """Stops the first relay where its calls are in Redis and its transaction is open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = Event()
        self.go_on = Event()
        keep_many = Calls.keep_many

        def hold(calls: Calls, items: Any) -> Any:
            stored = keep_many(calls, items)
            if not self.reached.is_set():
                self.reached.set()
                assert self.go_on.wait(20)
            return stored

        monkeypatch.setattr(Calls, "keep_many", hold)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch)
    yield held
    held.go_on.set()


def write(*ids: str) -> None:
    """Leave calls in the outbox, as processes that died right behind their commits."""
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


def test_two_relays_share_the_work_and_none_waits(outbox: Any, delayed: Any, threads: Any, held: Held) -> None:
    ids = [f"x{number}" for number in range(10)]
    write(*ids)
    first = threads(outbox.relay, 4)
    assert held.reached.wait(20)
    assert outbox.relay() == outbox.Relayed(moved=6)
    assert not first.done()
    held.go_on.set()
    assert first.result(20) == outbox.Relayed(moved=4)
    assert (scheduled(delayed), rows()) == (ids, [])


def test_a_cancel_in_an_open_transaction_wins_over_a_relay(
    tables: Any, outbox: Any, delayed: Any, threads: Any
) -> None:
    write("x", "y")
    with tables.atomic():
        assert outbox.cancel("x")
        assert threads(outbox.relay).result(20) == outbox.Relayed(moved=1)
    assert outbox.relay() == outbox.Relayed()
    assert (scheduled(delayed), rows()) == (["y"], [])


def test_after_a_cancel_that_is_rolled_back_the_next_relay_moves_it(
    tables: Any, outbox: Any, delayed: Any, threads: Any
) -> None:
    write("x")
    with tables.atomic():
        assert outbox.cancel("x")
        assert threads(outbox.relay).result(20) == outbox.Relayed()
        tables.set_rollback(True)
    assert outbox.relay() == outbox.Relayed(moved=1)
    assert scheduled(delayed) == ["x"]


def test_cancels_wait_for_a_relay_and_take_out_what_it_moved(
    outbox: Any, delayed: Any, threads: Any, server: psycopg.Connection, held: Held
) -> None:
    from django.db import transaction

    write("x", "y")
    relay = threads(outbox.relay)
    assert held.reached.wait(20)

    def cancel_both() -> list[bool]:
        with transaction.atomic():
            return [outbox.cancel("y"), outbox.cancel("x")]

    cancels = threads(cancel_both)
    wait_until(lambda: server.execute(LOCKED).fetchone() == (1,), description="the cancel to wait")
    held.go_on.set()
    assert relay.result(20) == outbox.Relayed(moved=2)
    assert cancels.result(20) == [True, True]
    assert (scheduled(delayed), rows()) == ([], [])


def test_a_relay_that_is_killed_before_its_commit_loses_and_doubles_nothing(
    redis_url: str, database: str, outbox: Any, delayed: Any
) -> None:
    write("x")
    relay_and_die(redis_url, database)
    assert (scheduled(delayed), rows()) == (["x"], ["x"])
    # The server sees only after a moment that its client is gone.
    wait_until(lambda: outbox.relay().moved, description="the row to be free")
    assert (scheduled(delayed), rows()) == (["x"], [])


def test_what_a_killed_relay_left_in_both_places_is_cancelled_in_both(
    redis_url: str, database: str, outbox: Any, delayed: Any
) -> None:
    write("x")
    relay_and_die(redis_url, database)
    assert outbox.cancel("x")
    assert outbox.relay() == outbox.Relayed()
    assert (scheduled(delayed), rows()) == ([], [])


def test_a_cancel_that_cannot_ask_redis_cancels_nothing(
    tables: Any, outbox: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redis_queue.errors import StoreError

    def away(*_: Any) -> Any:
        raise StoreError

    write("x")
    monkeypatch.setattr(DelayQueue, "cancel_many", away)
    with tables.atomic(), pytest.raises(StoreError):
        outbox.cancel("x")
    assert rows() == ["x"]


def test_what_a_savepoint_took_back_is_not_scheduled(tables: Any, outbox: Any, delayed: Any) -> None:
    with tables.atomic():
        outbox.schedule("shop.remind", countdown=60, task_id="outer")
        with tables.atomic():
            outbox.schedule("shop.remind", countdown=60, task_id="inner")
            tables.set_rollback(True)
        with tables.atomic():
            outbox.schedule("shop.remind", countdown=60, task_id="second")
    assert (scheduled(delayed), rows()) == (["outer", "second"], [])


@pytest.mark.parametrize("breaks", [False, True])
def test_a_request_is_a_transaction(tables: Any, delayed: Any, monkeypatch: pytest.MonkeyPatch, breaks: bool) -> None:
    from django.db import connections
    from django.test import Client, override_settings

    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    with override_settings(ROOT_URLCONF="tests.support.django.request_urls"):
        answer = Client(raise_request_exception=False).post("/", {"fail": "1"} if breaks else {})
    assert answer.status_code == (500 if breaks else 200)
    assert (scheduled(delayed), rows()) == ([] if breaks else ["x"], [])


def test_what_commits_late_is_not_passed_over(
    tables: Any, outbox: Any, delayed: Any, threads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_queue.contrib.django.outbox.calls.relay_quietly", lambda **_: None)
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
    keep_many = Calls.keep_many
    finished = Event()

    def note(calls: Calls, items: Any) -> Any:
        moved.extend(item.id for item in items)
        return keep_many(calls, items)

    def commit(number: int) -> None:
        with tables.atomic():
            outbox.schedule("shop.remind", (number,), countdown=60, task_id=f"x{number}")
            tables.set_rollback(number % 5 == 4)

    def relay() -> None:
        while not finished.is_set():
            outbox.relay(7)

    monkeypatch.setattr(Calls, "keep_many", note)
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


def test_a_commit_stays_one_if_the_connection_is_lost_behind_it(
    tables: Any, outbox: Any, server: psycopg.Connection
) -> None:
    from django.db import connection

    with tables.atomic():
        tables.on_commit(lambda: server.execute(KILL_OTHERS))
        outbox.schedule("shop.remind", countdown=60, task_id="x")
    connection.close()
    assert rows() == ["x"]


def test_the_relay_goes_on_when_its_connection_is_lost(
    redis_url: str, database: str, tables: Any, delayed: Any, server: psycopg.Connection
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
        killed = server.execute(KILL_OTHERS).fetchall()
        # That of this test, which was closed just now, may still be there beside it.
        assert (True,) in killed
        write("y")
        wait_until(lambda: scheduled(delayed) == ["x", "y"], description="the second call to be relayed")
        process.terminate()
        _, log = process.communicate(timeout=60)
        assert (process.returncode, "cannot relay" in log) == (0, True), log
    finally:
        process.kill()
        process.communicate()
