"""The RabbitMQ, PostgreSQL and MariaDB of a test run: from the environment, on this host, or private ones."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import psycopg
import pymysql
from kombu.connection import Connection

from redis_queue.testing.server import ServerProcess

from .parts import SERVER_PATH, MissingPartError, require
from .ports import HOST, free_port
from .servers import PrivateServer

RABBITMQ_VARIABLE: Final = "REDIS_QUEUE_TEST_RABBITMQ"
RABBITMQ_DEFAULT: Final = "amqp://guest:guest@127.0.0.1:5672//"
POSTGRES_VARIABLE: Final = "REDIS_QUEUE_TEST_POSTGRES"
POSTGRES_DEFAULT: Final = "postgresql://postgres@127.0.0.1:5432/postgres"
MARIADB_VARIABLE: Final = "REDIS_QUEUE_TEST_MARIADB"
MARIADB_DEFAULT: Final = "mysql://root@127.0.0.1:3306/mysql"


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
def mariadb() -> Iterator[str]:
    """Yield the URL of a MariaDB or MySQL; raises MissingPartError if none runs and none can be started."""
    with _service(MARIADB_VARIABLE, MARIADB_DEFAULT, mariadb_answers, MariaServer) as url:
        yield url


@contextmanager
def shared() -> Iterator[dict[str, str]]:
    """Yield the environment variables through which all processes of a run share the servers."""
    with ExitStack() as stack:
        found = {}
        for variable, service in (
            (RABBITMQ_VARIABLE, rabbitmq),
            (POSTGRES_VARIABLE, postgres),
            (MARIADB_VARIABLE, mariadb),
        ):
            with suppress(MissingPartError):
                found[variable] = stack.enter_context(service())
        yield found


@contextmanager
def _service(
    variable: str,
    default: str,
    answers: Callable[[str], bool],
    private: Callable[[], RabbitServer | PostgresServer | MariaServer],
) -> Iterator[str]:
    if url := os.environ.get(variable):
        yield url
    elif answers(default):
        yield default
    else:
        with private() as server:
            yield server.url


START_TIMEOUT = 60.0


class RabbitServer(PrivateServer):
    """A node of RabbitMQ; durable messages survive `restart()`. With *management* it also serves the management API."""

    def __init__(self, *, management: bool = False) -> None:
        super().__init__()
        self.management_port = 0
        self._management = management

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}//"

    def _prepare(self) -> None:
        self.port, self._distribution_port = free_port(), free_port()
        # Replaces the configuration of the host, which may set another port.
        options = [f"listeners.tcp.local = {HOST}:{self.port}"]
        if self._management:
            self.management_port = free_port()
            options += [f"management.tcp.ip = {HOST}", f"management.tcp.port = {self.management_port}"]
            (self.directory / "plugins").write_text("[rabbitmq_management].\n")
        (self.directory / "rabbitmq.conf").write_text("".join(f"{option}\n" for option in options))
        (self.directory / "environment").touch()
        self.restart()

    def _launch(self) -> ServerProcess:
        return ServerProcess(
            [require("rabbitmq-server")],
            self.directory,
            partial(rabbitmq_answers, self.url),
            timeout=START_TIMEOUT,
            env={
                **os.environ,
                **rabbitmq_environment(self.directory, f"test{self.port}@localhost", self._distribution_port),
            },
        )


def rabbitmq_environment(directory: Path, node: str, distribution_port: int) -> dict[str, str]:
    """Return the environment of the node *node* of RabbitMQ, whose files are in *directory*."""
    return {
        "HOME": str(directory),
        "RABBITMQ_NODENAME": node,
        "RABBITMQ_DIST_PORT": str(distribution_port),
        "RABBITMQ_CONF_ENV_FILE": f"{directory}/environment",
        "RABBITMQ_CONFIG_FILE": f"{directory}/rabbitmq",
        "RABBITMQ_BASE": str(directory),
        "RABBITMQ_MNESIA_BASE": f"{directory}/data",
        "RABBITMQ_LOG_BASE": f"{directory}/logs",
        "RABBITMQ_PID_FILE": f"{directory}/pid",
        "RABBITMQ_ENABLED_PLUGINS_FILE": f"{directory}/plugins",
        "ERL_EPMD_ADDRESS": HOST,
    }


def rabbitmq_answers(url: str) -> bool:
    connect: Any = Connection  # kombu does not annotate it
    with connect(url, connect_timeout=3) as connection:
        try:
            connection.connect()
        except (OSError, *connection.connection_errors, *connection.channel_errors):
            return False
    return True


PACKAGE_USER: Final = "postgres"


class PostgresServer(PrivateServer):
    """A server of PostgreSQL."""

    @property
    def url(self) -> str:
        """The URL of its first database, without a password."""
        return f"postgresql://postgres@{HOST}:{self.port}/postgres"

    def kill(self, number: int = signal.SIGQUIT) -> None:
        """Shut the server down immediately, with its child processes."""
        super().kill(number)

    def _prepare(self) -> None:
        # PostgreSQL refuses to run as root.
        self._user: dict[str, Any] = {}
        if not os.geteuid():
            self._user = {"user": PACKAGE_USER, "group": PACKAGE_USER, "extra_groups": []}
            shutil.chown(self.directory, PACKAGE_USER, PACKAGE_USER)
        self.port = free_port()
        command = [self._program("initdb"), "-D", "data", "--username=postgres", "--auth=trust", "--no-sync"]
        subprocess.run(command, check=True, capture_output=True, cwd=self.directory, **self._user)
        self.restart()

    def _launch(self) -> ServerProcess:
        options = {
            "listen_addresses": HOST,
            "port": str(self.port),
            "unix_socket_directories": str(self.directory),
            "fsync": "off",
            "max_connections": "200",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        command = [self._program("postgres"), "-D", "data", *words]
        return ServerProcess(command, self.directory, partial(postgres_answers, self.url), **self._user)

    @staticmethod
    def _program(name: str) -> str:
        return str(Path(require("postgresql")).resolve().parent / name)


def postgres_answers(url: str) -> bool:
    """Return whether a PostgreSQL takes connections at *url*."""
    try:
        psycopg.connect(url, connect_timeout=3).close()
    except psycopg.OperationalError:
        return False
    return True


class MariaServer(PrivateServer):
    """A server of MariaDB."""

    @property
    def url(self) -> str:
        """The URL of its first database, without a password."""
        return f"mysql://root@{HOST}:{self.port}/mysql"

    def _prepare(self) -> None:
        self.port = free_port()
        self._options = ["--no-defaults", f"--datadir={self.directory}/data"]
        # Else it refuses to run as root.
        self._options += [] if os.geteuid() else ["--user=root"]
        command = [require("mariadb-server"), *self._options, "--auth-root-authentication-method=normal"]
        subprocess.run(command, check=True, capture_output=True, cwd=self.directory)
        self.restart()

    def _launch(self) -> ServerProcess:
        sockets = [f"--bind-address={HOST}", f"--port={self.port}", f"--socket={self.directory}/socket"]
        program = next(path for name in ("mariadbd", "mysqld") if (path := shutil.which(name, path=SERVER_PATH)))
        command = [program, *self._options, *sockets, f"--pid-file={self.directory}/pid", "--skip-name-resolve"]
        return ServerProcess(command, self.directory, partial(mariadb_answers, self.url), timeout=START_TIMEOUT)


def mariadb_answers(url: str) -> bool:
    """Return whether a MariaDB or MySQL takes connections at *url*."""
    try:
        mariadb_connection(url).close()
    except pymysql.OperationalError:
        return False
    return True


def mariadb_connection(url: str) -> Any:
    """Return a connection with automatic commits."""
    parts = urlsplit(url)
    return pymysql.connect(
        host=parts.hostname,
        port=parts.port or 3306,
        user=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        database=parts.path[1:],
        autocommit=True,
        connect_timeout=3,
    )
