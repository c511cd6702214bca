"""Lost and duplicate messages when consumers are killed during their work."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import redis
from kombu.connection import Connection

from benchmarks.children import child
from benchmarks.leases.taking import DONE
from benchmarks.modes import QUEUE

WITHIN = 60.0
BEFORE = 20
"""Messages that a consumer settles before it may be killed."""


def lost_and_doubled(url: str, mode: str, kills: int) -> tuple[int, int]:
    """Kill consumers at random; return how many messages were never delivered, and how many more than once."""
    client = redis.Redis.from_url(url)
    client.flushall()
    dice = random.Random(kills)
    sent = 0
    with tempfile.TemporaryDirectory() as folder, Connection(url.replace("unix://", "redis+socket://")) as connection:
        producer = connection.Producer()
        for number in range(kills + 1):
            last = number == kills
            for _ in range(0 if last else 400):
                producer.publish(sent, routing_key=QUEUE, serializer="json")
                sent += 1
            before = client.llen(DONE)
            with child(
                [sys.executable, "-m", "benchmarks.leases.taking", url, mode], Path(folder) / "log", {}
            ) as process:
                if last:
                    _wait(lambda: not client.llen(QUEUE) and not client.zcard("unacked_index"))
                else:
                    _wait(lambda: client.llen(DONE) >= before + BEFORE)  # noqa: B023
                    time.sleep(dice.uniform(0, 0.02))
                process.kill()
    done = client.lrange(DONE, 0, -1)
    return sent - len(set(done)), len(done) - len(set(done))


def _wait(fact: Callable[[], object]) -> None:
    deadline = time.monotonic() + WITHIN
    while not fact():
        if time.monotonic() > deadline:
            raise RuntimeError("a consumer does not get on")
        time.sleep(0.001)
