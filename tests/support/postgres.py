"""A private PostgreSQL server as a child process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

import psycopg

from redis_queue.testing.guard import DeathGuard

from .parts import require
from .ports import HOST, free_port
from .running import Running
from .wait import wait_until

PACKAGE_USER: Final = "postgres"


class PostgresServer(Running):
    """A server in its own temporary directory, on a free port; nothing remains after `with`."""

    def __init__(self) -> None:
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: DeathGuard | None = None

    @property
    def url(self) -> str:
        """The URL of its first database, without a password."""
        return f"postgresql://postgres@{HOST}:{self.port}/postgres"

    def start(self) -> None:
        """Start with an empty directory; return when the server accepts connections."""
        programs = Path(require("postgresql")).resolve().parent
        self._directory = Path(tempfile.mkdtemp(prefix="postgres-"))
        self.port = free_port()
        # PostgreSQL refuses to run as root.
        user: dict[str, Any] = {} if os.geteuid() else {"user": PACKAGE_USER, "group": PACKAGE_USER, "extra_groups": []}
        if user:
            shutil.chown(self._directory, PACKAGE_USER, PACKAGE_USER)
        data = str(self._directory / "data")
        initialize: list[str | Path] = [
            programs / "initdb",
            "-D",
            data,
            "--username=postgres",
            "--auth=trust",
            "--no-sync",
        ]
        subprocess.run(initialize, check=True, capture_output=True, cwd=self._directory, **user)
        options = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": str(self._directory),
            "fsync": "off",
            "max_connections": "200",
        }
        with (self._directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [programs / "postgres", "-D", data, *(f"--{name}={value}" for name, value in options.items())],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **user,
            )
        self._guard = DeathGuard(self._process.pid, self._directory)
        wait_until(self._answers, description=f"PostgreSQL to answer on port {self.port}")

    def stop(self) -> None:
        """Stop the server and remove its directory."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGQUIT)  # immediate shutdown, with its child processes
        if self._guard is not None:
            self._guard.dismiss()
        self._process.wait()
        self._process = self._guard = None
        shutil.rmtree(self._directory, ignore_errors=True)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended:\n{(self._directory / 'log').read_text(errors='replace')[-2000:]}")
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True
