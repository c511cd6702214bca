"""Servers for tests: one that only this process uses, or an existing database (``REDIS_QUEUE_TEST_URL``)."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from redis_queue.basics.times import monotonic
from redis_queue.errors import ConfigurationError
from redis_queue.store.connection import connect
from redis_queue.store.urls import scheme_of
from redis_queue.testing.binaries import find_server

if TYPE_CHECKING:
    from typing_extensions import Self


SCRIPT = 'read -r _ || { kill -KILL "$1"; rm -rf "$2"; }'

START_WITHIN: Final = 20.0
END_WITHIN: Final = 10.0
PROBE_TIMEOUT: Final = 0.25
_PAUSE: Final = 0.005

URL_VARIABLE: Final = "REDIS_QUEUE_TEST_URL"
FLUSH_VARIABLE: Final = "REDIS_QUEUE_TEST_FLUSH"
_SCHEMES: Final = ("redis", "rediss", "unix")


class DeathGuard:
    """End a process and remove its directory if this process dies first, even by SIGKILL.

    A shell waits for the end of a pipe that only this process holds open. PR_SET_PDEATHSIG would need a preexec_fn,
    which may deadlock in a process with threads; it exists on Linux only and already fires when the *thread* that
    started the server ends. A child that was forked without exec holds the pipe, too: the guard then also waits for
    its end.
    """

    def __init__(self, pid: int, directory: Path) -> None:
        self._shell = subprocess.Popen(  # noqa: S603 - nothing in it comes from outside
            ["/bin/sh", "-c", SCRIPT, "guard", str(pid), str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal is for the tests only
        )

    def dismiss(self) -> None:
        """End the guard only. Call it before the process is reaped, because then its pid may be reused."""
        self._shell.communicate(b"\n")


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
        stop_at = monotonic() + timeout
        while not answers():
            if not self.running or monotonic() > stop_at:
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


class OwnServer:
    """A server on a unix socket in a temporary directory, for a ``with`` block, or from start to stop.

    It saves nothing. It is gone with its directory when it is stopped or when this process dies, even by SIGKILL.
    *options* are further options of the server, such as ``"--port", "6390"``. Raises ServerNotFoundError without a
    server binary, ServerStartError if the server does not start.
    """

    def __init__(self, *options: str) -> None:
        self._binary = find_server()
        self._options = options
        self._directory = Path()
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """The URL of its database."""
        return f"unix://{self.socket}?db=0"

    @property
    def socket(self) -> Path:
        """The unix socket."""
        return socket_of(self._directory)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server; return when it answers."""
        self._directory = Path(tempfile.mkdtemp(prefix="redis-queue-"))
        options = [word for option in server_options(self._directory).items() for word in option]
        try:
            self._process = start_redis(self._binary, self._directory, [*options, *self._options])
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and remove its directory; no-op if it does not run."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
        if self._directory != Path():
            shutil.rmtree(self._directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class ExternalServer:
    """An existing database; tests empty it again and again."""

    url: str


def external_server(worker: str = "") -> ExternalServer | None:
    """Return the database of REDIS_QUEUE_TEST_URL, or None if that is not set.

    The pytest-xdist *worker* ``gw3`` gets the database with the number + 3. Raises ConfigurationError for a database
    that is not empty, unless REDIS_QUEUE_TEST_FLUSH is 1, and the errors of :func:`redis_queue.connect`.
    """
    url = os.environ.get(URL_VARIABLE)
    if not url:
        return None
    if scheme_of(url) not in _SCHEMES:
        raise ConfigurationError(f"{URL_VARIABLE}: scheme {scheme_of(url)!r}: must be one of {', '.join(_SCHEMES)}")
    url, number = _shifted(url, int(worker.removeprefix("gw") or 0))
    with connect(url) as client:
        keys = client.dbsize()
    if keys and os.environ.get(FLUSH_VARIABLE) != "1":
        raise ConfigurationError(
            f"{URL_VARIABLE}: database {number} holds {keys} keys, which tests would delete: use an empty one, "
            f"or set {FLUSH_VARIABLE}=1"
        )
    return ExternalServer(url)


def _shifted(url: str, steps: int) -> tuple[str, int]:
    """Return the URL of the database whose number is *steps* higher, and that number."""
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    path = "" if parts.scheme == "unix" else parts.path.strip("/")
    try:
        number = int(query.get("db") or path or 0) + steps
    except ValueError:
        raise ConfigurationError(f"{URL_VARIABLE}: the number of the database is not a number") from None
    # For redis-py db= in the query wins over the path.
    return f"{url.partition('?')[0]}?{urlencode({**query, 'db': number})}", number
