"""Roles: what each kind of process does, and writes down, until it is killed or told to stop."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis_queue.chaos.history import Event, History
from redis_queue.chaos.killing import arm
from redis_queue.connection import Client, connect
from redis_queue.delay import DelayQueue
from redis_queue.model import Entry, Message
from redis_queue.queue import RedisQueue
from redis_queue.settings import Settings

LEASE = 0.2
"""Seconds of a lease: short, so that what a dead process held comes back soon."""

MOST_DELAY = 0.3
CANCELLED = 0.1
"""Share of the delayed entries that are cancelled, some before and some after they are due."""

SLOW = 0.02
"""Share of the messages that take longer than their lease."""

PREFIX = "chaos"


@dataclass(frozen=True, slots=True)
class Post:
    """Where a process works: its Redis, its history, its dice, and how many of a producer's messages are sent."""

    url: str
    history: Path
    seed: int
    chance: float
    labels: range

    def client(self) -> Client:
        """Return a client that kills its process."""
        client = connect(self.url, check=False)
        arm(client, self.seed, self.chance)
        return client


def queues(client: Client) -> tuple[RedisQueue, DelayQueue]:
    """Return the two queues of a run."""
    settings = Settings(prefix=PREFIX, visibility_timeout=LEASE, max_deliveries=0)
    return RedisQueue("work", client, settings=settings), DelayQueue("later", client, settings=settings)


def now_ms(client: Client) -> int:
    """Return the time of the server."""
    seconds, microseconds = client.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def produce(post: Post) -> Iterator[None]:
    """Put each label into the queue, and its twin into the delay queue; cancel some of the twins."""
    client, history, dice = post.client(), History(post.history), random.Random(post.seed)
    queue, delayed = queues(client)
    for number in post.labels:
        label, twin = f"w{number}", f"d{number}"
        history.write(Event("put", "invoke", label))
        queue.put(label)
        history.write(Event("put", "ok", label))
        delay = dice.choice((0, dice.uniform(0, MOST_DELAY)))
        due = now_ms(client) + int(delay * 1000)
        history.write(Event("put", "invoke", twin, due=due))
        delayed.push(twin, delay=delay, id=twin)
        history.write(Event("put", "ok", twin, due=due))
        if dice.random() < CANCELLED:
            time.sleep(dice.uniform(0, MOST_DELAY / 5))
            history.write(Event("cancel", "invoke", twin))
            history.write(Event("cancel", "ok" if delayed.cancel(twin) else "refused", twin))
        yield


def consume(post: Post) -> Iterator[None]:
    """Take from the queue, execute, settle; now and then hold a message for longer than its lease."""
    client, history, dice = post.client(), History(post.history), random.Random(post.seed)
    queue, _ = queues(client)
    while True:
        for message in queue.get_many(dice.randint(1, 5), block=True, timeout=0.1):
            _execute(history, message, queue.ack, slow=dice.random() < SLOW)
        yield


def dispatch(post: Post) -> Iterator[None]:
    """Take what is due, execute, settle."""
    client, history, dice = post.client(), History(post.history), random.Random(post.seed)
    _, delayed = queues(client)
    while True:
        for entry in delayed.claim(dice.randint(1, 5)):
            _execute(history, entry, delayed.ack, slow=dice.random() < SLOW)
        yield


def sweep(post: Post) -> Iterator[None]:
    """Put back what expired leases hold."""
    queue, delayed = queues(post.client())
    while True:
        queue.put_back()
        delayed.put_back()
        yield


ROLES: dict[str, Callable[[Post], Iterator[None]]] = {
    "producer": produce,
    "consumer": consume,
    "dispatcher": dispatch,
    "sweeper": sweep,
}


def _execute(history: History, held: Message | Entry, ack: Callable[[Any], bool], *, slow: bool) -> None:
    label = str(held.body if isinstance(held, Message) else held.payload)
    lease = held.lease
    if lease is None:
        raise RuntimeError(f"{label} was claimed without a lease")
    claim, ends = int(lease.token.partition("-")[0]), round(lease.expires_at.timestamp() * 1000)
    at = ends - round(LEASE * 1000)
    history.write(Event("claim", "ok", label, claim, held.deliveries, at))
    history.write(Event("execute", "ok", label, claim))
    if slow:
        time.sleep(2 * LEASE)
    history.write(Event("ack", "invoke", label, claim))
    history.write(Event("ack", "ok" if ack(held) else "refused", label, claim))
