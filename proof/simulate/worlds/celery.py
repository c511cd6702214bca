"""Whole Celery workers with DurableTasks: solo pools, event loops, atomic fetch, leases and keepers, dispatchers."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final

import celery.app.base
import celery.bootsteps
import celery.worker.consumer.consumer
import kombu.asynchronous.hub
import kombu.asynchronous.timer
import kombu.common
import kombu.pools
import kombu.transport.redis
import kombu.transport.virtual.base
import redis.connection
from celery import Celery
from celery.worker import WorkController
from celery.worker import state as worker_state
from kombu.exceptions import OperationalError

from proof.simulate import keeper
from proof.simulate.patches import Ordered
from proof.simulate.scheduler import SIM, Process
from proof.simulate.server import MODEL, Server
from proof.simulate.world import World
from redis_queue.basics.waits import Background
from redis_queue.celery import worker
from redis_queue.celery.dispatch import loop
from redis_queue.celery.durable_tasks import DurableTasks
from redis_queue.celery.leases import poison
from redis_queue.errors import RedisQueueError
from redis_queue.store.keys import FlowKeys, Keys
from redis_queue.validation.history import Event, Violation

TASKS: Final = 8

keeper.install()
for module in (
    celery.app.base,
    celery.bootsteps,
    celery.worker.consumer.consumer,
    kombu.asynchronous.hub,
    kombu.transport.redis,
    kombu.transport.virtual.base,
    redis.connection,
):
    vars(module)["set"] = Ordered
# Timers of one time are ordered by their addresses.
_timers = itertools.count()
_scheduled = kombu.asynchronous.timer.scheduled
vars(kombu.asynchronous.timer)["scheduled"] = lambda eta, priority, entry: _scheduled(
    eta, (priority, next(_timers)), entry
)
# The name of a queue for replies has the address of an app in it.
vars(kombu.common)["id"] = lambda _app: 0


class CeleryWorld(World):
    """A sender and two workers."""

    lease = 12.0
    longest = 24.0
    #: Faults after which no task of a worker that lives runs twice.
    harmless: ClassVar[frozenset[str]] = frozenset({"kill", "cut", "silence", "skew"})
    _sent = False

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.twice: list[str] = []
        self._runs: dict[str, list[Process]] = {}
        worker_state.reset_state()
        kombu.pools.reset()
        SIM.keep_apart(
            (kombu.asynchronous.hub, "_current_loop", lambda: None),
            (loop, "_own", set),
            (worker, "_background", Background),
            (poison, "PROCESS", lambda: os.urandom(8).hex()),
            # Celery's sets themselves are bound as defaults of its functions.
            (worker_state.active_requests, "data", Ordered),
            (worker_state.reserved_requests, "data", Ordered),
            (worker_state.scheduled_requests, "data", Ordered),
        )

    @property
    def roles(self) -> dict[str, Callable[[], object]]:
        return {"sender": self.send, "worker-1": self.work, "worker-2": self.work}

    def app(self) -> Celery:
        assert SIM.current is not None
        # Each process has a name of its own for Redis, as kombu keeps the connections of one URL together.
        app = Celery("sim", broker=f"redis://redis{SIM.current.process.pid}/0", set_as_current=False)
        app.conf.update(
            redis_queue_task_lease=self.lease,
            redis_queue_monitor=False,
            worker_enable_remote_control=False,
            worker_prefetch_multiplier=4,
            broker_connection_retry_on_startup=True,
            **self.settings(),
        )
        self.register(app)
        DurableTasks(app)
        return app

    def settings(self) -> dict[str, Any]:
        return {}

    def register(self, app: Celery) -> None:
        def run(label: str) -> None:
            self.execute(label)

        app.task(run, name="run", ignore_result=True, shared=False)

    def call(self, app: Celery, label: str, delay: float) -> str:
        """Send the task of *label*; return what becomes of it."""
        app.tasks["run"].apply_async((label,), countdown=delay or None, retry=False)
        return label

    def send(self) -> None:
        """Send tasks, each once, with and without a delay."""
        app = self.app()
        begun = {event.id for event in self.events}
        for number in range(TASKS):
            label = f"t{number}"
            if label in begun:
                continue
            delay = SIM.rng.choice((0, 0, SIM.rng.uniform(0, 10)))
            due = self.now_ms() + round(delay * 1000) if delay else 0
            self.note(Event("put", "invoke", label, due=due))
            try:
                found = self.call(app, label, delay)
                self.note(Event("put", "ok", found, due=due if found == label else 0))
            except (RedisQueueError, OperationalError):
                pass
            time.sleep(SIM.rng.uniform(0, 2 * self.horizon / TASKS))
        self._sent = True

    def execute(self, label: str) -> None:
        """Run a task: it takes a moment, or longer than a lease."""
        assert SIM.current is not None
        self.note(Event("claim", "ok", label, at=self.now_ms()))
        for other in self._runs.get(label, ()):
            # After the end of a run as well: its settlement is sent until it is confirmed.
            if other.alive and self.faults <= self.harmless:
                self.twice.append(label)
        self._runs.setdefault(label, []).append(SIM.current.process)
        time.sleep(SIM.rng.choice((0.001, 0.01, 1, SIM.rng.uniform(0, self.longest))))
        self.note(Event("execute", "ok", label), Event("ack", "ok", label))

    def work(self) -> None:
        app = self.app()
        app.set_current()
        WorkController(
            app=app,
            hostname=f"{SIM.current.process.machine.name}",  # type: ignore[union-attr]
            pool="solo",
            concurrency=1,
            without_gossip=True,
            without_mingle=True,
            without_heartbeat=True,
        ).start()

    def wrong(self) -> Iterator[Violation]:
        """Yield tasks that ran again although the worker that had them lived."""
        yield from (Violation("ran twice", label, self.events) for label in self.twice)

    def stored(self) -> Iterator[bytes]:
        yield from MODEL.call(b"LRANGE", b"celery", b"0", b"-1")  # type: ignore[misc]
        yield from MODEL.call(b"HVALS", b"unacked")  # type: ignore[misc]
        yield from MODEL.call(b"ZRANGE", FlowKeys("redis_queue").oldest, b"0", b"-1")  # type: ignore[misc]
        yield from MODEL.call(b"HVALS", Keys("redis_queue", "delay", "scheduled", 0).records)  # type: ignore[misc]

    def is_done(self) -> bool:
        return self._sent and not any(True for _ in self.stored())
