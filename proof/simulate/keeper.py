"""The keeper's process of a worker, as a simulated process: its real loop behind real lines in simulated pipes."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from proof.simulate.network import End, pair
from proof.simulate.scheduler import SIM, Process
from redis_queue.celery.leases import keeper_process
from redis_queue.keeper import __main__ as entry
from redis_queue.keeper import loop


class Popen:
    """Stand-in for subprocess.Popen with the command of a keeper."""

    def __init__(self, command: Sequence[str], **_: Any) -> None:
        assert SIM.current is not None
        worker = SIM.current.process
        self.stdin, stdin = pair()
        self.stdout, stdout = pair()
        self.process = Process(f"keeper of {worker.name}", worker.machine, lambda: loop.run(*map(int, command[-2:])))
        self.process.stdio = stdin, stdout
        self.process.at_exit += [stdin.close, stdout.close]
        # See redis_queue.keeper.__main__: it looks whether its worker is still there.
        worker.at_exit.append(lambda: SIM.at(SIM.now + entry.CHECK, self.kill))

    @property
    def returncode(self) -> int:
        return self.process.code

    def poll(self) -> int | None:
        return None if self.process.alive else self.process.code

    def kill(self) -> None:
        self.process.kill()

    def wait(self, timeout: float | None = None) -> int:
        until = SIM.now + (1e9 if timeout is None else timeout)
        while self.process.alive:
            if SIM.now >= until:
                raise subprocess.TimeoutExpired("keeper", timeout or 0)
            SIM.wait(0.01)
        return self.process.code


class _Std:
    """The standard input or output of the current process."""

    def __init__(self, place: int) -> None:
        self._place = place

    def fileno(self) -> int:
        assert SIM.current is not None
        end: End = SIM.current.process.stdio[self._place]
        return end.number


def _is_stopped(pid: int) -> bool:
    found = SIM.processes.get(pid)
    return found is not None and found.stopped


def install() -> None:
    """Let workers start simulated keepers."""
    keeper_process.subprocess = SimpleNamespace(  # type: ignore[assignment, attr-defined]
        Popen=Popen, PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired
    )
    loop.sys = SimpleNamespace(stdin=_Std(0), stdout=_Std(1))  # type: ignore[assignment, attr-defined]
    loop._is_stopped = _is_stopped
