"""Base class of the task queues in a run: send immediate and delayed tasks, execute them, record the runs."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import redis

from chaos.workload import PRODUCER, Post, Progress, Step, Workload
from redis_queue.validation.history import Event, History

MAX_DELAY: Final = 2.0
PAUSE: Final = 0.004
"""Seconds between two sent tasks: workers keep up, so that tasks wait because of kills and not because of a backlog."""

TIMEOUT: Final = 5
"""Seconds after which the work of a dead worker is redelivered, if that is configurable."""

Execute = Callable[[str], None]


class Peer(Workload):
    """A task queue on Redis; producers live, workers die between any two commands."""

    name: str
    crew: Sequence[str] = (PRODUCER, "worker", "worker", "worker")
    lease = float(TIMEOUT)
    calm = 60.0

    def __init__(self, url: str) -> None:
        self.url = url
        self.progress = Progress()

    def send(self, label: str, delay: float) -> None:
        """Send a task, due in *delay* seconds."""
        raise NotImplementedError

    def serve(self, execute: Execute) -> None:
        """Run a worker that calls *execute* with the label of each task, until the process ends."""
        raise NotImplementedError

    def others(self) -> dict[str, Callable[[], None]]:
        """Return the other required processes, by role."""
        return {}

    def begin(self, role: str, post: Post) -> Step:
        """Return the step of a process of *role*."""
        history = History(post.history)
        if role == PRODUCER:
            return self._produce(history, post)
        if role != "worker":
            return _once(self.others()[role])
        dice = post.arm()

        def execute(label: str) -> None:
            history.write(Event("claim", "ok", label, at=round(time.time() * 1000)), Event("execute", "ok", label))
            dice.throw()
            history.write(Event("ack", "invoke", label))

        return _once(lambda: self.serve(execute))

    def is_done(self, histories: Sequence[Path]) -> bool:
        """Return whether all sent tasks were executed completely."""
        return self.progress.is_done(histories)

    def left(self) -> Iterator[str]:
        """Yield the tasks that were not executed but still occur in Redis."""
        client: Any = redis.Redis.from_url(self.url)
        everything = b"\n".join([repr(list(_contents(client))).encode(), *client.scan_iter()])
        client.close()
        yield from (label for label in self.progress.open if label.encode() in everything)

    def _produce(self, history: History, post: Post) -> Step:
        dice, labels = random.Random(post.seed), iter(post.labels)

        def step() -> bool:
            number = next(labels, None)
            if number is None:
                return False
            for label, delay in ((f"w{number:06}", 0.0), (f"d{number:06}", dice.uniform(0.1, MAX_DELAY))):
                due = round((time.time() + delay) * 1000)
                history.write(Event("put", "invoke", label, due=due))
                self.send(label, delay)
                history.write(Event("put", "ok", label, due=due))
                time.sleep(PAUSE)
            return True

        return step


def _once(work: Callable[[], None]) -> Step:
    def step() -> bool:
        work()
        raise RuntimeError("it ended by itself")

    return step


def _contents(client: Any) -> Iterator[Any]:
    readers = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"list": lambda key: client.lrange(key, 0, -1),
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1),
        b"stream": client.xrange,
    }
    for key in client.scan_iter():
        yield readers[client.type(key)](key)
