"""The workers of a piece: real ones, in slots; who dies is replaced."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.children import ROOT
from benchmarks.kills.campaign.app import DYING, LEASE, OURS, STOCK, VARIABLE, Setting
from benchmarks.kills.campaign.ledger import Fault
from tests.support.celery.forker import Forker
from tests.support.faketime import clock_off_by

POOLS: Final = {"prefork": ("2", "16"), "threads": ("4", "16"), "solo": ("1", "64"), "gevent": ("10", "8")}
"""Concurrency and prefetch multiplier."""

NEXT: Final = {"prefork": "gevent", "gevent": "threads", "threads": "prefork", "solo": "solo"}
"""The pool of a slot after an upgrade."""

OFFSETS: Final = (-7200, -90, -15, 15, 90, 7200)
"""Seconds by which clocks are wrong."""

SKEWED: Final = "benchmarks.kills.campaign.skewed"

WARM_WITHIN: Final = 60.0
DYING_WITHIN: Final = 5.0
YOUNG: Final = 6.0
"""Seconds in which a worker starts; it is not chosen to die."""


@dataclass
class Slot:
    """A place for one worker after the other."""

    pool: str
    kind: str
    url: str
    offset: int = 0
    immortal: bool = False
    """Whether its workers are not killed: one without atomic fetch loses tasks by itself."""
    worker: int = 0
    process: Any = None
    since: float = 0.0
    cause: str = ""
    caused_at: float = 0.0


class Crew:
    """Workers of one piece; *folder* gets their logs."""

    def __init__(self, slots: Sequence[Slot], folder: Path, dice: random.Random, faults: list[Fault]) -> None:
        self.slots = slots
        self._folder = folder
        self._dice = dice
        self._faults = faults
        self._forker = Forker()
        self._started: list[Any] = []
        self.crashed: list[str] = []

    def start(self) -> None:
        """Start all."""
        for slot in self.slots:
            self._start(slot)

    def tend(self) -> None:
        """Replace the dead; kill those that do not die as they were told."""
        now = time.monotonic()
        for slot in self.slots:
            if slot.process.poll() is None:
                warm = slot.cause.startswith("upgrade")
                limit = WARM_WITHIN if warm else DYING_WITHIN
                if slot.cause and now > slot.caused_at + limit:
                    if warm:
                        self.crashed.append(f"worker {slot.worker} ({slot.pool}) did not stop in {limit:g} s")
                        slot.cause = "stuck"
                    self._kill_group(slot)
                continue
            if not slot.cause:
                log = self._log(slot).read_text(errors="replace")[-3000:]
                self.crashed.append(f"worker {slot.worker} ({slot.pool}, {slot.kind}) ended by itself: {log}")
            self._note(slot.cause or "crash", slot, slot.caused_at or now - 1.0, now)
            if slot.offset:
                slot.offset = self._dice.choice(OFFSETS)
            self._start(slot)

    def kill(self) -> str:
        """Kill a worker, or a child of its pool; return how, or nothing if none may be killed now."""
        now = time.monotonic()
        mortal = [s for s in self.slots if not s.immortal and not s.cause and now > s.since + YOUNG]
        if not mortal:
            return ""
        slot = self._dice.choice(mortal)
        how = self._dice.choice(("main", "group", "command", "command", *("child",) * 2 * (slot.pool == "prefork")))
        if how == "child":
            children = _children(slot.process.pid)
            if not children:
                return ""
            _signal(os.kill, self._dice.choice(children), signal.SIGKILL)
            self._note("kill prefork", slot, now, now + 2.0)
            return "child prefork"
        slot.cause, slot.caused_at = f"kill {slot.pool}", now
        if how == "group":
            self._kill_group(slot)
        else:
            _signal(os.kill, slot.process.pid, signal.SIGKILL if how == "main" else DYING)
        return f"{how} {slot.pool}"

    def upgrade(self) -> Callable[[], bool]:
        """Return what restarts all workers, one by one, with other settings; True when it is done."""
        left = list(self.slots)
        waiting: list[tuple[Slot, int]] = []

        def step() -> bool:
            now = time.monotonic()
            if waiting:
                slot, before = waiting[0]
                if slot.worker == before or now < slot.since + YOUNG:
                    return False
                waiting.pop()
            if not left:
                return True
            slot = left.pop(0)
            if not slot.cause:
                slot.cause, slot.caused_at = f"upgrade {slot.pool}", now
                slot.pool = NEXT[slot.pool]
                if slot.immortal and slot.kind in (STOCK, OURS):
                    slot.kind = OURS if slot.kind == STOCK else STOCK
                _signal(os.kill, slot.process.pid, signal.SIGTERM)
            waiting.append((slot, slot.worker))
            return False

        return step

    def stall(self) -> tuple[float, Callable[[], None]]:
        """Stop a worker for longer than its lease; return for how long, and what continues it."""
        now = time.monotonic()
        able = [s for s in self.slots if not s.cause and now > s.since + YOUNG]
        if not able:
            return 0.0, lambda: None
        slot = self._dice.choice(able)
        process, seconds = slot.process, LEASE * self._dice.uniform(1.2, 2.0)
        _signal(os.kill, process.pid, signal.SIGSTOP)
        self._note("stall", slot, now, now + seconds + LEASE)
        return seconds, lambda: _signal(os.kill, process.pid, signal.SIGCONT)

    def stop(self) -> None:
        """Kill all that were ever started."""
        for process in self._started:
            _signal(os.killpg, process.pid, signal.SIGKILL)
        for process in self._started:
            process.wait(10)
        self._forker._end()

    def _start(self, slot: Slot) -> None:
        slot.worker = len(self._started) + 1
        slot.cause, slot.since, slot.caused_at = "", time.monotonic(), 0.0
        concurrency, prefetch = POOLS[slot.pool]
        arguments = ["-A", "benchmarks.kills.campaign.app", "worker", "--pool", slot.pool, "--concurrency", concurrency]
        arguments += ["--prefetch-multiplier", prefetch, "--hostname", f"{slot.worker}@campaign"]
        arguments += ["--loglevel", "WARNING", "--without-mingle", "--without-gossip"]
        setting = Setting(slot.url, slot.kind, slot.worker, str(self._folder / "runs"))
        environment = {VARIABLE: setting.dump(), **(clock_off_by(slot.offset) if slot.offset else {})}
        log = self._log(slot)
        log.touch()
        slot.process = self._forker.start(arguments, environment, log)
        if slot.process is None:
            with log.open("ab") as output:
                slot.process = subprocess.Popen(
                    [sys.executable, "-m", SKEWED if slot.offset else "celery", *arguments],
                    cwd=ROOT,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        self._started.append(slot.process)

    def _log(self, slot: Slot) -> Path:
        return self._folder / f"worker-{slot.worker}.log"

    def _note(self, kind: str, slot: Slot, start: float, end: float) -> None:
        self._faults.append(Fault(kind, start, end, slot.worker))

    def _kill_group(self, slot: Slot) -> None:
        _signal(os.killpg, slot.process.pid, signal.SIGKILL)


def _signal(send: Callable[[int, int], None], pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        send(pid, number)


def _children(pid: int) -> list[int]:
    """Return the pool processes of a worker: its children that are not its keeper."""
    found = []
    for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{number}/cmdline").read_bytes() + Path(f"/proc/{number}/comm").read_bytes()
            if b"keeper" not in command:
                found.append(int(number))
    return found
