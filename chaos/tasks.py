"""The workload of a Celery app with DurableTasks: producers, and workers of the solo pool."""

from __future__ import annotations

import os
import random
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from chaos.kill_points import Dice
from chaos.workload import PRODUCER, Post, Progress, Step, Workload, note_cancel
from redis_queue.celery import DurableTasks
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.errors import StoreError
from redis_queue.validation.history import Event, History

WORKER: Final = "worker"
STOCK: Final = "stock worker"
"""Role of a Celery worker without redis_queue. It is never killed: a killed one loses messages by itself."""

POPPING: Final = "popping worker"
"""Role of a worker with leases but without atomic fetch. It is never killed, for the same reason."""

TASK: Final = "chaos"
PREFIX: Final = "chaos"
NO_OPTIONS: Final[Mapping[str, Any]] = {}

LEASE: Final = 2.0
"""Seconds of the lease of a message."""

OUTDATED: Final = "'NoneType' object has no attribute 'client'"
"""Text of kombu's error (not an OperationalError) if the connection of a channel breaks during a publish."""

MAX_DELAY: Final = 1.0
CANCELLED: Final = 0.1


class CeleryWorkload(Workload):
    """A Celery app with DurableTasks on *broker* and *store*, whose tasks are sent to *queue*."""

    lease = LEASE
    calm = 60.0

    def __init__(self, broker: str, store: str, queue: str) -> None:
        self._broker = broker
        self._store = store
        self._queue = queue
        self._progress = Progress()

    def begin(self, role: str, post: Post) -> Step:
        """Return the step that a process of *role* repeats: send tasks, or work until the end."""
        history = History(post.history)
        return self._produce(history, post) if role == PRODUCER else self._work(role, history, post)

    def is_done(self, histories: Sequence[Path]) -> bool:
        """Return whether all sent tasks were executed or cancelled."""
        return self._progress.is_done(histories)

    def left(self) -> Iterator[str]:
        """Yield the ids of delayed and dead tasks."""
        yield from (entry.id for entry in self._delayed.scan())
        yield from (letter.id for letter in self._delayed.queue.dead_letters(limit=500))

    def wrong(self) -> Iterator[str]:
        """Yield all dead letters: every task is executable."""
        for letter in self._delayed.queue.dead_letters(limit=500):
            yield f"{letter.id} is dead: {letter.reason}"

    @cached_property
    def _delayed(self) -> StoredTasks:
        return StoredTasks.of(self._app())

    def _app(self, **settings: Any) -> Celery:
        app = Celery("chaos", broker=self._broker, set_as_current=False)
        app.conf.update(
            task_default_queue=self._queue,
            task_ignore_result=True,
            worker_send_task_events=False,
            broker_connection_retry_on_startup=True,
            redis_queue_url=self._store,
            redis_queue_prefix=PREFIX,
            redis_queue_max_deliveries=1000,
            redis_queue_dispatch_lease=2 * LEASE,
            redis_queue_task_lease=LEASE,
            **settings,
        )
        return app

    @abstractmethod
    def _produce(self, history: History, post: Post) -> Step:
        """Return the step of a producer."""

    @abstractmethod
    def _work(self, role: str, history: History, post: Post) -> Step:
        """Return the step of a worker."""


def run_worker(app: Celery, *, pool: str, loglevel: str) -> Step:
    """Return the step of a worker of *app*, which never ends."""

    def step() -> bool:
        hostname = f"{os.getpid()}@chaos"
        without = dict.fromkeys(("without_gossip", "without_mingle", "without_heartbeat"), True)
        app.Worker(pool=pool, hostname=hostname, loglevel=loglevel, **without).start()
        raise RuntimeError("a worker stopped by itself")

    return step


class Tasks(CeleryWorkload):
    """Immediate and delayed tasks, some cancelled; workers execute them and ack late.

    Besides the two workers that may be killed there is one of each role in *others*.
    """

    def __init__(
        self,
        broker: str,
        store: str,
        queue: str = "chaos",
        *,
        others: Sequence[str] = (),
        options: Mapping[str, Any] = NO_OPTIONS,
    ) -> None:
        super().__init__(broker, store, queue)
        self.crew = (PRODUCER, PRODUCER, WORKER, WORKER, *others)
        self._options = {"confirm_publish": True} if broker.startswith("amqp") else dict(options)

    def _app(self, **settings: Any) -> Celery:
        return super()._app(
            task_acks_late=True, worker_prefetch_multiplier=4, broker_transport_options=self._options, **settings
        )

    def _produce(self, history: History, post: Post) -> Step:
        app, dice, labels = self._app(), random.Random(post.seed), iter(post.labels)
        delayed = DurableTasks(app)
        post.arm()

        def send(label: str, **options: Any) -> None:
            due = round(time.time() * 1000 + options.get("countdown", 0) * 1000)
            history.write(Event("put", "invoke", label, due=due))
            app.send_task(TASK, (label,), task_id=label, **options)
            history.write(Event("put", "ok", label, due=due))

        def step() -> bool:
            number = next(labels, None)
            if number is None:
                return False
            twin = f"d{number}"
            try:
                send(f"w{number}")
                send(twin, countdown=dice.uniform(0, MAX_DELAY))
                if dice.random() < CANCELLED:
                    history.write(Event("cancel", "invoke", twin))
                    note_cancel(history, twin, delayed.cancel(twin))
            except (OperationalError, StoreError, redis.RedisError, AttributeError) as error:
                if isinstance(error, AttributeError) and str(error) != OUTDATED:
                    raise
                time.sleep(0.01)
            return True

        return step

    def _work(self, role: str, history: History, post: Post) -> Step:
        app = self._app(redis_queue_atomic_fetch=role != POPPING)
        if role != STOCK:
            DurableTasks(app)
        dice = post.arm() if role == WORKER else Dice(post.seed, chance=0.0)

        @app.task(name=TASK)  # type: ignore[untyped-decorator]
        def run(label: str) -> None:
            at = round(time.time() * 1000)
            history.write(Event("claim", "ok", label, at=at), Event("execute", "ok", label))
            dice.throw()
            history.write(Event("ack", "invoke", label))

        return run_worker(app, pool="solo", loglevel="WARNING")
