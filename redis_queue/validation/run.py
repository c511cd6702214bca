"""Drives a validation: puts, kills, puts back, waits for the end, compares, cleans up."""

from __future__ import annotations

import contextlib
import itertools
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from redis_queue.errors import ConfigurationError, InvalidValueError
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.chunks import CHUNK, check_limit
from redis_queue.store.connection import Client, connect
from redis_queue.store.scripts import Scripts
from redis_queue.validation.report import Report, tally
from redis_queue.validation.worker import Order

KILL_EVERY: Final = 0.25
QUIET_SECONDS: Final = 30.0
"""A run in which nothing was acked for so long has stopped making progress."""

Progress = Callable[[int], None]
"""Is told how many messages are done."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to validate; raises InvalidValueError for what makes no sense."""

    url: str
    messages: int = 20_000
    lose_every: int = 2
    batch: int = 10
    consumers: int = 2
    kill: bool = False
    visibility_timeout: float = 1.0
    prefix: str = field(default_factory=lambda: f"redis_queue_validate_{random.randrange(16**8):08x}")

    def __post_init__(self) -> None:
        check_limit(self.messages, 10_000_000, name="messages")
        check_limit(self.batch, CHUNK, name="batch")
        check_limit(self.consumers, 64, name="consumers")
        if self.lose_every:
            check_limit(self.lose_every, self.messages, name="lose_every")


def validate(plan: Plan, progress: Progress = lambda _: None) -> Report:
    """Run *plan* and return what was found; everything that it wrote is deleted, also when interrupted.

    Raises ConfigurationError if any key begins with the plan's prefix, and what :func:`redis_queue.connect` raises.
    """
    client = connect(plan.url)
    queue = RedisQueue(
        "validate", client, prefix=plan.prefix, visibility_timeout=plan.visibility_timeout, max_deliveries=0
    )
    if key := next(_keys(client, plan.prefix), None):
        raise ConfigurationError(f"prefix {plan.prefix!r} is in use (key {key!r}): give one that is not")
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="redis-queue-validate-") as folder:
            run = _Run(plan, queue, Path(folder))
            put_seconds, work_seconds = run.put(), run.work(progress)
            found = tally(plan.messages, run.logs)
            left = queue.stats()
            return Report(
                **asdict(found),
                messages=plan.messages,
                kills=run.kills,
                put_back=left.redelivered,
                left_over=left.ready + left.delayed + left.in_flight + left.dead + left.quarantined,
                put_per_s=round(plan.messages / put_seconds, 1),
                handled_per_s=round(found.handled / work_seconds, 1),
                seconds=round(time.monotonic() - started, 2),
            )
    finally:
        _clean(client, queue, plan.prefix)


class _Run:
    def __init__(self, plan: Plan, queue: RedisQueue, folder: Path) -> None:
        self.kills = 0
        self.logs: list[Path] = []
        self._plan = plan
        self._queue = queue
        self._folder = folder
        self._names = itertools.count()

    def put(self) -> float:
        """Put all numbers; return the seconds it took."""
        started = time.monotonic()
        self._queue.put_many(range(self._plan.messages))
        return max(time.monotonic() - started, 1e-6)

    def work(self, progress: Progress) -> float:
        """Let consumers work until the queue is empty; return the seconds it took."""
        started = time.monotonic()
        with contextlib.ExitStack() as stack:
            consumers: list[subprocess.Popen[str]] = []
            stack.callback(_end, consumers)
            for _ in range(self._plan.consumers):
                consumers.append(self._start())
            self._watch(consumers, progress)
        return max(time.monotonic() - started, 1e-6)

    def _watch(self, consumers: list[subprocess.Popen[str]], progress: Progress) -> None:
        done, moved_at, done_at_kill = 0, time.monotonic(), 0
        while True:
            self._queue.put_back()
            stats = self._queue.stats()
            if stats.acked > done:
                done, moved_at = stats.acked, time.monotonic()
                progress(done)
            if not stats.ready + stats.delayed + stats.in_flight or time.monotonic() - moved_at > QUIET_SECONDS:
                return
            time.sleep(KILL_EVERY)
            # Only after some progress: on a slow machine consumers would else be killed before they have started.
            if self._plan.kill and stats.ready and done > done_at_kill:
                self._kill(random.choice(consumers))
                self.kills, done_at_kill = self.kills + 1, done
            for index, consumer in enumerate(consumers):
                if consumer.poll() is not None:
                    consumers[index] = self._start()

    def _start(self) -> subprocess.Popen[str]:
        path = self._folder / f"consumer-{next(self._names)}.log"
        path.touch()
        self.logs.append(path)
        plan = self._plan
        order = Order(
            plan.url, plan.prefix, self._queue.name, plan.visibility_timeout, plan.lose_every, plan.batch, str(path)
        )
        command = [sys.executable, "-m", "redis_queue.validation"]
        consumer = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)  # noqa: S603 - our own module
        assert consumer.stdin is not None  # noqa: S101 - for the type checker
        consumer.stdin.write(order.dumps() + "\n")
        consumer.stdin.close()
        return consumer

    @staticmethod
    def _kill(consumer: subprocess.Popen[str]) -> None:
        consumer.kill()
        consumer.wait()


def _end(consumers: list[subprocess.Popen[str]]) -> None:
    for consumer in consumers:
        consumer.kill()
        consumer.wait()


def _keys(client: Client, prefix: str) -> Iterator[str]:
    if not prefix or not set(prefix) <= _PLAIN:
        raise InvalidValueError(f"prefix={prefix!r}: give letters, digits, '_', '-' or '.'")
    for pattern in (f"{{{prefix}:*", f"{prefix}:*"):
        for key in client.scan_iter(match=pattern, count=1000):
            yield key.decode(errors="replace") if isinstance(key, bytes) else key


_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")


def _clean(client: Client, queue: RedisQueue, prefix: str) -> None:
    queue.destroy()
    scripts = Scripts(client)
    for key in list(_keys(client, prefix)):
        scripts.command("UNLINK", key)
