"""Run processes instead of containers: the part of a Docker client that pytest-celery needs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from redis_queue.testing.server import DeathGuard
from tests.support.binaries import default_kind, server_binary
from tests.support.paths import ROOT
from tests.support.ports import HOST, free_port

REDIS_PORT = "6379/tcp"


class ProcessContainer:
    """A process that is started, killed and restarted like a container.

    Its directory lives as long as the container, so that data outlive a kill. `redis-server` listens on a free port
    instead of the one inside a container; `celery` runs in the repository.
    """

    def __init__(
        self,
        *,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        ports: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> None:
        self.id = uuid.uuid4().hex
        self.name = f"process-{self.id[:12]}"
        self._directory = Path(tempfile.mkdtemp(prefix=f"{self.name}-"))
        self._ports = {inside: free_port() for inside in ports or {}}
        self._command = self._in_place(command)
        self._environment = {**os.environ, **(environment or {}), "TMPDIR": str(self._directory)}
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: DeathGuard | None = None
        self._start()

    @property
    def status(self) -> str:
        return "running" if self._process is not None and self._process.poll() is None else "exited"

    @property
    def attrs(self) -> dict[str, Any]:
        """The part of `docker inspect` with the address for other containers and the ports."""
        port = self._ports.get(REDIS_PORT)
        published = {inside: [{"HostPort": str(outside)}] for inside, outside in self._ports.items()}
        return {
            "Config": {"Hostname": f"{HOST}:{port}" if port else HOST, "Env": []},
            "HostConfig": {"PortBindings": {}},
            "NetworkSettings": {"Networks": {"loopback": {"IPAddress": HOST}}, "Ports": published},
        }

    def reload(self) -> None:
        """No-op: all attributes are always current."""

    def logs(self, **_: Any) -> bytes:
        """Return all output since the container was created."""
        return self._log.read_bytes()

    def kill(self, signal: str | int | None = None) -> None:
        """Send a signal to the first process; SIGKILL ends all processes, as in a container."""
        assert self._process is not None
        number = _number(signal)
        if number != _number("SIGKILL"):
            self._process.send_signal(number)
            return
        self._end()

    def restart(self, timeout: float = 10, **_: Any) -> None:
        """Request the end of the process, kill it after *timeout* seconds, and start it again."""
        if self.status == "running" and self._process is not None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self._end()
        self._start()

    def remove(self, **_: Any) -> bool:
        """End the processes and remove the directory."""
        self._end()
        shutil.rmtree(self._directory, ignore_errors=True)
        return True

    def wait(self, **_: Any) -> dict[str, int]:
        """Return the exit code of a process that has ended."""
        return {"StatusCode": 0}

    def exec_run(self, command: str, **_: Any) -> tuple[int, bytes]:
        """Answer the only command that is run in a container: the list of listening ports."""
        assert command == "cat /proc/net/tcp /proc/net/tcp6", command
        table = b"".join(Path(file).read_bytes() for file in command.split()[1:])
        for inside, outside in self._ports.items():
            table = table.replace(b":%04X " % outside, b":%04X " % int(inside.split("/")[0]))
        return 0, table

    @property
    def _log(self) -> Path:
        return self._directory / "log"

    def _in_place(self, command: Sequence[str]) -> list[str]:
        program, *arguments = command
        if program == "redis-server":
            place = ["--port", str(self._ports[REDIS_PORT]), "--bind", HOST, "--dir", str(self._directory)]
            return [str(server_binary(default_kind())), *arguments, *place]
        assert program == "celery", program
        return [sys.executable, "-m", "celery", *arguments, "--schedule", str(self._directory / "schedule")]

    def _start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._guard = DeathGuard(self._process.pid, self._directory)

    def _end(self) -> None:
        if self._process is None or self._guard is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._guard.dismiss()
        self._process.wait(10)
        self._process = self._guard = None


class ProcessClient:
    """A stand-in for `docker.DockerClient`: runs containers and knows networks by name only."""

    def __init__(self) -> None:
        self.containers = SimpleNamespace(run=ProcessContainer)
        self.networks = SimpleNamespace(create=lambda name, **_: SimpleNamespace(name=name, remove=lambda: None))


def _number(name: str | int | None) -> int:
    if name is None:
        return signal.SIGKILL
    return name if isinstance(name, int) else signal.Signals[name]
