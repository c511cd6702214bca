"""Crew: the processes of a run. Those that die are replaced; now and then one is stopped for longer than its leases."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.history import read
from chaos.workload import PRODUCER, Post, Workload

STALL_EVERY: Final = 0.25
MOST_FILES: Final = 4096
PARENT_DEATH_SIGNAL: Final = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


@dataclass(frozen=True, slots=True)
class Duty:
    """What a crew has to do: *messages* for each queue, a kill at one command in 1 / *chance*."""

    folder: Path
    messages: int
    chance: float
    seed: int


@dataclass
class Crew:
    """Forked children of this process; what it holds open is closed in them."""

    workload: Workload
    duty: Duty
    kills: int = 0
    crashes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.duty.seed)
        self._chance = self.duty.chance
        self._places: dict[int, int] = {}
        self._stalled: dict[int, float] = {}
        self._stall_at = 0.0

    @property
    def histories(self) -> list[Path]:
        """The history of each place; a replacement goes on in that of the dead."""
        return [self.duty.folder / f"{place}.jsonl" for place in range(len(self.workload.crew))]

    @property
    def written(self) -> int:
        """How many bytes all histories have: a number that stands still says that nothing is done."""
        return sum(path.stat().st_size for path in self.histories if path.exists())

    @property
    def is_putting(self) -> bool:
        """Whether a producer is at work."""
        return any(self.workload.crew[place] == PRODUCER for place in self._places.values())

    def start(self) -> None:
        """Start all processes."""
        for place in range(len(self.workload.crew)):
            self._fork(place)

    def tend(self) -> None:
        """Replace the dead, stop somebody, let those go on that were stopped for long enough."""
        self._replace_the_dead()
        self._stall_somebody()

    def calm(self) -> None:
        """Let no replacement die or be stopped any more."""
        self._chance = 0.0
        self._stall_at = math.inf

    def end(self) -> None:
        """Kill all that are left."""
        kills = self.kills
        for pid in self._places:
            os.kill(pid, signal.SIGKILL)
        for pid, place in self._places.items():
            self._judge(place, os.waitpid(pid, 0)[1])
        self._places.clear()
        self.kills = kills

    def _replace_the_dead(self) -> None:
        for pid, place in list(self._places.items()):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if not gone:
                continue
            del self._places[pid]
            if not self._judge(place, status):
                self._fork(place)

    def _judge(self, place: int, status: int) -> bool:
        """Note how a process ended; tell whether it was done."""
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            self.kills += 1
            return False
        if status:
            log = self._log(place).read_text()[-2000:]
            self.crashes.append(f"{self.workload.crew[place]} ended with status {status}: {log}")
        return not status

    def _stall_somebody(self) -> None:
        now = time.monotonic()
        for pid, until in list(self._stalled.items()):
            if now >= until:
                del self._stalled[pid]
                if pid in self._places:
                    os.kill(pid, signal.SIGCONT)
        if now >= self._stall_at and self._places:
            self._stall_at = now + max(STALL_EVERY, self.workload.lease)
            pid = self._dice.choice(sorted(self._places))
            os.kill(pid, signal.SIGSTOP)
            self._stalled[pid] = now + 2 * self.workload.lease

    def _fork(self, place: int) -> None:
        post = self._post(place, self._dice.randrange(2**32))
        pid = os.fork()
        if pid:
            self._places[pid] = place
        else:
            _live(lambda: self._work(place, post), self._log(place))

    def _work(self, place: int, post: Post) -> None:
        step = self.workload.begin(self.workload.crew[place], post)
        while step():
            pass

    def _log(self, place: int) -> Path:
        return self.duty.folder / f"{place}.log"

    def _post(self, place: int, seed: int) -> Post:
        duty, producers = self.duty, list(self.workload.crew).count(PRODUCER)
        history = self.histories[place]
        is_producer = self.workload.crew[place] == PRODUCER
        labels = range(place, duty.messages, producers)[_begun(history) :] if is_producer else range(0)
        return Post(history, seed, self._chance, labels, place + 1)


def _begun(history: Path) -> int:
    """Return how many labels a producer has begun: nobody knows what became of the last one."""
    return len({event.id[1:] for event in read(history) if event.op == "put"})


def _live(work: Callable[[], None], log: Path) -> None:
    """Do *work* in this forked process and end it; what it writes and why it fails is in *log*."""
    code = 1
    try:
        _die_with_parent()
        # A server's proxy or guard sees the end of a connection only once nobody else holds it.
        os.closerange(3, MOST_FILES)
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(said, 1)
        os.dup2(said, 2)
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - nothing may go up into the stack of the parent
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _die_with_parent() -> None:
    """Ask the kernel for a SIGKILL at the end of the parent; only Linux can."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
