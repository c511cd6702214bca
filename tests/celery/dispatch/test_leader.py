"""LeaderLease: on startup a dispatcher replaces a leader whose process was killed, and no other leader."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
import redis
from celery import Celery

from redis_queue.celery import DelayedTasks, DispatchLoop
from redis_queue.celery.dispatch.dispatcher_name import new_name
from redis_queue.store.keys import Keys
from tests.support.wait import wait_until

pytestmark = pytest.mark.celery

LONG = 3600
HOST = socket.gethostname()

Make = Callable[[], DispatchLoop]


@pytest.fixture
def make(redis_url: str, client: redis.Redis) -> Iterator[Make]:
    """Make loops of apps on the shared server; each connection that they open is closed in the end."""
    with ExitStack() as stack:

        def make() -> DispatchLoop:
            app = Celery("tests", broker=redis_url.replace("unix", "redis+socket"), set_as_current=False)
            app.conf.update(redis_queue_url=redis_url)
            DelayedTasks(app)
            stack.callback(app.close)
            return DispatchLoop(app, kind="worker@")

        yield make


@contextmanager
def running(loop: DispatchLoop) -> Iterator[None]:
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield
    finally:
        loop.stop()
        thread.join()


def of_dead_process() -> str:
    """Return the name of a dispatcher whose process is no more."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return f"worker@{HOST}:{process.pid}:0123abcd"


def of_earlier_container() -> str:
    """Return the name of a dispatcher that had the number of this process in a container before it was restarted."""
    return f"worker@{HOST}:{os.getpid()}:0123abcd"


@pytest.mark.parametrize("leader", [of_dead_process, of_earlier_container])
def test_the_place_of_a_process_that_is_no_more_is_taken_at_once(
    leader: Callable[[], str], make: Make, client: redis.Redis
) -> None:
    key = Keys("redis_queue", "delay", "celery", 0).leader
    client.set(key, leader(), ex=LONG)
    loop = make()
    with running(loop):
        wait_until(lambda: loop.leads, description="it to lead")
        assert client.get(key) == loop.name.encode()
        # For as long as any leader, so that others can take its place.
        assert client.ttl(key) < 60


@pytest.mark.parametrize(
    "leader",
    [
        pytest.param(lambda: f"worker@{HOST}:{os.getppid()}:0123abcd", id="another process of this host"),
        pytest.param(lambda: f"worker@{HOST}:1:0123abcd", id="a process of another user"),
        pytest.param(lambda: new_name("worker@"), id="another thread of this process"),
        pytest.param(lambda: "worker@elsewhere:99999999:0123abcd", id="another host"),
        pytest.param(lambda: f"worker@{HOST}:{'9' * 400}:0123abcd", id="a number that no process has"),
        pytest.param(lambda: f"worker@{HOST}:0:0123abcd", id="all processes"),
        pytest.param(lambda: f"{HOST}", id="no name of a dispatcher"),
    ],
)
def test_no_other_one_loses_its_place(leader: Callable[[], str], make: Make, client: redis.Redis) -> None:
    key, name = Keys("redis_queue", "delay", "celery", 0).leader, leader()
    client.set(key, name, ex=LONG)
    loop = make()
    with running(loop):
        # It writes that it is there after it has looked who leads.
        rows = key.replace(b"leader", b"dispatchers")
        wait_until(lambda: client.hexists(rows, loop.name), description="it to follow")
        assert not loop.leads
    assert client.get(key) == name.encode()


def test_two_that_take_each_other_for_dead_do_not_take_turns(make: Make, client: redis.Redis) -> None:
    """Containers may share a host name and see none of each other's processes."""
    key = Keys("redis_queue", "delay", "celery", 0).leader
    loop = make()
    assert loop._leader.take().mine
    other = of_dead_process()
    client.set(key, other, ex=LONG)
    assert loop._leader.take().leader == other
    assert client.get(key) == other.encode()
