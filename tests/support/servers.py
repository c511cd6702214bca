"""A private Redis or Valkey server as a child process."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from redis_queue.testing.server import (
    ServerProcess,
    ServerStartError,
    server_options,
    socket_of,
    start_redis,
)

from .binaries import default_kind, server_binary
from .parts import require
from .ports import HOST, free_port
from .wait import wait_until

PORT_ATTEMPTS = 10


class Running:
    """Calls `start()` on entering `with` and `stop()` on leaving it."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start; return when it is ready."""
        raise NotImplementedError

    def stop(self) -> None:
        """Stop, in any state."""
        raise NotImplementedError


class RedisServer(Running):
    """A server in its own temporary directory, on a unix socket and optionally a TCP port of 127.0.0.1.

    It answers once `start()` or `with` has returned, and is removed with its directory by `stop()`, the end of `with`
    or the death of this process. Nothing is saved to disk unless `aof` names an fsync policy (`always`, `everysec`,
    `no`). `args` are further server options and override those set here. `tls` implies a TCP port, which accepts TLS
    only, and needs a server built with TLS. `kind` is one of `server_binary()`; the environment sets its default.
    `environment` extends that of this process.
    """

    def __init__(
        self,
        *args: str,
        kind: str | None = None,
        tcp: bool = False,
        password: str | None = None,
        tls: bool = False,
        aof: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if tls and kind is None:
            require("redis-server")  # those of the wheels are built without TLS
        self.kind = kind or default_kind()
        self.port = 0
        self._args = args
        self._directory: Path | None = None
        self._tcp = tcp or tls
        self._password = password
        self._tls = tls
        self._aof = aof
        self._environment = dict(environment or {})
        self._certificates: Certificates | None = None
        self._paused = False
        self._process: ServerProcess | None = None

    @property
    def directory(self) -> Path:
        """The server's own directory, available after the first start."""
        if self._directory is None:
            raise _not_running()
        return self._directory

    @property
    def socket(self) -> Path:
        """Path of the unix socket."""
        return socket_of(self.directory)

    @property
    def address(self) -> tuple[str, int] | str:
        """Host and port, or the path of the unix socket if there is no port."""
        return (HOST, self.port) if self._tcp else str(self.socket)

    @property
    def url(self) -> str:
        """URL for `redis.Redis.from_url()`, with password and certificate authority."""
        user = f":{quote(self._password, safe='')}@" if self._password else ""
        if not self._tcp:
            return f"unix://{user}{self.socket}?db=0"
        if self._certificates:
            return f"rediss://{user}{HOST}:{self.port}/0?ssl_ca_certs={quote(str(self._certificates.authority))}"
        return f"redis://{user}{HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        return self._running_process().process.pid

    @property
    def running(self) -> bool:
        """Whether the process of the server exists; true for a paused one."""
        return self._process is not None and self._process.running

    @property
    def answering(self) -> bool:
        """Whether the server runs and is not paused."""
        return self.running and not self._paused

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client with `client_options()`; the caller closes it."""
        return redis.Redis.from_url(self.url, **client_options(**options))

    def start(self) -> None:
        """Start with an empty directory and a new port; return when the server answers."""
        self._directory = Path(tempfile.mkdtemp(prefix="redis-"))
        try:
            if self._tls:
                self._certificates = make_certificates(self.directory)
            self._launch_on_free_port()
        except BaseException:
            self.stop()
            raise

    def kill(self) -> None:
        """Kill the server with SIGKILL and wait for its end; it keeps its directory, port and socket path."""
        if self._process is not None:
            self._process.kill()
        self._process = None
        self._paused = False

    def stop(self) -> None:
        """Kill the server and remove its directory."""
        self.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def restart(self) -> None:
        """Kill the server if it runs and start it with the same directory and port; with `aof` its data is loaded."""
        self.kill()
        self._launch()

    def pause(self) -> None:
        """Freeze the server: connections stay open without answers."""
        self._running_process().process.send_signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Let a frozen server continue with pending requests; no-op if it is not frozen."""
        self._running_process().process.send_signal(signal.SIGCONT)
        self._paused = False

    def _options(self) -> list[str]:
        listen = {"--tls-port": str(self.port), "--port": "0"} if self._tls else {"--port": str(self.port)}
        options = {**server_options(self.directory), **listen}
        if self._aof:
            options |= {"--appendonly": "yes", "--appendfsync": self._aof}
        if self._password:
            options["--requirepass"] = self._password
        if self._certificates:
            options["--tls-cert-file"] = str(self._certificates.certificate)
            options["--tls-key-file"] = str(self._certificates.key)
            options["--tls-ca-cert-file"] = str(self._certificates.authority)
            options["--tls-auth-clients"] = "no"
        return [word for option in options.items() for word in option] + list(self._args)

    def _launch_on_free_port(self) -> None:
        for _ in range(PORT_ATTEMPTS):
            self.port = free_port() if self._tcp else 0
            try:
                self._launch()
            except ServerStartError as error:
                if "Address already in use" not in str(error):
                    raise
            else:
                return
        msg = f"{PORT_ATTEMPTS} ports in a row were taken"
        raise ServerStartError(msg)

    def _launch(self) -> None:
        binary = server_binary(self.kind)
        self._process = start_redis(binary, self.directory, self._options(), environment=self._environment)

    def _running_process(self) -> ServerProcess:
        if self._process is None:
            raise _not_running()
        return self._process


def client_options(**options: Any) -> dict[str, Any]:
    """Return redis-py options with short timeouts and without retries, overridden by `options`."""
    return {"retry": Retry(NoBackoff(), 0), "socket_timeout": 5.0, **options}


def _not_running() -> RuntimeError:
    return RuntimeError("the server does not run")


if TYPE_CHECKING:
    from typing_extensions import Self


CONFIGURATION = """\
[req]
distinguished_name = name
x509_extensions = authority
prompt = no
[name]
CN = redis_queue tests
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""
NEW_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config tls.cnf"
COMMANDS = (
    f"req -x509 {NEW_KEY} -keyout ca.key -out ca.crt -days 30",
    f"req -new {NEW_KEY} -keyout server.key -out server.csr",
    "x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -extfile tls.cnf -extensions server"
    " -out server.crt -days 30",
)


@dataclass(frozen=True)
class Certificates:
    """Paths of a loopback certificate and of the certificate of its authority."""

    authority: Path
    certificate: Path
    key: Path


def make_certificates(directory: Path) -> Certificates:
    """Create an authority and a certificate for 127.0.0.1 and localhost in `directory`; raises MissingPartError."""
    openssl = require("openssl")
    (directory / "tls.cnf").write_text(CONFIGURATION)
    for command in COMMANDS:
        subprocess.run([openssl, *command.split()], cwd=directory, check=True, capture_output=True, timeout=60)
    return Certificates(directory / "ca.crt", directory / "server.crt", directory / "server.key")


def replication_of(server: RedisServer) -> dict[str, Any]:
    """Return `INFO replication` of *server*."""
    with server.client() as client:
        state: dict[str, Any] = client.info("replication")
    return state


def wait_until_replicated(*primaries: RedisServer, replicas: int, timeout: float = 30.0) -> None:
    """Wait until *replicas* replicas of each of *primaries* have received all writes made before the call.

    Raises AssertionError after *timeout* seconds.
    """
    # Equal offsets may never be seen: a replica reports its offset once a second, and in a Sentinel set the messages of
    # the sentinels are replicated too, at such times that one of them always follows the report of some replica.
    offsets = {primary: replication_of(primary)["master_repl_offset"] for primary in primaries}
    wait_until(
        lambda: all(_replicas_at(primary, offset) == replicas for primary, offset in offsets.items()),
        timeout=timeout,
        description="the replicas to be in sync",
    )


def _replicas_at(primary: RedisServer, offset: int) -> int:
    state = replication_of(primary)
    known = [state.get(f"slave{number}", {}) for number in range(state["connected_slaves"])]
    return sum(replica.get("state") == "online" and replica["offset"] >= offset for replica in known)
