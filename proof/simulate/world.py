"""World: processes that work on one Redis, what they did, and what must be true of it."""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Final

from chaos.checker import check
from proof.simulate.scheduler import EPOCH, SIM, Machine, Process
from proof.simulate.server import Server
from redis_queue.errors import RedisQueueError
from redis_queue.validation.history import CheckResult, Event, Violation

URL: Final = "redis://redis:6379/0"

RESTART: Final = 0.5
"""Seconds between two looks for processes that have ended."""


class World(ABC):
    """The processes of a schedule, by their roles; each is started again when it has ended."""

    horizon: ClassVar[float] = 20.0
    """Seconds in which things break."""

    calm: ClassVar[float] = 400.0
    """Seconds afterwards in which everything must be done."""

    lease: ClassVar[float] = 10.0

    spared: ClassVar[frozenset[str]] = frozenset()
    """Kinds of faults that do not happen here."""

    safe: ClassVar[frozenset[str]] = frozenset()
    """Roles that are not killed, stopped or put to sleep."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.events: list[Event] = []
        #: The kinds of the faults of the schedule.
        self.faults: set[str] = set()
        self.undone: list[tuple[int, float, float]] = []
        self.kept: dict[Any, tuple[object, float]] = {}
        self.dead_until: dict[str, float] = {}
        self.crashes: list[Violation] = []
        self.machines: dict[str, Machine] = {}
        self._running: dict[str, Process] = {}
        self._times: list[float] = []

    @property
    @abstractmethod
    def roles(self) -> dict[str, Callable[[], object]]:
        """The main function of each process; one that has returned is not started again."""

    @abstractmethod
    def is_done(self) -> bool:
        """Return whether nothing is left to do; called from outside."""

    def left(self) -> Iterable[str]:
        """Yield the ids that are still in Redis."""
        return ()

    def wrong(self) -> Iterator[Violation]:
        """Yield what else is wrong at the end."""
        return iter(())

    # What processes call.

    def note(self, *events: Event) -> None:
        """Add *events* to the history."""
        self.events += events
        self._times += [SIM.now] * len(events)

    def now_ms(self) -> int:
        """Return the time of the clock of Redis."""
        return self.server.now_us() // 1000

    # What the simulator calls.

    def begin(self) -> None:
        """Start all processes."""
        for name, main in self.roles.items():
            machine = self.machines.setdefault(name, Machine(name))
            self._running[name] = Process(name, machine, main)
        SIM.at(SIM.now + RESTART, self._supervise)

    def _supervise(self) -> None:
        for name, process in list(self._running.items()):
            if process.alive or self.dead_until.get(name, 0.0) > SIM.now:
                continue
            error, process.error = process.error, None
            if error is not None and not isinstance(error, RedisQueueError):
                text = "".join(traceback.format_exception(error)[-3:])
                self.crashes.append(Violation(f"crashed with {text}", name, []))
            if process.code or error is not None:
                self._running[name] = Process(name, process.machine, self.roles[name])
        SIM.at(SIM.now + RESTART, self._supervise)

    def undo(self, since: float, until: float) -> None:
        """Take note that what was written since then is undone."""
        self.undone.append((len(self.events), since, until))

    def check(self) -> CheckResult:
        """Check the history; what a failover has undone is not held against the product."""
        doubtful = {
            event.id
            for count, since, _ in self.undone
            for event, at in zip(self.events[:count], self._times, strict=False)
            if at >= since
        }
        # What was begun before it, and had not ended.
        for count, _, _ in self.undone:
            begun: dict[tuple[str, str, int], int] = {}
            for event in self.events[:count]:
                begun[event.op, event.id, event.claim] = event.kind == "invoke"
            doubtful |= {id_ for (_, id_, _), is_open in begun.items() if is_open}
        result = check([event for event in self.events if event.id not in doubtful], self.left())
        result.violations += [*self.crashes, *self.wrong()]
        return result


def true_ms() -> int:
    """Return the true time in ms."""
    return round((EPOCH + SIM.now) * 1000)
