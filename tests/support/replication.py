"""The replication of a server, as the server reports it."""

from __future__ import annotations

from typing import Any

from .servers import RedisServer
from .wait import wait_until


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
