"""The RabbitMQ and PostgreSQL of a test run: from the environment, on this host, or private ones."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
from kombu.connection import Connection

from redis_queue.testing.server import ServerProcess

from .parts import MissingPartError, require
from .ports import HOST, free_port
from .servers import Running

RABBITMQ_VARIABLE: Final = "REDIS_QUEUE_TEST_RABBITMQ"
RABBITMQ_DEFAULT: Final = "amqp://guest:guest@127.0.0.1:5672//"
POSTGRES_VARIABLE: Final = "REDIS_QUEUE_TEST_POSTGRES"
POSTGRES_DEFAULT: Final = "postgresql://postgres@127.0.0.1:5432/postgres"


@contextmanager
def rabbitmq() -> Iterator[str]:
    """Yield the URL of a RabbitMQ; raises MissingPartError if none runs and none can be started."""
    with _service(RABBITMQ_VARIABLE, RABBITMQ_DEFAULT, rabbitmq_answers, RabbitServer) as url:
        yield url


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the URL of a PostgreSQL; raises MissingPartError if none runs and none can be started."""
    with _service(POSTGRES_VARIABLE, POSTGRES_DEFAULT, postgres_answers, PostgresServer) as url:
        yield url


@contextmanager
def shared() -> Iterator[dict[str, str]]:
    """Yield the environment variables through which all processes of a run share the servers."""
    with ExitStack() as stack:
        found = {}
        for variable, service in ((RABBITMQ_VARIABLE, rabbitmq), (POSTGRES_VARIABLE, postgres)):
            with suppress(MissingPartError):
                found[variable] = stack.enter_context(service())
        yield found


@contextmanager
def _service(
    variable: str, default: str, answers: Callable[[str], bool], private: Callable[[], RabbitServer | PostgresServer]
) -> Iterator[str]:
    if url := os.environ.get(variable):
        yield url
    elif answers(default):
        yield default
    else:
        with private() as server:
            yield server.url


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
