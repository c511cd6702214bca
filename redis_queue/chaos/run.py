"""A run: forks the processes of all roles, replaces those that die, waits until all is done, and checks."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from redis_queue.chaos.checker import Verdict, Violation, check
from redis_queue.chaos.history import read
from redis_queue.chaos.places import misplaced
from redis_queue.chaos.roles import LEASE, PREFIX, ROLES, Post, queues
from redis_queue.connection import connect
from redis_queue.keys import Keys

CREW: Final = ("producer", "producer", "consumer", "consumer", "consumer", "dispatcher", "dispatcher", "sweeper")
STEP: Final = 0.002
STALL_EVERY: Final = 0.25
LOOK_EVERY: Final = 0.02
CALM: Final = 15.0
"""Seconds in which a run must come to its end once everything is put."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do: *messages* for each of the two queues, a kill at one command in 1 / *chance*."""

    url: str
    folder: Path
    messages: int
    chance: float
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it."""

    verdict: Verdict
    kills: int
    seconds: float


class Run:
    """The processes of one run; they are children of this one, which must have no threads."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._dice = random.Random(plan.seed)
        self._client = connect(plan.url, check=False)
        self._queue, self._delayed = queues(self._client)
        self._misplaced: set[str] = set()
        self._look_at = 0.0
        self._places: dict[int, int] = {}
        self._stalled: dict[int, float] = {}
        self._stall_at = 0.0
        self._kills = 0

    def go(self, tell: Callable[[int], None] = lambda _: None) -> Outcome:
        """Run to the end; what is left after CALM seconds is a broken promise, too."""
        started = time.monotonic()
        try:
            for place in range(len(CREW)):
                self._fork(place)
            self._until(self._is_all_put, self._plan.messages, tell)
            drained = self._until(self._is_all_done, CALM, tell)
        finally:
            self._end()
        verdict = check(read(*sorted(self._plan.folder.glob("*.jsonl"))), self._left())
        verdict.violations += [Violation("not in one place", what, []) for what in sorted(self._misplaced)]
        if not drained:
            verdict.violations.append(Violation("not drained", "", []))
        return Outcome(verdict, self._kills, time.monotonic() - started)

    def _until(self, fact: Callable[[], bool], within: float, tell: Callable[[int], None]) -> bool:
        deadline = time.monotonic() + within
        while not fact():
            if time.monotonic() > deadline:
                return False
            self._replace_the_dead()
            self._stall_somebody()
            self._look()
            tell(self._kills)
            time.sleep(STEP)
        return True

    def _look(self) -> None:
        """Look where every message stands; at the end of each script it stands in one place."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_EVERY
            for keys in (Keys(PREFIX, "queue", "work"), Keys(PREFIX, "delay", "later", 0)):
                self._misplaced.update(misplaced(self._client, keys))

    def _replace_the_dead(self) -> None:
        while self._places:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            place = self._places.pop(pid)
            if os.WIFSIGNALED(status):
                self._kills += 1
                self._fork(place)

    def _stall_somebody(self) -> None:
        """Stop a process for longer than its leases last, and let those go on that were stopped for so long."""
        now = time.monotonic()
        for pid, until in list(self._stalled.items()):
            if now >= until:
                del self._stalled[pid]
                if pid in self._places:
                    os.kill(pid, signal.SIGCONT)
        if now >= self._stall_at and self._places:
            self._stall_at = now + STALL_EVERY
            pid = self._dice.choice(sorted(self._places))
            os.kill(pid, signal.SIGSTOP)
            self._stalled[pid] = now + 2 * LEASE

    def _fork(self, place: int) -> None:
        seed = self._dice.randrange(2**32)
        pid = os.fork()
        if pid:
            self._places[pid] = place
            return
        code = 1
        try:
            for _ in ROLES[CREW[place]](self._post(place, seed)):
                pass
            code = 0
        finally:
            os._exit(code)

    def _post(self, place: int, seed: int) -> Post:
        plan, producers = self._plan, CREW.count("producer")
        history = plan.folder / f"{place}.jsonl"
        labels = range(place, plan.messages, producers) if CREW[place] == "producer" else range(0)
        return Post(plan.url, history, seed, plan.chance, labels[self._begun(history) :])

    @staticmethod
    def _begun(history: Path) -> int:
        """Return how many labels a producer has begun: nobody knows what became of the last one."""
        return len({event.id[1:] for event in read(history) if event.op == "put"})

    def _is_all_put(self) -> bool:
        return not any(CREW[place] == "producer" for place in self._places.values())

    def _is_all_done(self) -> bool:
        stats, later = self._queue.stats(), self._delayed.stats()
        return not (stats.ready or stats.delayed or stats.in_flight or later.waiting or later.in_flight)

    def _left(self) -> list[str]:
        return [str(message.body) for message in self._queue.peek()] + [entry.id for entry in self._delayed]

    def _end(self) -> None:
        for pid in self._places:
            os.kill(pid, signal.SIGKILL)
        for pid in self._places:
            os.waitpid(pid, 0)
        self._places.clear()
