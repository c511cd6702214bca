"""A consumer in a separate process: SIGTERM finishes or releases messages, SIGKILL loses nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis

from redis_queue import RedisQueue
from tests.support.wait import wait_until

ON_LOOP = """
import asyncio, sys
from redis_queue import aio

async def main():
    queue = aio.RedisQueue("work", sys.argv[1], lease=1.5, poll_interval=0.1)
    client = queue.sync.client

    async def handle(message):
        client.rpush("begun", message.body)
        if message.body == "slow":
            await asyncio.to_thread(client.blpop, "go on", 30)
        client.rpush("done", message.body)

    consumer = aio.Consumer(queue, handle, batch=10)
    stop = consumer.stop
    consumer.stop = lambda: (stop(), client.set("stopping", 1))
    await consumer.run()

asyncio.run(main())
print("ended", flush=True)
"""

PROGRAM = """
import sys, threading
from redis_queue import Consumer, RedisQueue, connect

queue = RedisQueue("work", connect(sys.argv[1]), lease=1.5, poll_interval=0.1)

def handle(message):
    queue.client.rpush("begun", message.body)
    if message.body == "slow":
        queue.client.blpop("go on", 30)
    queue.client.rpush("done", message.body)

consumer = Consumer(queue, handle, batch=10)
stop = consumer.stop
consumer.stop = lambda: (stop(), queue.client.set("stopping", 1))
consumer.run()
print("ended", flush=True)
"""


@pytest.fixture(params=[PROGRAM, ON_LOOP], ids=["threads", "asyncio"])
def program(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def queue(client: redis.Redis) -> RedisQueue:
    return RedisQueue("work", client, lease=1.5)


@contextmanager
def consumer(url: str, program: str) -> Iterator[subprocess.Popen[str]]:
    """Start the program and kill it afterwards."""
    process = subprocess.Popen([sys.executable, "-c", program, url], stdout=subprocess.PIPE, text=True)
    try:
        with process:
            yield process
            process.kill()
    finally:
        process.kill()


def started(queue: RedisQueue) -> list[bytes]:
    return list(queue.client.lrange("begun", 0, -1))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_finishes_the_running_handler_and_releases_the_rest(
    queue: RedisQueue, redis_url: str, program: str, number: signal.Signals
) -> None:
    queue.put_many(["quick", "slow", "never begun"])
    with consumer(redis_url, program) as process:
        wait_until(lambda: started(queue) == [b"quick", b"slow"], description="the slow handler to begin")
        process.send_signal(number)
        wait_until(lambda: queue.client.exists("stopping"), description="the signal to be handled")
        queue.client.rpush("go on", "1")
        assert process.wait(20) == 0
        assert process.stdout is not None
        assert process.stdout.read() == "ended\n"

    assert queue.client.lrange("done", 0, -1) == [b"quick", b"slow"]
    (left,) = queue.peek(10)
    assert (left.body, left.deliveries) == ("never begun", 0)
    assert queue.stats().acked == 2


def test_messages_of_a_killed_consumer_are_redelivered_after_their_lease(
    queue: RedisQueue, redis_url: str, program: str
) -> None:
    queue.put_many(["slow", "second"])
    with consumer(redis_url, program) as process:
        wait_until(lambda: started(queue) == [b"slow"], description="the handler to begin")
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        assert queue.stats().in_flight == 2
        queue.client.rpush("go on", "1")
        with consumer(redis_url, program):
            wait_until(lambda: queue.stats().acked == 2, description="both to be acked by the second consumer")

    assert started(queue) == [b"slow", b"slow", b"second"]
