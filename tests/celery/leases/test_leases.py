"""WorkerLeases: start of the keeper process, what it is told, its replacement after it has died, and counters."""

import importlib
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.exceptions import OperationalError

from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.leases import keeper_process, leases
from redis_queue.celery.leases.leases import Counters, LeaseCounters, WorkerLeases, read_counters
from redis_queue.errors import ConfigurationError
from redis_queue.keeper.protocol import write_line
from redis_queue.store.keys import BrokerKeys
from redis_queue.store.redis_errors import RedisErrors
from tests.support.celery.brokers import connect
from tests.support.celery.fetching import Held, leases_of
from tests.support.ports import HOST
from tests.support.servers import RedisServer
from tests.support.wait import must, wait_until

Begin = Callable[..., WorkerLeases]


@pytest.fixture
def begin(redis_server: RedisServer, client: redis.Redis) -> Iterator[Begin]:
    """Starts WorkerLeases for a broker with these transport options."""
    made: list[tuple[Any, WorkerLeases]] = []

    def start(**options: Any) -> WorkerLeases:
        url = f"redis+socket://{redis_server.socket}"
        connection = connect(url, transport_options={"visibility_timeout": 1, **options})
        try:
            made.append((connection, leases_of(connection)))
        except ConfigurationError:
            connection.release()
            raise
        return made[-1][1]

    yield start
    for connection, begun in made:
        begun.close()
        connection.release()


def wait_for_renewal(leases: WorkerLeases) -> None:
    """Wait until the keeper has renewed."""
    since = time.monotonic()
    wait_until(lambda: leases._keeper.renewed.at > since, description="a keeper that renews")


def test_lease_of_a_message_whose_settlement_is_not_confirmed_is_not_lost(begin: Begin) -> None:
    leases = begin()
    leases.settlement.add("settled")
    # Neither has a record; the keeper reports them in this order.
    leases.hold(list(map(Held, ("settled", "gone"))), time.monotonic(), time.time())
    wait_until(lambda: not leases.holds("gone"), description="the lost lease")
    assert (leases.holds("settled"), leases.lost) == (True, 1)
    leases.drop("settled")


def break_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every keeper that is started from now on exit at once."""
    monkeypatch.setattr(sys, "executable", shutil.which("false"))


def test_keeper_uses_the_import_path_of_its_worker(
    begin: Begin, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "found_by_path_only.py").write_text("class Name(str):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir("/")

    begun = begin(client_name=importlib.import_module("found_by_path_only").Name("me"))

    wait_for_renewal(begun)


def test_a_worker_needs_no_folder_that_can_be_written(
    begin: Begin, client: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))

    begun = begin()

    wait_for_renewal(begun)


def test_worker_does_not_start_if_its_keeper_does_not(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    break_python(monkeypatch)
    with pytest.raises(ConfigurationError, match="ended with 1 before it was up"):
        begin()


@pytest.mark.parametrize(("deaths", "starts"), [(2, True), (9, False)])
def test_a_keeper_that_is_killed_before_it_is_up_is_replaced(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: int, *, starts: bool
) -> None:
    python, count = tmp_path / "python", tmp_path / "deaths"
    killed = f"echo >> {count}; [ $(wc -l < {count}) -gt {deaths} ] || kill -KILL $$"
    python.write_text(f'#!/bin/sh\n{killed}\nexec {sys.executable} "$@"\n')
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    if starts:
        wait_for_renewal(begin())
    else:
        with pytest.raises(ConfigurationError, match="ended with -9 before it was up"):
            begin()


def test_worker_does_not_start_without_an_interpreter_for_the_keeper(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(ConfigurationError, match="cannot start /nowhere/python"):
        begin()


def test_a_keeper_whose_child_holds_its_output_open_lets_no_worker_wait(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    # The child ends when the worker closes the input.
    python.write_text("#!/bin/sh\nexec 3<&0\nwhile read -r _; do :; done <&3 &\nwait\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(keeper_process, "START_TIMEOUT", 0.5)
    monkeypatch.setattr(keeper_process, "EXIT_TIMEOUT", 0.1)
    with pytest.raises(ConfigurationError, match="ended with -9 before it was up"):
        begin()


def test_crashing_keepers_are_replaced_with_backoff(
    begin: Begin, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeper_process, "RESTART_AFTER", 0.01)
    begun = begin()

    def pauses() -> list[float]:
        return [record.retry_in for record in caplog.records if getattr(record, "action", "") == "keeper_died"]

    with caplog.at_level(logging.ERROR), monkeypatch.context() as broken:
        break_python(broken)
        assert begun._keeper._process is not None
        begun._keeper._process.kill()
        wait_until(lambda: len(pauses()) >= 4, description="four keepers that died")
    assert pauses()[3] > pauses()[0]
    wait_for_renewal(begun)


def test_a_worker_whose_machine_slept_asks_before_it_settles(begin: Begin, sleep: Callable[[float], None]) -> None:
    begun = begin()
    begun.hold([Held("taken by another")], time.monotonic(), time.time())
    assert begun.is_ours("taken by another")
    sleep(90)
    assert not begun.is_ours("taken by another")


def test_a_new_keeper_renews_more_messages_than_its_pipe_holds(begin: Begin, client: redis.Redis) -> None:
    begun, now = begin(), float(client.time()[0])
    tags = [f"tag-{number:060}" for number in range(20_000)]
    client.zadd("unacked_index", dict.fromkeys(tags, now))
    process = must(begun._keeper._process)
    process.send_signal(signal.SIGSTOP)
    for tag in tags:
        begun.hold([Held(tag)], time.monotonic(), now)
    process.kill()
    # Nothing is written after the lines for the new keeper, and they are more than it may leave unread later.
    wait_until(lambda: client.zcount("unacked_index", 0, now) == 0, description="all leases to be renewed")
    assert begun.lost == 0


def test_a_keeper_that_reads_nothing_is_replaced_after_many_lines(
    begin: Begin, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_process, "MAX_UNWRITTEN", 1000)
    begun = begin()
    wait_for_renewal(begun)
    keeper = begun._keeper
    process = must(keeper._process)
    # However many lines one call writes, the keeper has read some of them.
    assert not keeper.write(write_line("tag") * 100_000)
    wait_until(lambda: keeper.write(b""), description="the keeper to read them")
    process.send_signal(signal.SIGSTOP)
    while keeper.write(write_line("tag") * 100):
        pass
    for _ in range(5):
        keeper.write(write_line("tag") * 10)
    assert process.poll() is None
    keeper.write(write_line("tag") * 200)
    wait_until(lambda: process.poll() is not None, timeout=5, description="the keeper to be killed")
    wait_for_renewal(begun)


def app_on(server: RedisServer, **options: str) -> Celery:
    url = f"redis+socket://{server.socket}"
    return Celery("tests", broker=url, set_as_current=False, broker_transport_options=options)


def test_missing_counters_are_zero_and_reading_writes_nothing(redis_server: RedisServer, client: redis.Redis) -> None:
    assert read_counters(app_on(redis_server)) == LeaseCounters(0, 0, 0, 0)
    assert client.dbsize() == 0


def test_counters_are_read_under_the_prefix_of_the_broker(redis_server: RedisServer, client: redis.Redis) -> None:
    app = app_on(redis_server, global_keyprefix="shop-")
    with app.connection() as connection:
        counted = Counters(client_of(connection.default_channel), "shop-")
    counted.add("lost")
    counted.add("restored", 3)
    counted.add("restored")
    assert read_counters(app) == LeaseCounters(lost=1, restored=4)
    assert client.keys() == [BrokerKeys("shop-").counters] == [b"shop-redis_queue:counters"]
    assert read_counters(app_on(redis_server)) == LeaseCounters()


def test_invalid_counters_are_zero(redis_server: RedisServer, client: redis.Redis) -> None:
    client.hset(BrokerKeys("").counters, mapping={"lost": "many", "dead": -1, "dropped": 2})
    assert read_counters(app_on(redis_server)) == LeaseCounters(dropped=2)


@pytest.mark.parametrize("trouble", ["another type", "away"])
def test_counting_never_raises(redis_server: RedisServer, client: redis.Redis, trouble: str) -> None:
    client.set(BrokerKeys("").counters, "not a hash")
    away = redis.Redis(host=HOST, port=1)
    Counters(away if trouble == "away" else client, "").add("lost")
    assert client.get(BrokerKeys("").counters) == b"not a hash"


def test_broker_other_than_redis_has_no_counters() -> None:
    assert read_counters(Celery("tests", broker="memory://", set_as_current=False)) is None


def test_unavailable_broker_is_an_error() -> None:
    app = Celery("tests", broker=f"redis://{HOST}:1/0", set_as_current=False)
    with pytest.raises((OperationalError, *RedisErrors)):
        read_counters(app)


def test_hanging_broker_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in leases.READ_TIMEOUTS:
        monkeypatch.setitem(leases.READ_TIMEOUTS, name, 0.2)
    with RedisServer() as server:
        app = app_on(server)
        server.pause()
        began = time.monotonic()
        with pytest.raises((OperationalError, *RedisErrors)):
            read_counters(app)
        assert time.monotonic() - began < 8
