"""The workload of a Celery app with DurableTasks: producers, and workers of the solo pool."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import redis
from celery import Celery
from kombu.exceptions import OperationalError

from chaos.kill_points import Dice
from chaos.progress import Progress
from chaos.workload import PRODUCER, Post, Step, note_cancel
from redis_queue.celery import DurableTasks
from redis_queue.errors import StoreError
from redis_queue.validation.history import Event, History

WORKER: Final = "worker"
STOCK: Final = "stock worker"
"""Role of a Celery worker without redis_queue. It is never killed: a killed one loses messages by itself."""

POPPING: Final = "popping worker"
"""Role of a worker with leases but without atomic fetch. It is never killed, for the same reason."""

TASK: Final = "chaos"
NO_OPTIONS: Final[Mapping[str, Any]] = {}

LEASE: Final = 2.0
OUTDATED: Final = "'NoneType' object has no attribute 'client'"
"""Text of kombu's error (not an OperationalError) if the connection of a channel breaks during a publish."""

MOST_DELAY: Final = 1.0
CANCELLED: Final = 0.1


class Tasks:
    """Immediate and delayed tasks, some cancelled; workers execute them and ack late.

    Besides the two workers that may be killed there is one of each role in *others*.
    """

    lease = LEASE
    calm = 60.0
    stops_producers = True
    has_truce = False

    def __init__(
        self,
        broker: str,
        store: str,
        queue: str = "chaos",
        *,
        others: Sequence[str] = (),
        options: Mapping[str, Any] = NO_OPTIONS,
        **settings: Any,
    ) -> None:
        self.crew: Sequence[str] = (PRODUCER, PRODUCER, WORKER, WORKER, *others)
        self._broker = broker
        self._store = store
        self._queue = queue
        self._options = {"confirm_publish": True} if broker.startswith("amqp") else dict(options)
        self._settings = settings
        self._progress = Progress()
        self._delayed = DurableTasks(self._app(), leases=False)

    def begin(self, role: str, post: Post) -> Step:
        """Return the step that a process of *role* repeats: send a task, or work until the end."""
        app = self._app(role)
        dice = post.arm() if role in (PRODUCER, WORKER) else Dice(post.seed, chance=0.0)
        history = History(post.history)
        return self._produce(app, history, post) if role == PRODUCER else self._work(app, history, dice)

    def look(self) -> Iterator[str]:
        """Yield nothing: Celery queues have no invariants to check."""
        return iter(())

    def is_done(self, histories: Sequence[Path]) -> bool:
        """Return whether all sent tasks were executed or cancelled."""
        return self._progress.is_done(histories)

    def left(self) -> Iterator[str]:
        """Yield the ids of waiting and dead tasks."""
        yield from (entry.id for entry in self._delayed.scan())
        yield from (letter.id for letter in self._delayed.queue.dead_letters(limit=500))

    def wrong(self) -> Iterator[str]:
        """Yield all dead letters: every task is executable."""
        for letter in self._delayed.queue.dead_letters(limit=500):
            yield f"{letter.id} is dead: {letter.reason}"

    def _app(self, role: str = WORKER) -> Celery:
        app = Celery("chaos", broker=self._broker, set_as_current=False)
        app.conf.update(
            task_default_queue=self._queue,
            task_acks_late=True,
            task_ignore_result=True,
            worker_prefetch_multiplier=4,
            worker_send_task_events=False,
            broker_transport_options=self._options,
            broker_connection_retry_on_startup=True,
            redis_queue_url=self._store,
            redis_queue_prefix="chaos",
            redis_queue_max_deliveries=1000,
            redis_queue_dispatch_lease=2 * LEASE,
            redis_queue_task_lease=LEASE,
            **self._settings,
        )
        if role == POPPING:
            app.conf.redis_queue_atomic_fetch = False
        if role != STOCK:
            DurableTasks(app)
        return app

    def _produce(self, app: Celery, history: History, post: Post) -> Step:
        delayed, dice, labels = DurableTasks(app, leases=False), random.Random(post.seed), iter(post.labels)

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
                send(twin, countdown=dice.uniform(0, MOST_DELAY))
                if dice.random() < CANCELLED:
                    history.write(Event("cancel", "invoke", twin))
                    note_cancel(history, twin, delayed.cancel(twin))
            except (OperationalError, StoreError, redis.RedisError, AttributeError) as error:
                if isinstance(error, AttributeError) and str(error) != OUTDATED:
                    raise
                time.sleep(0.01)
            return True

        return step

    def _work(self, app: Celery, history: History, dice: Dice) -> Step:
        @app.task(name=TASK)  # type: ignore[untyped-decorator]
        def run(label: str) -> None:
            at = round(time.time() * 1000)
            history.write(Event("claim", "ok", label, at=at), Event("execute", "ok", label))
            dice.throw()
            history.write(Event("ack", "invoke", label))

        def step() -> bool:
            worker = app.Worker(
                pool="solo",
                hostname=f"{os.getpid()}@chaos",
                loglevel="WARNING",
                without_gossip=True,
                without_mingle=True,
                without_heartbeat=True,
            )
            worker.start()
            raise RuntimeError("a worker stopped by itself")

        return step
