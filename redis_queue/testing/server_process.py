"""ServerProcess: a server as a child process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from redis_queue.testing.guard import DeathGuard

START_WITHIN: Final = 20.0
END_WITHIN: Final = 10.0
PROBE_TIMEOUT: Final = 0.25
_PAUSE: Final = 0.005


class ServerStartError(RuntimeError):
    """The server did not answer; the message holds its log."""


def socket_of(directory: Path) -> Path:
    """Return the unix socket of the server in *directory*."""
    return directory / "redis.sock"


def server_options(directory: Path) -> dict[str, str]:
    """Return the options of a server that listens on its unix socket only and saves nothing."""
    return {
        "--port": "0",
        "--bind": "127.0.0.1",
        "--unixsocket": str(socket_of(directory)),
        "--unixsocketperm": "700",
        "--dir": str(directory),
        "--daemonize": "no",
        "--save": "",
        "--appendonly": "no",
    }


class ServerProcess:
    """A server in *directory*; it ends with this process, even by SIGKILL, and then its directory is removed.

    It *answers* once the constructor returns. *options* are passed to Popen. Raises ServerStartError if it does not
    answer within *timeout* seconds.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        directory: Path,
        answers: Callable[[], bool],
        *,
        timeout: float = START_WITHIN,
        **options: Any,
    ) -> None:
        self._binary = command[0]
        self._log = directory / "server.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 - a server of this machine
                command,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C at the terminal must not end it before the fixtures do
                **options,
            )
        self._guard: DeathGuard | None = None
        try:
            self._guard = DeathGuard(self.process.pid, directory)
            self._wait(answers, timeout)
        except BaseException:
            self.kill()
            raise

    @property
    def running(self) -> bool:
        """Whether the process exists."""
        return self.process.poll() is None

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the server and its process group by a signal, if need be by SIGKILL; return when it is dead."""
        self._signal(number)
        if self._guard is not None:
            self._guard.dismiss()
        try:
            self.process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self.process.wait(END_WITHIN)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: a group of zombies refuses
            os.killpg(self.process.pid, number)

    def _wait(self, answers: Callable[[], bool], timeout: float) -> None:
        stop_at = time.monotonic() + timeout
        while not answers():
            if not self.running or time.monotonic() > stop_at:
                code = self.process.poll()
                ending = "does not answer" if code is None else f"ended with code {code}"
                raise ServerStartError(f"{self._binary} {ending}:\n{self._log.read_text(errors='replace')}")
            time.sleep(_PAUSE)


def start_redis(
    binary: Path, directory: Path, arguments: Sequence[str], *, environment: Mapping[str, str] | None = None
) -> ServerProcess:
    """Start a Redis or Valkey server; return when it answers on its unix socket. Raises ServerStartError."""
    answers = partial(_answers, socket_of(directory))
    return ServerProcess([binary, *arguments], directory, answers, env={**os.environ, **(environment or {})})


def _answers(path: Path) -> bool:
    # Without redis-py, whose version 5 leaks a socket for each unix socket that nobody listens on.
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(PROBE_TIMEOUT)
        try:
            probe.connect(str(path))
            probe.sendall(b"PING\r\n")
            reply = probe.recv(64)
        except OSError:
            return False
    # A server without access answers, too: it refuses.
    return bool(reply) and not reply.startswith(b"-LOADING")
