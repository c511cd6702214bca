"""The processes of a run. Dead ones are replaced; some are stopped for longer than their leases."""

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

from chaos.workload import PRODUCER, Post, Workload, truce
from redis_queue.validation.history import read

STALL_EVERY: Final = 0.25
MAX_FILES: Final = 4096
PARENT_DEATH_SIGNAL: Final = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


@dataclass(frozen=True, slots=True)
class Duty:
    """Task of a crew: *messages* for each queue, and the chance of a kill at each command."""

    folder: Path
    messages: int
    chance: float
    seed: int


@dataclass
class Crew:
    """Forked children of this process; its open files are closed in them."""

    workload: Workload
    duty: Duty
    kills: int = 0
    crashes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.duty.seed)
        self._chance = self.duty.chance
        self._positions: dict[int, int] = {}
        self._stalled: dict[int, float] = {}
        self._stall_at = 0.0

    @property
    def histories(self) -> list[Path]:
        """The history of each position; a replacement continues the history of the dead process."""
        return [self.duty.folder / f"{position}.jsonl" for position in range(len(self.workload.crew))]

    @property
    def written(self) -> int:
        """Size of all histories in bytes: while it does not grow, no process makes progress."""
        return sum(path.stat().st_size for path in self.histories if path.exists())

    @property
    def is_putting(self) -> bool:
        """Whether a producer is running."""
        return any(self.workload.crew[position] == PRODUCER for position in self._positions.values())

    def start(self) -> None:
        if self.workload.has_truce:
            truce(self.duty.folder).touch()
        for position in range(len(self.workload.crew)):
            self._fork(position)

    def tend(self) -> None:
        """Replace dead processes, stop one at random, continue those that were stopped for long enough."""
        self._replace_dead()
        if not truce(self.duty.folder).exists():
            self._stall_one()

    def calm(self) -> None:
        """Kill and stop no more processes."""
        self._chance = 0.0
        self._stall_at = math.inf

    def end(self) -> None:
        """Kill all running processes."""
        kills = self.kills
        for pid in self._positions:
            os.kill(pid, signal.SIGKILL)
        for pid, position in self._positions.items():
            self._judge(position, os.waitpid(pid, 0)[1])
        self._positions.clear()
        self.kills = kills

    def _replace_dead(self) -> None:
        for pid, position in list(self._positions.items()):
            gone, status = os.waitpid(pid, os.WNOHANG)
            if not gone:
                continue
            del self._positions[pid]
            if not self._judge(position, status):
                self._fork(position)

    def _judge(self, position: int, status: int) -> bool:
        """Record how a process ended; return whether it had finished its work."""
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            self.kills += 1
            return False
        if status:
            log = self._log(position).read_text()[-2000:]
            self.crashes.append(f"{self.workload.crew[position]} ended with status {status}: {log}")
        return not status

    def _stall_one(self) -> None:
        now = time.monotonic()
        for pid, until in list(self._stalled.items()):
            if now >= until:
                del self._stalled[pid]
                if pid in self._positions:
                    os.kill(pid, signal.SIGCONT)
        roles = {pid: self.workload.crew[position] for pid, position in self._positions.items()}
        pids = sorted(pid for pid, role in roles.items() if role != PRODUCER or self.workload.stops_producers)
        if now >= self._stall_at and pids:
            self._stall_at = now + max(STALL_EVERY, self.workload.lease)
            pid = self._dice.choice(pids)
            os.kill(pid, signal.SIGSTOP)
            self._stalled[pid] = now + 2 * self.workload.lease

    def _fork(self, position: int) -> None:
        post = self._post(position, self._dice.randrange(2**32))
        pid = os.fork()
        if pid:
            self._positions[pid] = position
        else:
            _live(lambda: self._work(position, post), self._log(position))

    def _work(self, position: int, post: Post) -> None:
        step = self.workload.begin(self.workload.crew[position], post)
        while step():
            pass

    def _log(self, position: int) -> Path:
        return self.duty.folder / f"{position}.log"

    def _post(self, position: int, seed: int) -> Post:
        duty, producers = self.duty, list(self.workload.crew).count(PRODUCER)
        history = self.histories[position]
        is_producer = self.workload.crew[position] == PRODUCER
        labels = range(position, duty.messages, producers)[_begun(history) :] if is_producer else range(0)
        return Post(history, seed, self._chance, labels, position + 1)


def _begun(history: Path) -> int:
    """Return how many labels a producer has started; the outcome of the last one is unknown."""
    return len({event.id[1:] for event in read(history) if event.op == "put"})


def _live(work: Callable[[], None], log: Path) -> None:
    """Do *work* in this forked process and end it; its output and its error go to *log*."""
    code = 1
    try:
        _die_with_parent()
        # A proxy or guard of a server notices the end of a connection only if no other process has it open.
        os.closerange(3, MAX_FILES)
        said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(said, 1)
        os.dup2(said, 2)
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - no error may reach the stack of the parent
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _die_with_parent() -> None:
    """Ask the kernel for a SIGKILL when the parent ends; only on Linux."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
