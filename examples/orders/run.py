"""A run: feed the orders, kill and restart processes half way, and wait until all work is done."""

from __future__ import annotations

import itertools
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import redis

from examples.orders import keyspace, server
from examples.orders.children import Child, Children
from examples.orders.consumer import lines_queue
from examples.orders.errors import FailedError
from examples.orders.feed import Feed, read
from examples.orders.ledger import Ledger
from examples.orders.result import Result
from examples.orders.screen import Screen
from examples.orders.signals import Signals
from redis_queue import DelayQueue
from redis_queue.basics.logs import hide_secrets
from redis_queue.celery import CelerySettings
from tasks.orders import executed

GIVE_UP_AFTER = 80.0
"""Seconds after which unfinished work counts as lost.

A warm shutdown of Celery takes half a minute at times: a process of its prefork pool waits 30 s for the pool to read an
answer that it has read (billiard, ``_ensure_messages_consumed``).
"""

PATIENCE = 6.0
READY = " ready."


@dataclass(frozen=True, slots=True)
class Plan:
    """The number of orders, their delays divided by *speed*, and the Redis: one of its own if *url* is empty.

    All keys begin with *prefix*.
    """

    url: str
    orders: int
    speed: float
    prefix: str = field(default_factory=lambda: f"redis_queue_demo_{random.randrange(16**8):08x}")


def run(plan: Plan, children: Children, signals: Signals, screen: Screen) -> Result:
    """Run *plan* and return its result. Its keys are deleted and its processes ended, however it ends.

    Raises UnusableError, FailedError and StoppedError, and errors of redis and redis_queue if Redis goes away.
    """
    keyspace.check_prefix(plan.prefix)
    with nullcontext(plan.url) if plan.url else server.own_server() as url, server.connect_to(url) as client:
        keyspace.check_unused(client, plan.prefix)
        screen.say(f"{server.describe(client)} at {hide_secrets(url)}, keys under {plan.prefix}")
        with (
            _deleted_keys(plan, client, children) if plan.url else nullcontext(),
            _Run(plan, url, client, children=children, signals=signals, screen=screen) as demo,
        ):
            return demo.play()


@contextmanager
def _deleted_keys(plan: Plan, client: redis.Redis, children: Children) -> Iterator[None]:
    children.watch_keys(plan.url, plan.prefix)
    try:
        yield
    finally:
        try:
            keyspace.delete(client, plan.prefix)
        except redis.RedisError as error:
            raise FailedError(f"the keys under {plan.prefix} could not be deleted: {error}") from error


class _Run:
    """The worker and the consumers of a run, and its events."""

    def __init__(
        self, plan: Plan, url: str, client: redis.Redis, *, children: Children, signals: Signals, screen: Screen
    ) -> None:
        self._started = time.monotonic()
        self._children = children
        self._signals = signals
        self._screen = screen
        # The user's own CELERY_* variables could select another broker.
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("CELERY")} | {
            "REDIS_URL": url,
            "REDIS_QUEUE_PREFIX": plan.prefix,
            "CELERY_KEY_PREFIX": keyspace.celery(plan.prefix),
            # A killed worker leaves its temporary files behind.
            "TMPDIR": str(children.folder),
        }
        self._client = client
        self._prefix = plan.prefix
        self._lines = lines_queue(client, plan.prefix)
        self._delays = DelayQueue(CelerySettings().delay_queue, client, prefix=plan.prefix)
        self._tasks_done = Ledger(client, executed(plan.prefix))
        self._lines_done = Ledger(client, keyspace.executed_lines(plan.prefix))
        self._orders = read()[: plan.orders]
        self._totals = (len(self._orders), 2 * len(self._orders), sum(len(order.lines) for order in self._orders))
        self._feed = Feed(self._orders, self._delays, self._lines, self._tasks_done, self._lines_done, speed=plan.speed)
        self._feeding = False
        self._workers, self._consumers = itertools.count(1), itertools.count(1)
        self._working: list[Child] = []
        self._killed = self._restarted = "nothing, the time was up before"

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._working:
            self._children.expect_end(child)
            child.kill()

    def play(self) -> Result:
        """Run the events until the end or the time limit; return the result."""
        for _ in self._story():
            if time.monotonic() - self._started > GIVE_UP_AFTER:
                self._screen.say("giving up: the time is up")
                break
            self._children.check()
            if self._feeding:
                self._feed.step()
            self._look()
            self._signals.pause()
        came_back = self._lines.stats().redelivered
        self._screen.say("stopping the worker and the consumers")
        self._children.finish(self._working, PATIENCE)
        self._look()
        return Result(
            self._tasks_done,
            self._lines_done,
            f"{self._killed}; {came_back} lines came back when their leases ended",
            self._restarted,
            time.monotonic() - self._started,
        )

    def _story(self) -> Iterator[None]:
        """Run the events; each yield waits for a moment."""
        self._screen.say("starting a Celery worker with beat, and two consumers")
        worker = self._start_worker()
        victim = self._start_consumer()
        self._start_consumer()
        yield from _until(lambda: READY in worker.output)
        self._screen.say(f"feeding {len(self._orders)} orders")
        self._feeding = True
        yield from _until(lambda: self._feed.share >= 0.5)
        yield from self._kill(victim)
        yield from self._restart(worker)
        yield from _until(lambda: self._feed.share >= 1)
        self._screen.say("all is fed, waiting for what is due later")
        yield from _until(self._all_done)

    def _kill(self, consumer: Child) -> Iterator[None]:
        # With very few orders all may be done before one is seen in flight.
        while not (held := self._holds(consumer)) and self._lines_done.executed < self._totals[-1]:
            consumer.thaw()
            yield
        self._children.expect_end(consumer)
        consumer.kill()
        self._killed = f"{consumer.name} by SIGKILL, in the middle of {' and '.join(held) or 'nothing'}"
        self._screen.say(f"killed {self._killed}")
        self._working.remove(consumer)
        self._start_consumer()

    def _holds(self, consumer: Child) -> list[str]:
        """Freeze *consumer* and return the lines that it is handling."""
        consumer.freeze()
        # Its type differs between versions of redis-py.
        held: Any = self._client.smembers(keyspace.in_hand(self._prefix, consumer.name))
        return sorted(line.decode() for line in held)

    def _restart(self, worker: Child) -> Iterator[None]:
        self._screen.say(f"restarting {worker.name}: SIGTERM, then a new one")
        stopped = time.monotonic()
        self._children.expect_end(worker)
        worker.terminate()
        yield from _until(lambda: not worker.running)
        self._working.remove(worker)
        new = self._start_worker()
        yield from _until(lambda: READY in new.output)
        self._restarted = f"{worker.name} by SIGTERM; none was ready for {time.monotonic() - stopped:.1f} s"
        self._screen.say(f"{new.name} is ready")

    def _start_worker(self) -> Child:
        schedule = self._children.folder / "beat-schedule"
        options = ["--beat", f"--schedule={schedule}", "--concurrency=2", "--loglevel=INFO", "--without-mingle"]
        return self._start(f"worker {next(self._workers)}", ["-m", "celery", "-A", "tasks", "worker", *options])

    def _start_consumer(self) -> Child:
        name = f"consumer {next(self._consumers)}"
        return self._start(name, ["-m", "examples.orders.consumer", name])

    def _start(self, name: str, arguments: list[str]) -> Child:
        child = self._children.start(name, [sys.executable, *arguments], self._env)
        self._working.append(child)
        return child

    def _look(self) -> None:
        self._tasks_done.update()
        self._lines_done.update()
        done = (self._feed.fed, self._tasks_done.executed, self._lines_done.executed)
        self._screen.show(dict(zip(BARS, zip(done, self._totals, strict=True), strict=True)))

    def _all_done(self) -> bool:
        if self._tasks_done.lost or self._lines_done.lost:
            return False
        lines, delays = self._lines.stats(), self._delays.stats()
        # A finished line of the killed consumer may still be redelivered and run again.
        return not (lines.ready or lines.delayed or lines.in_flight or delays.waiting or delays.in_flight)


BARS = ("orders fed", "delayed tasks", "order lines")


def _until(reached: Callable[[], bool]) -> Iterator[None]:
    while not reached():
        yield
