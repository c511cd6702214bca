"""A private RabbitMQ node as a child process, which tests kill and restart."""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from kombu.connection import Connection

from redis_queue.testing.server import ServerProcess

from .parts import require
from .ports import HOST, free_port
from .running import Running

START_TIMEOUT = 60.0


class RabbitServer(Running):
    """A node in its own temporary directory, on a free port; port and durable messages survive `restart()`.

    With *management* it also serves the management API.
    """

    def __init__(self, *, management: bool = False) -> None:
        self.port = self.management_port = 0
        self._management = management
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        """The URL for kombu."""
        return f"amqp://guest:guest@{HOST}:{self.port}//"

    def start(self) -> None:
        """Start with an empty directory; return when the node accepts connections."""
        self._directory = Path(tempfile.mkdtemp(prefix="rabbit-"))
        self.port, self._distribution_port = free_port(), free_port()
        # Replaces the configuration of the host, which may set another port.
        options = [f"listeners.tcp.local = {HOST}:{self.port}"]
        if self._management:
            self.management_port = free_port()
            options += [f"management.tcp.ip = {HOST}", f"management.tcp.port = {self.management_port}"]
            (self._directory / "plugins").write_text("[rabbitmq_management].\n")
        (self._directory / "rabbitmq.conf").write_text("".join(f"{option}\n" for option in options))
        (self._directory / "environment").touch()
        try:
            self._launch()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill the node and remove its directory."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def kill(self) -> None:
        """Kill the node with SIGKILL."""
        if self._process is not None:
            self._process.kill()
        self._process = None

    def restart(self) -> None:
        """Kill the node and start it with the same directory and port."""
        self.kill()
        self._launch()

    def _launch(self) -> None:
        self._process = ServerProcess(
            [require("rabbitmq-server")],
            self._directory,
            partial(rabbitmq_answers, self.url),
            timeout=START_TIMEOUT,
            env={**os.environ, **self._environment()},
        )

    def _environment(self) -> dict[str, str]:
        place = str(self._directory)
        return {
            "HOME": place,
            "RABBITMQ_NODENAME": f"test{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_CONF_ENV_FILE": f"{place}/environment",
            "RABBITMQ_CONFIG_FILE": f"{place}/rabbitmq",
            "RABBITMQ_BASE": place,
            "RABBITMQ_MNESIA_BASE": f"{place}/data",
            "RABBITMQ_LOG_BASE": f"{place}/logs",
            "RABBITMQ_PID_FILE": f"{place}/pid",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{place}/plugins",
            "ERL_EPMD_ADDRESS": HOST,
        }


def rabbitmq_answers(url: str) -> bool:
    """Tell whether a RabbitMQ takes connections at *url*."""
    connect: Any = Connection  # kombu does not annotate it
    with connect(url, connect_timeout=3) as connection:
        try:
            connection.connect()
        except (OSError, *connection.connection_errors, *connection.channel_errors):
            return False
    return True
