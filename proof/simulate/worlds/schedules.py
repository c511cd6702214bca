"""Celery workers that send their beat_schedule from the store."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from celery import Celery

from chaos.schedule_runs import ran, stands
from proof.simulate.scheduler import SIM
from proof.simulate.worlds.celery import CeleryWorld
from redis_queue.celery.durable_tasks import DurableTasks
from redis_queue.schedules.state import State

EVERY: Final = {"t1": 3.0, "t2": 7.0}
"""Seconds between two due times of each schedule."""


class SchedulesWorld(CeleryWorld):
    """Two workers, and one who pauses the schedules at the end and writes down how they stand."""

    #: A failover sends again what it has undone.
    spared = frozenset({"failover"})
    safe = frozenset({"closer"})
    longest = 1.0

    @property
    def roles(self) -> dict[str, Callable[[], object]]:
        return {"worker-1": self.work, "worker-2": self.work, "closer": self.close}

    def settings(self) -> dict[str, Any]:
        entries = {name: {"task": "run", "schedule": every} for name, every in EVERY.items()}
        return {"beat_schedule": entries, "redis_queue_schedules": True}

    def register(self, app: Celery) -> None:
        def run(self: Any) -> None:
            # The history is kept by the clock of Redis.
            world.note(*(event._replace(at=event.at and world.now_ms()) for event in ran(self.request)))
            time.sleep(SIM.rng.uniform(0, world.longest))

        world = self
        app.task(run, name="run", bind=True, ignore_result=True, shared=False)

    def close(self) -> None:
        """Wait until nothing breaks any more; pause each schedule and write down how it stands."""
        schedules = DurableTasks(self.app()).schedules
        while SIM.now < self.horizon + 1.5 * self.lease:
            time.sleep(1)
        for name in EVERY:
            schedules.pause(name)
        while any(True for _ in self.stored()):
            time.sleep(1)
        store = schedules.store
        for stored in store.get(list(EVERY)):
            if stored is not None:
                name = stored.name
                self.note(
                    *stands(name, round(EVERY[name] * 1000), State.read(stored.state_text), schedules.events(name))
                )
        self._sent = True
