"""The workload of a Celery app with flow control: producers, and workers of the prefork pool."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import redis
from celery import Celery, signals
from kombu.exceptions import OperationalError

from chaos.flow_plan import FAIR, FLOWS, KINDS, MEASURED, PACED, PLAIN, QUEUE, SYNC, TENANT, TENANTS, Plan
from chaos.flow_runs import MOVE, RunLog, death_of_worker
from chaos.holds import now_ms
from chaos.tasks import LEASE, PREFIX, WORKER, CeleryWorkload, run_worker
from chaos.unique_plan import UniquePlan
from chaos.workload import PRODUCER, Post, Step
from redis_queue.celery import DurableTasks
from redis_queue.celery.admission.sender import FlowSender
from redis_queue.celery.message.envelope import Envelope
from redis_queue.errors import StoreError
from redis_queue.store.keys import FlowKeys
from redis_queue.validation.history import Event, History

PROCESSES: Final = 2
"""Processes of each worker: more in all than the limit of a queue."""

MAIN_SHARE: Final = 0.2
"""Chance of a kill of a main process in that of its children: its places are not free before its leases end."""

LOST_WAIT: Final = 0.3
"""Seconds for which a worker waits for the result of a killed child, and its place is held; 10 by default."""

EMPTY: Final = ("running", "held", "backlog", "oldest", "blocked:*", "timers:*", "list:*", "ring:*", "keys:*")
"""Keys of flows that are empty when no message waits or runs."""

WORK: Final = 0.02
"""Seconds that most tasks take; some take up to twice as long, some are shorter."""

PAUSE: Final = 0.15
"""Seconds between two numbers of a producer: workers are killed and stopped meanwhile."""

MAX_DELAY: Final = 1.0
RETRY_IN: Final = 0.05
EXPIRES: Final = 0.1


class Flows(CeleryWorkload):
    """Tasks that run under limits and rates; some retry, fail, are revoked or expire.

    On RabbitMQ, the tasks are sent to the queue *name*.
    """

    stops_producers = False
    crew: Sequence[str] = (PRODUCER, PRODUCER, WORKER, WORKER, WORKER)
    queue = QUEUE
    kinds = "".join(KINDS)
    pause = PAUSE
    plan: type[Plan | UniquePlan] = Plan
    log = RunLog

    def __init__(self, broker: str, store: str, name: str = "") -> None:
        super().__init__(broker, store, name or self.queue)
        self._is_elsewhere = broker.startswith("amqp")
        # Where workers note what they have taken.
        self._taken = FlowKeys(PREFIX).taken if self._is_elsewhere else ""
        self._was_done = False
        self._client = redis.Redis.from_url(store)

    def is_done(self, histories: Sequence[Path]) -> bool:
        """Return whether all sent tasks have ended, and no place is in use."""
        self._was_done = super().is_done(histories) and not any(self.wrong())
        return self._was_done

    def wrong(self) -> Iterator[str]:
        """Yield what is left in Redis, and all dead letters."""
        for name in ("unacked", "unacked_index", self._queue):
            if self._client.exists(f"{self._taken}{name}"):
                yield f"{name} is not empty"
        for name in EMPTY:
            for key in self._client.scan_iter(f"{FlowKeys(PREFIX).pattern.removesuffix('*')}{name}", count=1000):
                yield f"{key.decode()!r} is not empty"
        yield from super().wrong()
        # The end of the run kills the workers: messages that they had moved and not acknowledged wait again.
        if self._is_elsewhere and not self._was_done and (count := self._waiting()):
            yield f"{count} messages wait in RabbitMQ"

    def _waiting(self) -> int:
        """Return how many messages wait in RabbitMQ; 0 before a worker has declared the queue."""
        with self._app().connection_for_read() as connection, contextlib.suppress(connection.channel_errors):
            return int(connection.default_channel.queue_declare(self._queue, passive=True).message_count)
        return 0

    def _app(self, **settings: Any) -> Celery:
        options = {"confirm_publish": True} if self._is_elsewhere else {"unacked_restore_interval": LEASE / 6}
        if self._is_elsewhere:
            # Revokes of this run reach no workers of others.
            settings["control_exchange"] = f"control-{self._queue}"
        app = super()._app(
            broker_transport_options=options,
            worker_concurrency=PROCESSES,
            worker_lost_wait=LOST_WAIT,
            **self._settings(),
            **settings,
        )
        DurableTasks(app)
        return app

    def _settings(self) -> Mapping[str, Any]:
        """Return the flows that are settings: that of the queue, and of one task."""
        return {"redis_queue_flow": {f"queue:{self._queue}": FLOWS[f"queue:{self.queue}"], PACED: FLOWS[PACED]}}

    def _options(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the tasks, and the options of their decorators: one has its flow there."""
        return {SYNC: {"flow": FLOWS[SYNC]}, PACED: {}, PLAIN: {}, TENANT: {}}

    def _produce(self, history: History, post: Post) -> Step:
        app, dice, labels = self._app(), random.Random(post.seed), iter(post.labels)
        self._define(app, None)
        post.arm().last_words = lambda: self._die(history)

        def step() -> bool:
            if not self._may_send(post):
                time.sleep(0.01)
                return True
            number = next(labels, None)
            if number is None:
                return False
            for kind in self.kinds:
                with contextlib.suppress(OperationalError, StoreError):
                    self._send(app, history, f"{kind}{number}", dice, post)
            self._pause(number, post)
            return True

        return step

    def _may_send(self, post: Post) -> bool:  # noqa: ARG002
        return True

    def _pause(self, number: int, post: Post) -> None:  # noqa: ARG002
        time.sleep(self.pause)

    def _send(self, app: Celery, history: History, label: str, dice: random.Random, post: Post) -> None:
        _send(app, history, label, dice.uniform(0, MAX_DELAY), post.lane)

    def _die(self, history: History) -> None:
        """Record that this process, a producer, is killed."""

    def _work(self, role: str, history: History, post: Post) -> Step:  # noqa: ARG002
        app = self._app()
        _record_moves(history)
        dice = post.arm(MAIN_SHARE)
        dice.last_words = lambda: history.write(death_of_worker())
        logs: list[RunLog] = []

        def begin_child(**_: Any) -> None:
            client = redis.Redis.from_url(self._store)
            logs[:] = [self.log(History(post.history), client, os.getppid(), f"{self._taken}unacked_index")]
            dice.reseed(post.chance, logs[0].die)

        signals.worker_process_init.connect(begin_child, weak=False)

        def run(task: Any, label: str) -> None:
            fate = self.plan.of(label).fate
            (log,) = logs
            log.enter(label, task.request)
            time.sleep(random.uniform(0, 2 * WORK))
            dice.throw()
            again = fate.startswith("retry") and not task.request.retries
            log.leave()
            if again:
                raise task.retry(countdown=RETRY_IN if fate == "retry later" else 0)
            history.write(Event("ack", "invoke", task.request.id))
            if fate == "fail":
                raise ValueError("on purpose")

        self._define(app, run)

        return run_worker(app, pool="prefork", loglevel="CRITICAL")

    def _define(self, app: Celery, run: Any) -> None:
        """Define the tasks of *app*, which call *run*."""

        def body(self: Any, label: str, key: str) -> None:  # noqa: ARG001
            run(self, label)

        for name, options in self._options().items():
            app.task(bind=True, name=name, shared=False, **options)(body)


class FairFlows(Flows):
    """Tenants with unequal load take turns. The first tasks are sent and executed without kills."""

    has_truce = True
    queue = FAIR
    kinds = TENANTS

    def _settings(self) -> Mapping[str, Any]:
        return {"redis_queue_flow": {f"queue:{self._queue}": FLOWS[f"queue:{self.queue}"]}}

    def _may_send(self, post: Post) -> bool:
        """Let the first producer send alone until its tasks that are measured have ended."""
        return post.lane == 1 or not post.truce.exists()

    def _pause(self, number: int, post: Post) -> None:
        if not post.truce.exists():
            super()._pause(number, post)
        elif number + 2 >= MEASURED:
            deadline = time.monotonic() + self.calm
            while any(self.wrong()) and time.monotonic() < deadline:
                time.sleep(0.01)
            post.truce.unlink()


def _record_moves(history: History) -> None:
    """Record the messages that this process, a worker, moves from RabbitMQ into their flows."""
    send = FlowSender.send

    def recorded(sender: FlowSender, envelope: Envelope, *args: Any, is_new: bool = True) -> bool:
        if not is_new:
            _, arguments, _ = json.loads(envelope.body)
            history.write(Event(MOVE, "invoke", arguments["label"]))
        return send(sender, envelope, *args, is_new=is_new)

    setattr(FlowSender, "send", recorded)  # noqa: B010 - a method


def _send(app: Celery, history: History, label: str, delay: float, lane: int) -> None:
    plan = Plan.of(label)
    options: dict[str, Any] = {"countdown": delay} if plan.is_delayed else {}
    if plan.fate == "expire" and not plan.is_delayed:
        # It may run or not, like one whose cancel was interrupted.
        history.write(Event("cancel", "invoke", label))
        options["expires"] = EXPIRES
    due = round((time.time() + options.get("countdown", 0)) * 1000)
    history.write(Event("put", "invoke", label, due=due))
    app.send_task(plan.task, kwargs={"label": label, "key": plan.key}, task_id=label, **options)
    in_order = plan.lane and lane * 1000 + plan.lane
    history.write(Event("put", "ok", label, due=due, at=now_ms(), lane=in_order))
    if plan.fate == "revoke":
        history.write(Event("cancel", "invoke", label))
        app.control.revoke(label)
