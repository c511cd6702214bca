"""ServerProcess: a Redis or Valkey server as a child process."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from redis_queue.testing.guard import DeathGuard

START_WITHIN: Final = 20.0
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

    It answers on its unix socket once the constructor returns. Raises ServerStartError.
    """

    def __init__(
        self, binary: Path, directory: Path, arguments: Sequence[str], *, environment: Mapping[str, str] | None = None
    ) -> None:
        self._binary = binary
        self._socket = socket_of(directory)
        self._log = directory / "server.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(  # noqa: S603 - the server of this machine
                [binary, *arguments],
                cwd=directory,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C at the terminal must not end it before the fixtures do
            )
        self._guard: DeathGuard | None = None
        try:
            self._guard = DeathGuard(self.process.pid, directory)
            self._wait()
        except BaseException:
            self.kill()
            raise

    @property
    def running(self) -> bool:
        """Whether the process exists."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End the server by SIGKILL; return when it is dead."""
        self.process.kill()
        if self._guard is not None:
            self._guard.dismiss()
        self.process.wait()

    def _wait(self) -> None:
        stop_at = time.monotonic() + START_WITHIN
        while not self._answers():
            if not self.running or time.monotonic() > stop_at:
                code = self.process.poll()
                ending = "does not answer" if code is None else f"ended with code {code}"
                raise ServerStartError(f"{self._binary} {ending}:\n{self._log.read_text(errors='replace')}")
            time.sleep(_PAUSE)

    def _answers(self) -> bool:
        # Without redis-py, whose version 5 leaks a socket for each unix socket that nobody listens on.
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(PROBE_TIMEOUT)
            try:
                probe.connect(str(self._socket))
                probe.sendall(b"PING\r\n")
                reply = probe.recv(64)
            except OSError:
                return False
        # A server without access answers, too: it refuses.
        return bool(reply) and not reply.startswith(b"-LOADING")
