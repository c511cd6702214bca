"""Problems of a server and of the connection to it are found by the right check only."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis

from redis_queue import StoreUnavailableError
from redis_queue.doctor import access, examine
from redis_queue.doctor.finding import run
from redis_queue.doctor.server import ServerInfo, connections, version, writes_to_disk
from redis_queue.operate.access import access_to
from redis_queue.operate.incidents.registry import current
from tests.support.binaries import KINDS
from tests.support.doctor.stage import Limit, Setting, Stage, wrong
from tests.support.ports import HOST, free_port
from tests.support.servers import RedisServer, client_options
from tests.support.wait import wait_until


@pytest.fixture
def own(tmp_path: Path) -> Iterator[RedisServer]:
    """A server for one test, with its data in `tmp_path / "data"`."""
    (tmp_path / "data").mkdir()
    with RedisServer("--dir", str(tmp_path / "data"), tcp=True, aof="everysec") as server:
        yield server


@pytest.mark.parametrize(
    ("found", "severity"),
    [
        ({"redis_version": "6.0.16"}, "error"),
        ({"redis_version": "6.2.19"}, "warning"),
        ({"redis_version": "6.2.20"}, "ok"),
        ({"redis_version": "7.0.15"}, "warning"),
        ({"redis_version": "7.2.10"}, "warning"),
        ({"redis_version": "7.4.6"}, "ok"),
        ({"redis_version": "8.0.3"}, "warning"),
        ({"redis_version": "8.2.2"}, "ok"),
        ({"redis_version": "8.4.0"}, "ok"),
        ({"redis_version": "255.255.255"}, "ok"),
        ({}, "error"),
        ({"redis_version": "7.2.4", "valkey_version": "8.1.1"}, "warning"),
        ({"redis_version": "7.2.4", "valkey_version": "9.1.0"}, "ok"),
    ],
)
def test_versions(found: dict[str, str], severity: str) -> None:
    (finding,) = run("version", version, [SimpleNamespace(info=found, label="")])  # type: ignore[list-item]
    assert finding.severity == severity


@pytest.mark.parametrize(("late", "severity"), [(0, "ok"), (3, "warning")])
def test_a_slow_disk(late: int, severity: str) -> None:
    server = SimpleNamespace(info={"aof_delayed_fsync": str(late)}, label="", number=lambda _: late)
    (finding,) = run("writes to disk", writes_to_disk, [server])  # type: ignore[list-item]
    assert finding.severity == severity


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_server_has_no_findings(kind: str) -> None:
    with RedisServer(kind=kind, aof="everysec") as server, server.client() as client:
        assert wrong(client) == {}


@pytest.mark.parametrize(
    ("policy", "limit", "severity"),
    [("allkeys-lru", "1gb", "error"), ("allkeys-lru", "0", "warning"), ("volatile-ttl", "1gb", "warning")],
)
def test_a_server_that_evicts(stage: Stage, setting: Setting, policy: str, limit: str, severity: str) -> None:
    setting("maxmemory", limit)
    setting("maxmemory-policy", policy)
    assert stage.wrong() == {"eviction": severity}


@pytest.mark.parametrize(("share", "severity"), [(0.85, "warning"), (0.98, "error")])
def test_a_nearly_full_server(stage: Stage, setting: Setting, share: float, severity: str) -> None:
    stage.wrong()  # the memory for the check itself counts, too
    setting("maxmemory", round(stage.client.info("memory")["used_memory"] / share))
    assert stage.wrong() == {"memory": severity}


def test_a_server_without_an_append_only_file(stage: Stage) -> None:
    with RedisServer() as server, server.client() as client:
        assert wrong(client) == {"persistence": "warning"}


def test_an_append_only_file_that_is_never_synced(stage: Stage, setting: Setting) -> None:
    setting("appendfsync", "no")
    assert stage.wrong() == {"persistence": "warning"}


def test_a_snapshot_that_failed(own: RedisServer, tmp_path: Path) -> None:
    with own.client() as client:
        shutil.rmtree(tmp_path / "data")
        client.bgsave()
        wait_until(
            lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", description="the snapshot to fail"
        )
        assert wrong(client) == {"writes to disk": "error"}


def test_replication_without_confirmation_and_writes_to_a_replica(own: RedisServer) -> None:
    options = ("--replicaof", HOST, str(own.port))
    with RedisServer(*options, tcp=True, aof="everysec") as replica, own.client() as client, replica.client() as other:
        wait_until(lambda: client.info("replication")["connected_slaves"] == 1, description="a replica")
        assert wrong(client) == {"replication": "warning"}
        assert wrong(other) == {"replicas": "error"}
        assert [one.kind for one in current(access_to(other, "redis_queue"))] == ["servers"]
        client.config_set("min-replicas-to-write", 1)
        wait_until(lambda: wrong(client) == {}, description="the replica to be counted")
        replica.stop()
        wait_until(lambda: client.info("replication")["connected_slaves"] == 0, description="the end of the replica")
        assert wrong(client) == {"replicas": "error"}


@pytest.mark.parametrize(
    ("skew", "severity"), [(0.9, None), (-1.5, "warning"), (1.5, "warning"), (-31, "error"), (3600, "error")]
)
def test_clock_differences(stage: Stage, monkeypatch: pytest.MonkeyPatch, skew: float, severity: str | None) -> None:
    import time

    monkeypatch.setattr("redis_queue.doctor.server.time", SimpleNamespace(time=lambda: time.time() - skew))
    assert stage.wrong() == ({"clock": severity} if severity else {})
    found = next(finding.found for finding in examine(stage.client) if finding.check == "clock")
    assert severity is None or ("ahead of this host" if skew > 0 else "behind this host") in found


@pytest.mark.parametrize("limit", [0, 500])
def test_a_too_short_limit_of_scripts(stage: Stage, setting: Setting, limit: int) -> None:
    setting("lua-time-limit", limit)
    assert stage.wrong() == {"script limit": "warning"}


def test_a_server_open_to_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    # No test opens a port to a network: the second address counts as a network address here.
    monkeypatch.setattr(access, "is_local", lambda host: host == HOST)
    options = ("--protected-mode", "no", "--bind", HOST, "127.0.0.2")
    with RedisServer(*options, tcp=True, aof="everysec") as server, server.client() as client:
        assert wrong(client) == {"exposure": "warning"}
        client.config_set("requirepass", "s3cret")
        client.auth("s3cret")
        assert "exposure" not in wrong(client)


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("10.0.0.1", False), ("redis", False), ("*", False)],
)
def test_addresses_of_this_machine(host: str, local: bool) -> None:
    assert access.is_local(host) is local


def test_a_connection_over_a_network_without_tls(own: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    with own.client() as client:
        assert wrong(client) == {}
        monkeypatch.setattr(access, "is_local", lambda host: host != HOST)
        assert wrong(client) == {"encryption": "warning"}


def test_a_connection_with_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "is_local", lambda _: False)
    with RedisServer(kind="path", tls=True, aof="everysec") as server, server.client() as client:
        assert wrong(client) == {}


def test_missing_permissions_of_the_current_user(stage: Stage, limited: Limit) -> None:
    user = limited("~* &* +@all -lpush -zadd -hgetall -mget -pubsub|numsub -zscan")
    found = [finding for finding in examine(user) if finding.severity != "ok" and finding.check == "permissions"]
    assert [finding.severity for finding in found] == ["warning"]
    if "DRYRUN" not in str(stage.client.execute_command("ACL", "HELP")):
        assert found[0].found == "Redis before 7 cannot tell whether the user limited has all permissions"
        return
    assert (
        found[0].found
        == "the Redis user limited may not run hgetall, lpush, mget, pubsub|numsub, zadd, zscan on keys of this prefix"
    )
    other = limited("~other* &* +@all")
    assert "llen" in next(finding.found for finding in examine(other) if finding.check == "permissions")


def test_checks_without_permission_are_warnings(stage: Stage, limited: Limit) -> None:
    user = limited("~* &* +@all -info -config -acl -scan -zrange -command")
    found = {finding.check: finding for finding in examine(user) if finding.severity != "ok"}
    assert found.keys() == {
        *("version", "eviction", "memory", "persistence", "writes to disk", "replication", "evicted"),
        *("replicas", "script limit", "commands", "connections"),
        *("exposure", "permissions", "coverage", "leases", "put-back", "dispatch"),
    }
    assert {finding.severity for finding in found.values()} == {"warning"}
    assert "may not" in found["version"].found or "could not be checked" in found["version"].found
    assert found["coverage"].found.startswith("only queues in the registry were checked")


@pytest.mark.parametrize(("share", "severity"), [(0.85, "warning"), (0.98, "error")])
def test_a_server_with_too_many_connections(stage: Stage, share: float, severity: str) -> None:
    info = {"connected_clients": str(round(9_000 * share)), "maxclients": "9000"}
    server = SimpleNamespace(info=info, label="", number=lambda name: int(info[name]))
    (finding,) = run("connections", connections, [server])  # type: ignore[list-item]
    assert finding.severity == severity
    assert finding.found.startswith(f"{share:.0%} of maxclients is used; a Redis without free connections refuses")
    assert ServerInfo(stage.client, "redis_queue").number("maxclients") > 0


def test_commands_that_are_missing() -> None:
    gone = ("HSETNX", "HSCAN")
    options = [word for name in gone for word in ("--rename-command", name, "")]
    with RedisServer(*options) as server, server.client() as client:
        found = [item for item in examine(client) if item.check == "commands"]
    assert [(item.severity, item.found) for item in found] == [
        ("warning", "this Redis has no HSETNX, needed by delayed tasks"),
        ("warning", "this Redis has no HSCAN, HSETNX, needed by flows and unique tasks"),
        ("warning", "this Redis has no HSCAN, needed by reports, history and failures"),
    ]


def test_commands_disabled_by_a_provider_are_reported_once() -> None:
    commands = ("--rename-command", "CONFIG", "")
    with RedisServer(*commands, tcp=True, aof="everysec") as server, server.client() as client:
        findings = examine(client)
    told = [finding for finding in findings if "CONFIG" in finding.found]
    assert [(finding.check, finding.severity) for finding in told] == [("coverage", "ok")]
    assert {finding.check for finding in findings if finding.severity != "ok"} <= {"version"}
    assert {"persistence", "script limit", "exposure"}.isdisjoint(finding.check for finding in findings)


def test_a_user_with_no_permissions(stage: Stage, limited: Limit) -> None:
    findings = examine(limited("+ping"))
    assert {finding.severity for finding in findings if finding.check != "encryption"} == {"warning"}
    assert "no queue could be checked" in next(item.found for item in findings if item.check == "coverage")


def test_an_unreachable_redis() -> None:
    with redis.Redis(host=HOST, port=free_port(), **client_options()) as client, pytest.raises(StoreUnavailableError):
        examine(client)


def test_each_node_of_a_cluster_is_checked(cluster_client: redis.RedisCluster) -> None:
    from redis_queue import DelayQueue

    delayed = DelayQueue("reminders", cluster_client, shards=8)
    for number in range(200):
        delayed.push(number, delay=3600)
    cluster_client.delete(delayed._shards[3].keys.waiting)
    findings = examine(cluster_client)
    assert len([item for item in findings if item.check == "persistence" and item.severity == "warning"]) == 3
    assert [item.found.partition(":")[0] for item in findings if item.check == "orphans"] == ["delay reminders shard 3"]
