"""Private servers as child processes: Redis or Valkey here, others in `services`."""

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from typing_extensions import Self

from redis_queue.testing.server import ServerProcess, ServerStartError, server_options, socket_of, start_redis

from .binaries import default_kind, server_binary
from .parts import require
from .ports import HOST, free_port
from .wait import wait_until

PORT_ATTEMPTS = 10
NOT_RUNNING = "the server does not run"


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


class PrivateServer(Running):
    """A server as a child process in its own temporary directory, on a free port.

    It answers once `start()` or `with` has returned, and is removed with its directory by `stop()`, the end of `with`
    or the death of this process.
    """

    def __init__(self) -> None:
        self.port = 0
        self._directory: Path | None = None
        self._process: ServerProcess | None = None

    @property
    def directory(self) -> Path:
        """The server's own directory, available after the first start."""
        if self._directory is None:
            raise RuntimeError(NOT_RUNNING)
        return self._directory

    @property
    def process(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError(NOT_RUNNING)
        return self._process

    def start(self) -> None:
        """Start with an empty directory and a new port; return when the server answers."""
        self._directory = Path(tempfile.mkdtemp(prefix="server-"))
        try:
            self._prepare()
        except BaseException:
            self.stop()
            raise

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill the server and wait for its end; it keeps its directory and port."""
        if self._process is not None:
            self._process.kill(number)
        self._process = None

    def stop(self) -> None:
        """Kill the server and remove its directory."""
        self.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def restart(self) -> None:
        """Kill the server if it runs and start it with the same directory and port."""
        self.kill()
        self._process = self._launch()

    def _prepare(self) -> None:
        """Fill the directory, choose a port and start the server."""
        raise NotImplementedError

    def _launch(self) -> ServerProcess:
        raise NotImplementedError


class RedisServer(PrivateServer):
    """A Redis or Valkey on a unix socket and optionally a TCP port of 127.0.0.1.

    Nothing is saved to disk unless `aof` names an fsync policy (`always`, `everysec`, `no`): then `restart()` loads the
    data. `args` are further server options and override those set here. `tls` implies a TCP port, which accepts TLS
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
        super().__init__()
        if tls and kind is None:
            require("redis-server")  # those of the wheels are built without TLS
        self.kind = kind or default_kind()
        self._args = args
        self._tcp = tcp or tls
        self._password = password
        self._tls = tls
        self._aof = aof
        self._environment = dict(environment or {})
        self._certificates: Certificates | None = None
        self._paused = False

    @property
    def socket(self) -> Path:
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
        return self.process.process.pid

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

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Kill the server and wait for its end; it keeps its directory, port and socket path."""
        super().kill(number)
        self._paused = False

    def pause(self) -> None:
        """Freeze the server: connections stay open without answers."""
        self.process.process.send_signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Let a frozen server continue with pending requests; no-op if it is not frozen."""
        self.process.process.send_signal(signal.SIGCONT)
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

    def _prepare(self) -> None:
        if self._tls:
            self._certificates = make_certificates(self.directory)
        for _ in range(PORT_ATTEMPTS):
            self.port = free_port() if self._tcp else 0
            try:
                self.restart()
            except ServerStartError as error:
                if "Address already in use" not in str(error):
                    raise
            else:
                return
        msg = f"{PORT_ATTEMPTS} ports in a row were taken"
        raise ServerStartError(msg)

    def _launch(self) -> ServerProcess:
        binary = server_binary(self.kind)
        return start_redis(binary, self.directory, self._options(), environment=self._environment)


def client_options(**options: Any) -> dict[str, Any]:
    """Return redis-py options with short timeouts and without retries, overridden by `options`."""
    return {"retry": Retry(NoBackoff(), 0), "socket_timeout": 5.0, **options}


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
