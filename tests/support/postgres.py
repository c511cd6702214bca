"""A private PostgreSQL server as a child process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg

from redis_queue.testing.server import ServerProcess

from .parts import require
from .ports import HOST, free_port
from .running import Running

PACKAGE_USER: Final = "postgres"


class PostgresServer(Running):
    """A server in its own temporary directory, on a free port; nothing remains after `with`."""

    def __init__(self) -> None:
        self.port = 0
        self._process: ServerProcess | None = None

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
        initialize = [str(programs / "initdb"), "-D", data, "--username=postgres", "--auth=trust", "--no-sync"]
        subprocess.run(initialize, check=True, capture_output=True, cwd=self._directory, **user)
        options = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": str(self._directory),
            "fsync": "off",
            "max_connections": "200",
        }
        command: list[str | Path] = [programs / "postgres", "-D", data]
        command += [f"--{name}={value}" for name, value in options.items()]
        self._process = ServerProcess(command, self._directory, partial(postgres_answers, self.url), **user)

    def stop(self) -> None:
        """Stop the server and remove its directory."""
        if self._process is None:
            return
        self._process.kill(signal.SIGQUIT)  # immediate shutdown, with its child processes
        self._process = None
        shutil.rmtree(self._directory, ignore_errors=True)


def postgres_answers(url: str) -> bool:
    """Tell whether a PostgreSQL takes connections at *url*."""
    try:
        psycopg.connect(url, connect_timeout=3).close()
    except psycopg.OperationalError:
        return False
    return True
