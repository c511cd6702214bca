"""A Redis that does not answer delays few commits and locks no rows of the database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from redis_queue.errors import StoreUnavailableError
from redis_queue.store.scripts import CALL_ATTEMPTS
from tests.support.django.project import rows, use_redis, write
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer
from tests.support.wait import wait_until


@pytest.fixture
def redis(redis_tcp_server: RedisServer, tables: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """The Redis of the outbox through a proxy; the app is not connected to it yet."""
    del tables
    with redis_tcp_server.client() as client:
        client.flushall()
    with FaultProxy(redis_tcp_server.address) as proxy:
        use_redis(proxy.url, monkeypatch)
        yield proxy


def test_only_one_of_many_commits_waits_for_a_silent_redis(tables: Any, outbox: Any, redis: FaultProxy) -> None:
    redis.mode = "blackhole"
    for number in range(20):
        with tables.atomic():
            outbox.schedule("shop.remind", countdown=60, task_id=f"x{number}")
    assert redis.connections <= CALL_ATTEMPTS
    assert len(rows()) == 20
    redis.mode = "pass"
    assert outbox.relay() == outbox.Relayed(moved=20)
    assert rows() == []


def test_commits_are_relayed_again_after_an_outage(
    tables: Any, outbox: Any, redis: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_queue.contrib.django.outbox.transfer.FIRST_PAUSE", 0.0)
    redis.mode = "refuse"
    outbox.schedule("shop.remind", countdown=60)
    assert len(rows()) == 1
    redis.mode = "pass"
    outbox.schedule("shop.remind", countdown=60)
    assert rows() == []


def test_a_relay_that_waits_for_redis_does_not_lock_the_database(shop: Any, outbox: Any, redis: FaultProxy) -> None:
    from django.db import connections

    def relay() -> Any:
        try:
            return outbox.relay()
        finally:
            connections.close_all()

    write(task_id="x")
    redis.mode = "blackhole"
    with ThreadPoolExecutor(1) as pool:
        relayed = pool.submit(relay)
        wait_until(lambda: redis.connections, description="the relay to connect to Redis")
        with sqlite3.connect(shop, timeout=0) as other:
            other.execute("UPDATE redis_queue_outbox_call SET failures = 0")
        other.close()
        assert not relayed.done()
        redis.mode = "pass"
        assert relayed.result(30) == outbox.Relayed(moved=1)


def test_a_cancel_that_waits_for_redis_locks_nothing(tables: Any, outbox: Any, redis: FaultProxy) -> None:
    write(task_id="x")
    redis.mode = "blackhole"
    from django.db import connection

    written: list[str] = []
    with (
        pytest.raises(StoreUnavailableError),
        connection.execute_wrapper(lambda execute, sql, *rest: (written.append(sql), execute(sql, *rest))[1]),
    ):
        outbox.cancel("x")
    assert written == []
    assert [row.task_id for row in rows()] == ["x"]


def test_the_pauses_of_a_breaker_grow_and_each_allows_one_caller(shop: Any) -> None:
    from redis_queue.contrib.django.outbox.transfer import FIRST_PAUSE, MAX_PAUSE, Breaker

    del shop
    now = [100.0]
    breaker = Breaker(lambda: now[0])
    assert breaker.allows()
    assert breaker.allows()
    breaker.failed()
    assert not breaker.allows()
    pauses = []
    for _ in range(8):
        began = now[0]
        while not breaker.allows():
            now[0] += 0.5
        pauses.append(now[0] - began)
        assert not breaker.allows()
        breaker.failed()
    assert pauses[0] <= FIRST_PAUSE + 0.5
    assert MAX_PAUSE / 2 <= pauses[-1] <= MAX_PAUSE + 0.5
    now[0] += MAX_PAUSE
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.allows()
    assert breaker.allows()
