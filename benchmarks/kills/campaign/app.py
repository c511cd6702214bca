"""The app of a campaign: ``celery -A benchmarks.kills.campaign.app worker``; the environment has its setting."""

from __future__ import annotations

import json
import os
import signal
import struct
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from celery import Celery

from chaos.kill_points import Dice
from redis_queue.celery import DurableTasks

VARIABLE: Final = "CAMPAIGN"
"""The environment variable with the setting of a worker."""

OURS: Final = "redis_queue"
STOCK: Final = "celery"
POPPING: Final = "popping"
"""With redis_queue, but without atomic fetch."""

QUEUE: Final = "campaign"
TASK: Final = "campaign.run"

LEASE: Final = 10
"""Seconds after which the task of a dead worker is redelivered."""

RUN: Final = struct.Struct("<IId")
"""A run: number of the task, number of the worker, start by the monotonic clock, which all processes share."""

DYING: Final = signal.SIGUSR2
"""Signal for a worker to die between two of its next commands."""

SOON: Final = 0.3
"""Chance of the death at each of these."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The broker, library and number of a worker, and the file of its runs."""

    url: str
    kind: str
    number: int = 0
    runs: str = os.devnull

    def dump(self) -> str:
        """Return the value of the environment variable."""
        return json.dumps(asdict(self))

    def app(self) -> Celery:
        """Return a new app."""
        app = Celery("campaign", broker=self.url, set_as_current=False)
        # Stock sweeps every second, and does not wait for a dead sweeper.
        sweeps = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1, "unacked_mutex_expire": 5}
        app.conf.update(
            task_default_queue=QUEUE,
            task_acks_late=True,
            task_reject_on_worker_lost=True,
            task_ignore_result=True,
            broker_connection_retry_on_startup=True,
            worker_hijack_root_logger=False,
            broker_transport_options={"visibility_timeout": LEASE, **(sweeps if self.kind == STOCK else {})},
            redis_queue_max_deliveries=1000,
            redis_queue_atomic_fetch=self.kind != POPPING,
        )
        if self.kind != STOCK:
            DurableTasks(app)
        return app

    def serve(self) -> Celery:
        """Return the app of a worker that records its runs."""
        app = self.app()
        runs, number = os.open(self.runs, os.O_WRONLY | os.O_APPEND), self.number

        @app.task(name=TASK)  # type: ignore[untyped-decorator]
        def run(task: int) -> None:
            os.write(runs, RUN.pack(task, number, time.monotonic()))

        signal.signal(DYING, lambda *_: Dice(number, SOON).arm())
        return app


def task_id(number: int) -> str:
    """Return the id of a task; it cannot be mistaken for a part of another text."""
    return f"campaign-{number:08}"


def __getattr__(name: str) -> Any:
    if name in ("app", "celery") and VARIABLE in os.environ:
        return globals().setdefault("app", Setting(**json.loads(os.environ[VARIABLE])).serve())
    raise AttributeError(name)
