"""The workload of periodic tasks without a single beat: dispatchers and beats are killed, a worker runs the tasks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from celery import Celery

from chaos.schedule_plan import SCHEDULES, STATIC_NAMES, SchedulePlan, name_of
from chaos.schedule_runs import ran, stands
from chaos.tasks import WORKER, CeleryWorkload, run_worker
from chaos.workload import PRODUCER, Post, Step
from redis_queue.celery import DispatchLoop, DurableTasks
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.errors import StoreError
from redis_queue.schedules.state import State
from redis_queue.validation.history import Event, History, read

DISPATCHER: Final = "dispatcher"
BEAT: Final = "beat"

TASK: Final = "chaos.tick"

INTERVAL: Final = 0.5
"""Seconds between two checks of a dispatcher: a silent leader is replaced after two and a half times as long."""

PAUSE: Final = 0.08
"""Seconds between two numbers of a producer: schedules are sent meanwhile."""

PAUSED_EVERY: Final = 5
"""After each schedule is put, every so many numbers one is paused and resumed."""


class PeriodicTasks(CeleryWorkload):
    """Schedules that producers put, put again, pause and resume, and those of ``beat_schedule``.

    The worker is not killed: what runs twice was sent twice.
    """

    crew = (PRODUCER, PRODUCER, DISPATCHER, DISPATCHER, DISPATCHER, BEAT, BEAT, WORKER)
    lease = 1.0

    def __init__(self, broker: str, store: str) -> None:
        super().__init__(broker, store, "chaos")
        self._calm_since = 0
        self._is_paused = self._are_noted = False

    def is_done(self, histories: Sequence[Path]) -> bool:
        """Return whether each schedule was sent or skipped to the present after the last kill, and its runs ended."""
        schedules = self._schedules
        self._calm_since = self._calm_since or schedules.store.now()
        if not self._is_paused:
            self._catch_up()
            if any(state.due <= self._calm_since for state in self._states().values()):
                return False
            for name in self._states():
                schedules.pause(name)
            self._is_paused = True
        if any(self.left()):
            return False
        states = self._states()
        runs = sum(state.runs for state in states.values())
        if len({event.id for event in read(*histories) if event.op == "run"}) < runs:
            return False
        if not self._are_noted:
            self._note(states, histories[0])
            self._are_noted = True
        return True

    def _catch_up(self) -> None:
        """End the pauses of producers that were killed meanwhile."""
        for name, state in self._states().items():
            if state.is_paused:
                self._schedules.resume(name)

    def _note(self, states: Mapping[str, State], path: Path) -> None:
        history = History(path)
        for name, state in states.items():
            history.write(*stands(name, SchedulePlan.of(name).every, state, self._schedules.events(name)))
        history.close()

    def _states(self) -> dict[str, State]:
        """Return the state of each schedule; one that cannot be read is an error."""
        store = self._schedules.store
        names = store.names(limit=2 * SCHEDULES)
        return {stored.name: State.read(stored.state_text) for stored in store.get(names) if stored is not None}

    @cached_property
    def _schedules(self) -> Schedules:
        return DurableTasks(self._app()).schedules

    def _app(self, **settings: Any) -> Celery:
        entries = {name: {"task": TASK, "schedule": SchedulePlan.of(name).every / 1000} for name in STATIC_NAMES}
        return super()._app(
            redis_queue_dispatch_interval=INTERVAL, beat_schedule=entries, result_expires=None, **settings
        )

    def _produce(self, history: History, post: Post) -> Step:
        schedules, labels = DurableTasks(self._app()).schedules, iter(post.labels)
        post.arm()

        def step() -> bool:
            number = next(labels, None)
            if number is None:
                return False
            history.write(Event("put", "invoke", f"s{number}"))
            with contextlib.suppress(StoreError):
                self._put(schedules, name_of(number), number)
            time.sleep(PAUSE)
            return True

        return step

    def _put(self, schedules: Schedules, name: str, number: int) -> None:
        plan = SchedulePlan.of(name)
        # One that exists stays as it is, with its next run and its counts.
        schedules.put(name, plan.every / 1000, TASK, **plan.options)
        if not number % PAUSED_EVERY:
            schedules.pause(name)
            schedules.resume(name)

    def _work(self, role: str, history: History, post: Post) -> Step:
        if role == WORKER:
            app = self._app(redis_queue_dispatch=False)
            DurableTasks(app)

            @app.task(bind=True, name=TASK, shared=False)  # type: ignore[untyped-decorator]
            def tick(self: Any) -> None:
                history.write(*ran(self.request))

            return run_worker(app, pool="solo", loglevel="WARNING")
        app = self._app()
        DurableTasks(app)
        post.arm()
        return _dispatch(app) if role == DISPATCHER else _beat(app)


def _dispatch(app: Celery) -> Step:
    def step() -> bool:
        DispatchLoop(app).run()
        raise RuntimeError("a dispatcher stopped by itself")

    return step


def _beat(app: Celery) -> Step:
    def step() -> bool:
        app.Beat(scheduler="redis_queue", loglevel="WARNING", quiet=True).run()
        raise RuntimeError("a beat stopped by itself")

    return step
