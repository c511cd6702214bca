"""LeaderLease: on startup a dispatcher replaces a leader whose process was killed, and no other leader."""

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
import redis
from celery import Celery

from redis_queue.celery import DispatchLoop, DurableTasks
from redis_queue.celery.dispatch.loop import new_name
from redis_queue.store.keys import Keys
from tests.support.celery.dispatch import running
from tests.support.wait import wait_until

LONG = 3600
HOST = socket.gethostname()

Make = Callable[[], DispatchLoop]


@pytest.fixture
def make(redis_url: str, client: redis.Redis) -> Iterator[Make]:
    """Makes dispatch loops of apps on the shared server; their connections are closed at the end."""
    with ExitStack() as stack:

        def make() -> DispatchLoop:
            app = Celery("tests", broker=redis_url.replace("unix", "redis+socket"), set_as_current=False)
            app.conf.update(redis_queue_url=redis_url)
            DurableTasks(app, leases=False)
            stack.callback(app.close)
            return DispatchLoop(app, kind="worker@")

        yield make


def of_dead_process() -> str:
    """Return the name of a dispatcher whose process has ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return f"worker@{HOST}:{process.pid}:0123abcd"


def of_earlier_container() -> str:
    """Return the name of a dispatcher with this process id in an earlier run of the container."""
    return f"worker@{HOST}:{os.getpid()}:0123abcd"


@pytest.mark.parametrize("leader", [of_dead_process, of_earlier_container])
def test_leader_whose_process_has_ended_is_replaced_at_once(
    leader: Callable[[], str], make: Make, client: redis.Redis
) -> None:
    key = Keys("redis_queue", "delay", "scheduled", 0).leader
    client.set(key, leader(), ex=LONG)
    loop = make()
    with running(loop):
        wait_until(lambda: loop.leads, description="the loop to lead")
        assert client.get(key) == loop.name.encode()
        # For the usual time, so that others can replace it.
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
def test_other_leaders_are_not_replaced(leader: Callable[[], str], make: Make, client: redis.Redis) -> None:
    key, name = Keys("redis_queue", "delay", "scheduled", 0).leader, leader()
    client.set(key, name, ex=LONG)
    loop = make()
    with running(loop):
        # It registers itself after it has read who leads.
        rows = key.replace(b"leader", b"dispatchers")
        wait_until(lambda: client.hexists(rows, loop.name), description="the loop to follow")
        assert not loop.leads
    assert client.get(key) == name.encode()


def test_two_dispatchers_do_not_replace_each_other_in_turn(make: Make, client: redis.Redis) -> None:
    """Containers may share a host name but not see each other's processes."""
    key = Keys("redis_queue", "delay", "scheduled", 0).leader
    loop = make()
    assert loop._leader.take().mine
    other = of_dead_process()
    client.set(key, other, ex=LONG)
    assert loop._leader.take().leader == other
    assert client.get(key) == other.encode()
