"""OwnServer: a Redis or Valkey server that only this test process uses."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from redis_queue.testing.binaries import find_server
from redis_queue.testing.guard import DeathGuard

if TYPE_CHECKING:
    from typing_extensions import Self

START_WITHIN: Final = 20.0
_PAUSE: Final = 0.005


class ServerStartError(RuntimeError):
    """The server did not answer; the message holds what it wrote."""


class OwnServer:
    """A server on a unix socket in a temporary directory, for the time of a ``with``, or from start to stop.

    It saves nothing, and is gone with its directory when it is stopped or this process dies, even by SIGKILL.
    Raises ServerNotFoundError where there is no binary, ServerStartError where it does not start.
    """

    def __init__(self) -> None:
        self._binary = find_server()
        self._directory = Path()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: DeathGuard | None = None

    @property
    def url(self) -> str:
        """The URL of its database."""
        return f"unix://{self.socket}?db=0"

    @property
    def socket(self) -> Path:
        """The unix socket."""
        return self._directory / "redis.sock"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start; return when it answers."""
        self._directory = Path(tempfile.mkdtemp(prefix="redis-queue-"))
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and remove its directory; harmless where it does not run."""
        process, guard, self._process, self._guard = self._process, self._guard, None, None
        if process is not None:
            process.kill()
            if guard is not None:
                guard.dismiss()
            process.wait()
        if self._directory != Path():
            shutil.rmtree(self._directory, ignore_errors=True)

    def _launch(self) -> None:
        options = {
            "--port": "0",
            "--unixsocket": str(self.socket),
            "--unixsocketperm": "700",
            "--dir": str(self._directory),
            "--daemonize": "no",
            "--save": "",
            "--appendonly": "no",
        }
        with self._log.open("wb") as log:
            process = self._process = subprocess.Popen(  # noqa: S603 - the server of this machine
                [self._binary, *(word for option in options.items() for word in option)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C at the terminal must not end it before the fixtures do
            )
        self._guard = DeathGuard(process.pid, self._directory)
        stop_at = time.monotonic() + START_WITHIN
        while not self._listens():
            if process.poll() is not None or time.monotonic() > stop_at:
                raise ServerStartError(f"{self._binary} does not answer:\n{self._log.read_text(errors='replace')}")
            time.sleep(_PAUSE)

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    @property
    def _log(self) -> Path:
        return self._directory / "server.log"
