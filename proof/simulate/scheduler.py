"""Scheduler: threads of simulated processes as greenlets; a seed decides who goes on, and what time it is."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from typing import Any, Final

from greenlet import getcurrent, greenlet

EPOCH: Final = 1_750_000_000.0
"""The true time when a schedule begins."""

MAX_STEPS: Final = 400_000
"""Turns of a schedule that goes on without an end."""


class StuckError(Exception):
    """A schedule never ends."""


class Machine:
    """A host: its clock, and how long it has slept."""

    def __init__(self, name: str, skew: float = 0.0) -> None:
        self.name, self.skew = name, skew
        self.slept, self.wakes_at = 0.0, 0.0
        self.fell_asleep_at: float | None = None

    def monotonic(self) -> float:
        """Return the seconds of the clock that stands still while the machine sleeps."""
        end = SIM.now if self.fell_asleep_at is None else self.fell_asleep_at
        return end - self.slept

    def sleep(self, seconds: float) -> None:
        """Suspend the machine."""
        if self.fell_asleep_at is None:
            self.fell_asleep_at, self.wakes_at = SIM.now, SIM.now + seconds
            SIM.at(self.wakes_at, self.wake)

    def wake(self) -> None:
        """Go on."""
        if self.fell_asleep_at is None:
            return
        self.slept += SIM.now - self.fell_asleep_at
        self.fell_asleep_at = None
        SIM.unpark()


class Process:
    """A process: its threads, and the values of module globals that are its own."""

    def __init__(self, name: str, machine: Machine, main: Callable[[], object]) -> None:
        self.name, self.machine = name, machine
        self.pid = next(SIM.pids)
        self.alive, self.stopped = True, False
        self.globals: dict[int, Any] = {}
        self.tasks: list[Task] = []
        self.stdio: tuple[Any, Any] = (None, None)
        self.at_exit: list[Callable[[], None]] = []
        self.code = 0
        self.error: BaseException | None = None
        SIM.processes[self.pid] = self
        self.main = Task(self, main)

    @property
    def runs(self) -> bool:
        """Whether its threads get turns."""
        return not self.stopped and self.machine.fell_asleep_at is None

    def kill(self, code: int = -9) -> None:
        """End it: nothing of it runs, or is sent, from now on; what is on its way may arrive."""
        if self.alive:
            # Its greenlets are kept, but never go on: an end would run their handlers of errors.
            self.alive, self.code = False, code
            for done in self.at_exit:
                done()

    def stop(self, seconds: float) -> None:
        """Stop its threads, as SIGSTOP does."""
        self.stopped = True
        SIM.at(SIM.now + seconds, self._go_on)

    def _go_on(self) -> None:
        self.stopped = False
        SIM.unpark()


class Task:
    """A thread of a process."""

    def __init__(self, process: Process, work: Callable[[], object], thread: Any = None) -> None:
        self.process, self.thread = process, thread
        self.locals: dict[int, dict[str, Any]] = {}
        self.number = next(SIM.pids)
        self.waits, self.woken = False, False
        self.turn = 0
        self.until: float | None = None
        self.done = False
        self.joins: list[Task] = []
        self._work = work
        self.greenlet = greenlet(self._run, SIM.hub)
        process.tasks.append(self)
        SIM.ready.append(self)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - the world tells
            self.process.error = error
        self.done = True
        for other in self.joins:
            SIM.wake(other)
        if self is self.process.main and self.process.alive:
            # Threads that are daemons end with it.
            self.process.kill(0 if self.process.error is None else 1)


class Simulation:
    """One schedule. There is one at a time: what is replaced in modules asks it."""

    def __init__(self) -> None:
        self.current: Task | None = None
        self.begin(0)

    def begin(self, seed: int) -> None:
        """Forget the schedule before, and begin that of *seed*."""
        self.rng = random.Random(seed)
        self.now = 0.0
        self.pids = itertools.count(100)
        self.ready: list[Task] = []
        self.parked: list[Task] = []
        self.processes: dict[int, Process] = {}
        self.steps = 0
        self._timers: list[tuple[float, int, Any, int]] = []
        self._count = itertools.count()
        self.hub = getcurrent()
        self._globals: tuple[tuple[Any, str, Callable[[], Any]], ...] = ()
        self._last: Process | None = None

    def keep_apart(self, *names: tuple[Any, str, Callable[[], Any]]) -> None:
        """Give each process its own value of these globals: module, name, and what makes the first value."""
        self._globals = names

    # What the simulator calls.

    def at(self, when: float, call: Callable[[], object]) -> None:
        """Call *call* at *when*."""
        heapq.heappush(self._timers, (when, next(self._count), call, 0))

    def wake(self, task: Task) -> None:
        """Let a thread that waits go on."""
        if task.waits:
            task.waits, task.woken = False, True
            self.ready.append(task)

    def unpark(self) -> None:
        """Let threads go on whose process runs again."""
        self.ready += self.parked
        self.parked = []

    def run(self, until: float) -> None:
        """Give turns until the time *until*. Raises StuckError."""
        while True:
            if self.ready:
                self._give_turn()
            elif self._timers and self._timers[0][0] <= until:
                at, _, what, turn = heapq.heappop(self._timers)
                self.now = max(self.now, at)
                if not isinstance(what, Task):
                    what()
                elif what.waits and what.turn == turn and what.process.alive:
                    self._time_out(what)
            else:
                # Nobody can go on before then.
                self.now = max(self.now, until)
                return

    def _give_turn(self) -> None:
        ready, place = self.ready, int(self.rng.random() * len(self.ready))
        task, ready[place] = ready[place], ready[-1]
        ready.pop()
        if task.process.alive and not task.process.runs:
            self.parked.append(task)
        elif task.process.alive:
            self._switch(task)
            self.steps += 1
            if self.steps > MAX_STEPS:
                raise StuckError("no end in sight")

    def _time_out(self, task: Task) -> None:
        machine = task.process.machine
        assert task.until is not None
        left = task.until - machine.monotonic()
        if left > 1e-9:
            # The machine sleeps, or has slept meanwhile.
            begin = self.now if machine.fell_asleep_at is None else machine.wakes_at
            heapq.heappush(self._timers, (begin + left, next(self._count), task, task.turn))
            return
        task.waits = False
        self.ready.append(task)

    def _switch(self, task: Task) -> None:
        self.current = task
        process, before = task.process, self._last
        if process is not before:
            for number, (module, name, make) in enumerate(self._globals):
                if before is not None:
                    before.globals[number] = getattr(module, name)
                setattr(module, name, process.globals[number] if number in process.globals else make())
            self._last = process
        task.greenlet.switch()
        self.current = None

    # What threads call.

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the current thread is woken, for *seconds* at most; return whether it was woken."""
        task = self.current
        assert task is not None, "a wait outside of a process"
        task.waits, task.woken = True, False
        task.turn += 1
        if seconds is not None:
            # Else a loop that waits for a point in time might wait for less than a number can tell.
            seconds = max(1e-6, seconds)
            task.until = task.process.machine.monotonic() + seconds
            heapq.heappush(self._timers, (self.now + seconds, next(self._count), task, task.turn))
        self.hub.switch()
        return task.woken

    def pause(self) -> None:
        """Let others go on first, perhaps."""
        task = self.current
        if task is not None:
            self.ready.append(task)
            self.hub.switch()


SIM: Final = Simulation()
