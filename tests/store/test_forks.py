"""A forked child releases nothing of its parent and does not wait for the parent's threads."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import redis

from redis_queue import RedisQueue
from tests.support.paths import ROOT

BEGIN = """
import os, signal, sys
from redis_queue import Lock, RedisQueue
from redis_queue.store import ids

signal.alarm(20)
queue = RedisQueue("orders", sys.argv[1])

def fork(work):
    child = os.fork()
    if not child:
        signal.alarm(10)
        work()
        os._exit(0)
    return os.waitpid(child, 0)[1]

def leave():
    raise SystemExit(7)

def leaving(manager):
    '''Fork inside a with block; the child leaves the block.'''
    held = pid = None
    try:
        with manager as held:
            pid = os.fork()
            if not pid:
                signal.alarm(10)
                leave()
            yield held, os.waitpid(pid, 0)[1]
    except SystemExit:
        os._exit(7)
"""


def run(redis_url: str, code: str) -> str:
    """Run *code*, which forks, in a separate process; return its output."""
    command = [sys.executable, "-W", "ignore", "-c", BEGIN + textwrap.dedent(code), redis_url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.fixture
def queue(client: redis.Redis) -> RedisQueue:
    return RedisQueue("orders", client)


def test_a_child_can_make_ids_when_the_parent_held_the_lock(redis_url: str, queue: RedisQueue) -> None:
    code = """
        with ids._clock._lock:
            status = fork(lambda: queue.put("from the child"))
        print(status)
    """
    assert run(redis_url, code) == "0"
    assert queue.stats().ready == 1


def test_a_child_that_leaves_a_lease_settles_nothing(redis_url: str, queue: RedisQueue) -> None:
    queue.put(1)
    code = """
        for message, status in leaving(queue.lease()):
            print(os.waitstatus_to_exitcode(status), queue.still_mine(message), queue.stats().redelivered)
    """
    assert run(redis_url, code) == "7 True 0"
    assert queue.stats().acked == 1


def test_a_child_that_leaves_a_loop_settles_nothing(redis_url: str, queue: RedisQueue) -> None:
    queue.put(1)
    code = """
        try:
            for message in queue.consume(timeout=0.01):
                pid = os.fork()
                if not pid:
                    signal.alarm(10)
                    leave()
                status = os.waitpid(pid, 0)[1]
                print(os.waitstatus_to_exitcode(status), queue.still_mine(message), queue.stats().redelivered)
        except SystemExit:
            os._exit(7)
    """
    assert run(redis_url, code) == "7 True 0"
    assert queue.stats().acked == 1


def test_a_child_that_leaves_a_lock_does_not_release_it(redis_url: str) -> None:
    code = """
        lock = Lock("stock", sys.argv[1])
        for held, status in leaving(lock.hold()):
            held.check()
            print(os.waitstatus_to_exitcode(status), lock.acquire())
    """
    assert run(redis_url, code) == "7 None"


def test_a_child_can_open_the_store_when_a_thread_of_the_parent_was_opening_it(redis_url: str) -> None:
    code = """
        import contextlib, socket, threading
        from celery import Celery
        from redis_queue import StoreUnavailableError
        from redis_queue.celery import DurableTasks

        def first_look(owner):
            with contextlib.suppress(StoreUnavailableError):
                owner.queue

        for parts in ({"leases": False}, {"delays": False}):
            listener = socket.create_server(("127.0.0.1", 0))
            app = Celery(broker=f"redis://127.0.0.1:{listener.getsockname()[1]}", set_as_current=False)
            app.conf.broker_transport_options = {"socket_timeout": 0.5}
            owner = DurableTasks(app, **parts)
            thread = threading.Thread(target=first_look, args=[owner], daemon=True)
            thread.start()
            silent, _ = listener.accept()
            silent.recv(1)
            print(fork(lambda: first_look(owner)))
    """
    assert run(redis_url, code) == "0\n0"
