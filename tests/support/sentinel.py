"""A Sentinel set as plain processes on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis
from redis.sentinel import Sentinel

from .ports import HOST
from .servers import RedisServer, Running, client_options, replication_of
from .wait import wait_until_settled

MASTER_NAME = "primary"
REPLICAS = 2
SENTINELS = 3
# Sentinel pings once a second, and one second later after each failover: less than two seconds causes false alarms.
DOWN_AFTER_MS = 2000
DATA_OPTIONS = ("--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0")
CONFIGURATION = """\
port {port}
bind {host}
protected-mode no
dir {directory}
unixsocket {socket}
sentinel monitor {name} {host} {primary_port} {quorum}
sentinel down-after-milliseconds {name} {down_after}
sentinel failover-timeout {name} 2000
sentinel parallel-syncs {name} {replicas}
"""


class SentinelServer(RedisServer):
    """A Sentinel process; it keeps its state over a restart."""

    def __init__(self, primary: RedisServer) -> None:
        super().__init__(kind=primary.kind, tcp=True)
        self._primary_port = primary.port
        self._configured_port = 0

    def _options(self) -> list[str]:
        # Sentinel keeps its state in its configuration file.
        if self._configured_port != self.port or not self._configuration.exists():
            self._configuration.write_text(self._first_configuration())
            self._configured_port = self.port
        return [str(self._configuration), "--sentinel"]

    @property
    def _configuration(self) -> Path:
        return self.directory / "sentinel.conf"

    def _first_configuration(self) -> str:
        return CONFIGURATION.format(
            port=self.port,
            host=HOST,
            directory=self.directory,
            socket=self.socket,
            name=MASTER_NAME,
            primary_port=self._primary_port,
            quorum=SENTINELS // 2 + 1,
            down_after=DOWN_AFTER_MS,
            replicas=REPLICAS,
        )


class SentinelSet(Running):
    """One primary, two replicas and three sentinels, which know all of them after `start()` or on entering `with`."""

    master_name = MASTER_NAME

    def __init__(self, *, kind: str | None = None) -> None:
        self._kind = kind
        self.servers: list[RedisServer] = []
        self.sentinels: list[SentinelServer] = []

    @property
    def nodes(self) -> list[tuple[str, int]]:
        """Host and port of the three sentinels."""
        return [(HOST, sentinel.port) for sentinel in self.sentinels]

    @property
    def url(self) -> str:
        """`redis+sentinel://host:port,host:port,host:port/0?service_name=...` with the three sentinels."""
        nodes = ",".join(f"{host}:{port}" for host, port in self.nodes)
        return f"redis+sentinel://{nodes}/0?service_name={self.master_name}"

    @property
    def primary(self) -> RedisServer:
        """The server that all running sentinels report as primary, dead or alive; waits while they disagree."""
        return wait_until_settled(self._named_primary, "the sentinels to agree on a primary")

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client of the current primary, with `client_options()`; the caller closes it."""
        client: redis.Redis = Sentinel(self.nodes, **client_options(**options)).master_for(self.master_name)
        return client

    def start(self) -> None:
        """Start the servers, then the sentinels; wait until all know each other and the replicas are in sync."""
        try:
            primary = self._start_server()
            for _ in range(REPLICAS):
                self._start_server("--replicaof", HOST, str(primary.port))
            self._wait_for_followers(primary)
            for _ in range(SENTINELS):
                self._start_sentinel(primary)
            self._wait_until_whole()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill all processes and remove their directories."""
        for server in (*self.sentinels, *self.servers):
            server.stop()
        self.sentinels, self.servers = [], []

    def fail_over(self) -> RedisServer:
        """Kill the primary; return the new one when all sentinels report it and the other replica follows it.

        Writes that the new primary had not received are lost, as in any failover. `heal()` restarts the killed server.
        """
        self.primary.kill()
        primary = self._wait_for_primary()
        self._wait_for_followers(primary)
        return primary

    def heal(self) -> None:
        """Resume and restart all processes; return when the set is healthy, with any server as primary."""
        for process in (*self.sentinels, *self.servers):
            if process.running:
                process.resume()
        for sentinel in self.sentinels:
            if not sentinel.running:
                sentinel.restart()
        primary = self._wait_for_primary()
        for server in self.servers:
            if not server.running:
                server.restart()
            if server is not primary and not _follows(server, primary):
                # The sentinels do the same, but only after ten seconds.
                with server.client() as client:
                    client.replicaof(HOST, primary.port)
        self._wait_until_whole()

    def flush(self) -> None:
        """Delete all keys of a healthy set."""
        with self.primary.client() as client:
            client.flushall()

    def _start_server(self, *options: str) -> RedisServer:
        server = RedisServer(*DATA_OPTIONS, *options, kind=self._kind, tcp=True)
        self.servers.append(server)
        server.start()
        return server

    def _start_sentinel(self, primary: RedisServer) -> None:
        sentinel = SentinelServer(primary)
        self.sentinels.append(sentinel)
        sentinel.start()

    def _named_primary(self) -> RedisServer | None:
        named = {_master(sentinel)["address"] for sentinel in self.sentinels if sentinel.answering}
        return next((server for server in self.servers if named == {f"{HOST}:{server.port}"}), None)

    def _live_primary(self) -> RedisServer | None:
        server = self._named_primary()
        return server if server and server.answering and replication_of(server)["role"] == "master" else None

    def _wait_for_primary(self) -> RedisServer:
        return wait_until_settled(self._live_primary, "a running primary")

    def _wait_for_followers(self, primary: RedisServer) -> None:
        replicas = [server for server in self.servers if server.answering and server is not primary]
        wait_until_settled(
            lambda: all(_follows(replica, primary) for replica in replicas), "the replicas to follow the primary"
        )

    def _wait_until_whole(self) -> None:
        wait_until_settled(
            self._is_whole, "sentinels that know all servers and each other, and replicas that follow the primary"
        )

    def _is_whole(self) -> bool:
        primary = self._live_primary()
        known = [[_master(sentinel)[name] for name in ("status", "slaves", "sentinels")] for sentinel in self.sentinels]
        return (
            primary is not None
            and all(row == ["ok", REPLICAS, SENTINELS] for row in known)
            and all(_follows(server, primary) for server in self.servers if server is not primary)
        )


def _master(sentinel: SentinelServer) -> dict[str, Any]:
    with sentinel.client() as client:
        known: dict[str, Any] = client.info("sentinel")["master0"]
    return known


def _follows(server: RedisServer, primary: RedisServer) -> bool:
    state = replication_of(server)
    return (state["role"], state.get("master_port"), state.get("master_link_status")) == ("slave", primary.port, "up")
