"""Start `celery` by a fork of a process that has imported it: an import takes longer than most tests of workers.

``python -m tests.support.celery.forker FD`` reads one request a line from the socket FD, as JSON: arguments,
environment and log file. It forks, and the child goes on as ``python -m celery`` does, in a session of its own. The
keeper of its leases is a fork, too. The answers are ``PID`` once the child has its session, and later ``PID CODE`` once
it has ended. The forker ends with its socket.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import redis.utils
from celery.concurrency.asynpool import AsynPool
from celery.utils.imports import load_extension_class_names

from redis_queue.celery.leases import keeper_process
from redis_queue.keeper.__main__ import main as keep
from tests.support.paths import ROOT

IMPORTED = (
    "billiard.sharedctypes",
    "celery.app.control",
    "celery.apps.worker",
    "celery.backends.filesystem",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.strategy",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "redis_queue.celery",
    "redis_queue.keeper.loop",
)
READ_ON_IMPORT = ("AUTOSCALE", "C_", "CELERY", "KOMBU", "LANG", "LC_", "LD_", "PYTHON", "TZ")
"""Variables that Python, its libraries or Celery read when they start: with them, a process starts afresh."""
PATCHED = ("eventlet", "gevent")
"""Pools that replace modules before anything is imported."""
KEEPER = "keeper"
"""Name of the process of a keeper that is a fork."""
LOOK_FOR_DEAD = 0.5
"""Interval in seconds in which a pool looks for processes that ended."""


class Forked:
    """A process that a forker has started, with what is needed of `subprocess.Popen`."""

    def __init__(self, forker: Forker, pid: int) -> None:
        self._forker = forker
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if self.returncode is None:
            self.returncode = self._forker.code(self.pid, 0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code; raise TimeoutExpired."""
        if self.returncode is None:
            self.returncode = self._forker.code(self.pid, timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("celery", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Forker:
    """The forker of this process; it starts with the first process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        # A test may change the environment, even the first one that starts a process.
        self._inherited = _inherited()
        self._answers = b""
        self._codes: dict[int, int] = {}
        self._started: list[int] = []

    def start(self, arguments: Sequence[str], environment: Mapping[str, str], log: Path) -> Forked | None:
        """Start `celery`, or return None if it must start afresh."""
        if self._socket is None:
            self._launch()
        own = [name for name in environment if name.startswith(READ_ON_IMPORT)]
        if own or _inherited() != self._inherited or any(pool in arguments for pool in PATCHED):
            return None
        request = {"arguments": arguments, "environment": {**os.environ, **environment}, "log": str(log)}
        assert self._socket
        self._socket.sendall(json.dumps(request).encode() + b"\n")
        while not self._started:
            self._read(None)
        return Forked(self, self._started.pop())

    def code(self, pid: int, timeout: float | None) -> int | None:
        """Return the exit code of a process, or None after *timeout* seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while pid not in self._codes:
            left = None if end is None else max(0.0, end - time.monotonic())
            if not self._read(left):
                return None
        return self._codes[pid]

    def _launch(self) -> None:
        self._socket, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.celery.forker", str(other.fileno())],
                cwd=ROOT,
                env=self._inherited,
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                start_new_session=True,  # a Ctrl-C at the terminal is for the tests only
            )
        atexit.register(self._end)

    def _end(self) -> None:
        if self._socket and self._process:
            self._socket.close()
            self._process.wait(10)

    def _read(self, timeout: float | None) -> bool:
        assert self._socket
        if not select.select([self._socket], [], [], timeout)[0]:
            return False
        received = self._socket.recv(65536)
        assert received, "the forker has ended"
        *lines, self._answers = (self._answers + received).split(b"\n")
        for line in lines:
            pid, *code = map(int, line.split())
            if code:
                self._codes[pid] = code[0]
            else:
                self._started.append(pid)
        return True


def _inherited() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def serve(requests: socket.socket) -> dict[str, Any]:
    """Start processes until the socket is closed; return the request in each process that was started."""
    woken, wake = os.pipe()
    inputs: list[Any] = [requests, woken]
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    received = b""
    while True:
        ready, _, _ = select.select(inputs, [], [])
        if woken in ready:
            os.read(woken, 4096)
            _reap(requests)
        if requests not in ready:
            continue
        data = requests.recv(65536)
        if not data:
            os._exit(0)
        *lines, received = (received + data).split(b"\n")
        for line in lines:
            if os.fork() == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(woken)
                os.close(wake)
                os.setsid()
                requests.sendall(b"%d\n" % os.getpid())
                requests.close()
                found: dict[str, Any] = json.loads(line)
                return found


def _reap(answers: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        answers.sendall(b"%d %d\n" % (pid, os.waitstatus_to_exitcode(status)))


def fork_keeper(command: Sequence[str], *, pass_fds: Sequence[int], **options: Any) -> subprocess.Popen[bytes]:
    """Start a keeper that imports nothing, with what a new process would have of this worker."""

    def be_keeper() -> None:
        # Of what threads of the worker may have locked, it uses nothing. And nothing of the worker is collected:
        # that would close files with the numbers of the keeper's own.
        gc.freeze()
        (board,) = pass_fds
        os.closerange(3, board)
        os.closerange(board + 1, os.sysconf("SC_OPEN_MAX"))
        for number in filter(lambda number: callable(signal.getsignal(number)), signal.valid_signals()):
            signal.signal(number, signal.SIG_DFL)
        sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
        Path("/proc/self/comm").write_text(KEEPER)
        keep(command[-2:])
        os._exit(0)

    return subprocess.Popen(command, pass_fds=pass_fds, preexec_fn=be_keeper, **options)  # noqa: PLW1509


def main() -> None:
    """Import, and start processes; in each of them, be `celery`."""
    for name in IMPORTED:
        __import__(name)
    # A pool often misses the end of a process, and looks for it every 5 s only. Many tests kill processes.
    AsynPool.timers = property(lambda pool: {pool.maintain_pool: LOOK_FOR_DEAD})
    # Both read the metadata of packages.
    load_extension_class_names("celery.result_backends")
    redis.utils.get_lib_version = partial(str, redis.utils.get_lib_version())
    vars(keeper_process)["subprocess"] = SimpleNamespace(**{**vars(subprocess), "Popen": fork_keeper})
    # The collectors of the workers would look through all of it again and again.
    gc.collect()
    gc.freeze()
    request = serve(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(request["environment"])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    sys.argv = ["celery", *request["arguments"]]
    runpy.run_module("celery", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
