"""Celery workers with a flow of one place for each key, and a unique task."""

from __future__ import annotations

from typing import Any

from celery import Celery

from proof.simulate.scheduler import SIM, Process
from proof.simulate.server import Server
from proof.simulate.worlds.celery import CeleryWorld
from redis_queue import Flow, Unique
from redis_queue.validation.history import Violation


class FlowsWorld(CeleryWorld):
    """Tasks of two keys: of each key, one task with a flow and one unique task may run."""

    longest = 8.0
    #: A failover undoes places and keys of tasks that run.
    spared = frozenset({"failover"})

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self._holders: dict[str, tuple[str, Process]] = {}
        self.together: list[str] = []

    def settings(self) -> dict[str, Any]:
        return {
            "redis_queue_flow": {"run": Flow(limit=1, key="{key}")},
            "redis_queue_unique": {"once": Unique(key="{key}")},
        }

    def register(self, app: Celery) -> None:
        """Add a task with a flow, and a unique one, to *app*."""

        def run(self: Any, key: str) -> None:
            world.hold(f"{self.name} {key}", self.request.id)

        world = self
        for name in ("run", "once"):
            app.task(run, name=name, bind=True, ignore_result=True, shared=False)

    def call(self, app: Celery, label: str, delay: float) -> str:
        """Send one of the tasks of *label*."""
        number = int(label[1:])
        task = app.tasks["once" if number % 3 == 0 else "run"]
        sent = task.apply_async((f"k{number % 2}",), countdown=delay or None, retry=False, task_id=label)
        return str(sent.id)

    def hold(self, place: str, label: str) -> None:
        """Run the task *label*: nothing else runs in its *place*."""
        assert SIM.current is not None
        other = self._holders.get(place)
        if other is not None and other[1].alive and other[0] != label and self.faults <= self.harmless:
            self.together.append(f"{label} and {other[0]} in {place}")
        self._holders[place] = label, SIM.current.process
        self.execute(label)
        if self._holders.get(place) == (label, SIM.current.process):
            del self._holders[place]

    def wrong(self) -> Any:
        """Yield tasks that ran together, or twice."""
        yield from super().wrong()
        yield from (Violation("ran together", text, self.events) for text in self.together)
