"""A Redis Cluster as plain processes on loopback."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import redis
from redis.cluster import ClusterNode

from .ports import HOST
from .servers import RedisServer, Running, client_options
from .wait import wait_until_settled

PRIMARIES = 3
SLOTS = 16384
OPTIONS = (
    *("--cluster-enabled", "yes"),
    *("--cluster-node-timeout", "1500"),
    *("--cluster-replica-validity-factor", "0"),  # a replica may take over however long it was disconnected
    *("--repl-diskless-sync", "yes"),
    *("--repl-diskless-sync-delay", "0"),
)


class RedisCluster(Running):
    """Three primaries with one replica each, ready for writes after `start()` or on entering `with`."""

    def __init__(self, *, kind: str | None = None) -> None:
        self.servers = [RedisServer(*OPTIONS, kind=kind, tcp=True) for _ in range(2 * PRIMARIES)]

    @property
    def nodes(self) -> list[tuple[str, int]]:
        """Host and port of all six nodes."""
        return [(HOST, server.port) for server in self.servers]

    @property
    def url(self) -> str:
        """`redis+cluster://host:port,host:port,.../` with all six nodes."""
        return f"redis+cluster://{','.join(f'{host}:{port}' for host, port in self.nodes)}/"

    def client(self, **options: Any) -> redis.RedisCluster:
        """Return a new client with `client_options()`; the caller closes it. redis-py 5 ignores "no retries"."""
        startup = [ClusterNode(host, port) for host, port in self.nodes]
        return redis.RedisCluster(startup_nodes=startup, **client_options(**options))

    def start(self) -> None:
        """Start the servers, form the cluster and wait until it is healthy."""
        try:
            for server in self.servers:
                server.start()
            self._assign_slots()
            self._introduce()
            self._pair_replicas()
            self._wait_until_whole()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill all servers and remove their directories."""
        for server in self.servers:
            server.stop()

    def primary_of(self, key: str) -> RedisServer:
        """Return the server that owns the slot of `key`, as reported by the first server that answers."""
        witness = self._answering()[0]
        slot = int(_ask(witness, "CLUSTER KEYSLOT", key))
        for address, node in _nodes(witness).items():
            if any(int(slots[0]) <= slot <= int(slots[-1]) for slots in node["slots"]):
                return self._at(address)
        msg = f"no node holds the slot of {key!r}"
        raise LookupError(msg)

    def move_slot_of(self, key: str, half_way: Callable[[], object] | None = None) -> None:
        """Migrate the slot of `key`, key by key, to another primary, as `redis-cli --cluster reshard` does.

        `half_way` is called after the first key has moved.
        """
        source = self.primary_of(key)
        slot = int(_ask(source, "CLUSTER KEYSLOT", key))
        primaries = [self._at(address) for address, node in _nodes(source).items() if node["slots"]]
        target = next(server for server in primaries if server is not source)
        identity = {server: _ask(server, "CLUSTER MYID") for server in (source, target)}
        _ask(target, "CLUSTER SETSLOT", slot, "IMPORTING", identity[source])
        _ask(source, "CLUSTER SETSLOT", slot, "MIGRATING", identity[target])
        while keys := _ask(source, "CLUSTER GETKEYSINSLOT", slot, 1):
            _ask(source, "MIGRATE", HOST, target.port, keys[0], 0, 5000)
            if half_way:
                half_way()
            half_way = None
        for server in (target, source):
            _ask(server, "CLUSTER SETSLOT", slot, "NODE", identity[target])
        self._wait_until_whole()

    def kill_primary_of(self, key: str) -> RedisServer:
        """Kill the owner of `key` and return it once all others agree that its replica has taken over.

        Writes that the replica had not received are lost, as in any failover. `heal()` restarts the killed server.
        """
        victim = self.primary_of(key)
        victim.kill()
        wait_until_settled(
            lambda: all(_has_replaced(witness, victim) for witness in self._answering()), "a replica to take over"
        )
        return victim

    def heal(self) -> None:
        """Resume and restart all servers; return when the cluster is healthy, with any server as primary."""
        for server in self.servers:
            if server.running:
                server.resume()
            else:
                server.restart()
        self._wait_until_whole()

    def flush(self) -> None:
        """Delete all keys of a healthy cluster."""
        for address, node in _nodes(self.servers[0]).items():
            if node["slots"]:
                _ask(self._at(address), "FLUSHALL")

    def _assign_slots(self) -> None:
        for number, server in enumerate(self.servers[:PRIMARIES]):
            slots = range(number * SLOTS // PRIMARIES, (number + 1) * SLOTS // PRIMARIES)
            _ask(server, "CLUSTER ADDSLOTS", *slots)
            _ask(server, "CLUSTER SET-CONFIG-EPOCH", number + 1)

    def _introduce(self) -> None:
        # All pairs: waiting for gossip would take seconds.
        for server, other in itertools.combinations(self.servers, 2):
            _ask(server, "CLUSTER MEET", HOST, other.port)
        wait_until_settled(
            lambda: all(self._knows_all(server) for server in self.servers), "the cluster nodes to know each other"
        )

    def _pair_replicas(self) -> None:
        for primary, replica in zip(self.servers[:PRIMARIES], self.servers[PRIMARIES:], strict=True):
            _ask(replica, "CLUSTER REPLICATE", _ask(primary, "CLUSTER MYID"))

    def _wait_until_whole(self) -> None:
        wait_until_settled(
            lambda: all(self._sees_whole(server) for server in self.servers),
            "three primaries with one replica each, seen by all nodes",
        )

    def _knows_all(self, server: RedisServer) -> bool:
        nodes = _nodes(server)
        unsettled = any({"handshake", "fail", "fail?"} & _flags(node) for node in nodes.values())
        return len(nodes) == len(self.servers) and not unsettled

    def _sees_whole(self, server: RedisServer) -> bool:
        nodes = _nodes(server).values()
        primaries = {node["node_id"] for node in nodes if node["slots"]}
        followed = {node["master_id"] for node in nodes if "slave" in _flags(node)}
        return self._knows_all(server) and len(primaries) == PRIMARIES and primaries == followed and _is_ready(server)

    def _answering(self) -> list[RedisServer]:
        return [server for server in self.servers if server.answering]

    def _at(self, address: str) -> RedisServer:
        return next(server for server in self.servers if address == _address(server))


def _address(server: RedisServer) -> str:
    return f"{HOST}:{server.port}"


def _ask(server: RedisServer, *command: str | int) -> Any:
    with server.client(decode_responses=True) as client:
        return client.execute_command(*command)


def _nodes(server: RedisServer) -> dict[str, dict[str, Any]]:
    nodes: dict[str, dict[str, Any]] = _ask(server, "CLUSTER NODES")
    return nodes


def _flags(node: dict[str, Any]) -> set[str]:
    return set(node["flags"].split(","))


def _is_ready(server: RedisServer) -> bool:
    with server.client() as client:
        replication = client.info("replication")
    linked = replication["role"] == "master" or replication["master_link_status"] == "up"
    return linked and bool(_ask(server, "CLUSTER INFO")["cluster_state"] == "ok")


def _has_replaced(witness: RedisServer, victim: RedisServer) -> bool:
    return not _nodes(witness)[_address(victim)]["slots"] and _is_ready(witness)
