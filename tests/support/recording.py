"""Record what a server is asked: commands of clients, or the records that scripts read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock
from uuid import uuid4

import redis

from redis_queue.store.links import DirectLink

READS = ("HGET", "HMGET", "HVALS", "HGETALL")

PARTS = ("ACL", "CLIENT", "PUBSUB", "SCRIPT")
"""Commands whose parts need permissions of their own."""


@contextlib.contextmanager
def _seen(client: redis.Redis) -> Iterator[list[dict[str, Any]]]:
    """Yield a list that receives, at the end of the block, what MONITOR has shown in it."""
    found: list[dict[str, Any]] = []
    with client.monitor() as monitor:
        yield found
        end = uuid4().hex
        client.echo(end)
        while end not in (seen := monitor.next_command())["command"]:
            found.append(seen)


@contextlib.contextmanager
def record_reads(client: redis.Redis) -> Iterator[list[str]]:
    """Yield a list that receives, at the end of the block, the ids of the records that scripts read in it."""
    found: list[str] = []
    with _seen(client) as rows:
        yield found
    for row in rows:
        command, *words = row["command"].split(" ")
        if row["client_type"] == "lua" and command.upper() in READS and words[0].endswith(":records"):
            found += words[1:]


@contextlib.contextmanager
def record_commands(client: redis.Redis) -> Iterator[list[str]]:
    """Yield a list that receives, at the end of the block, the names of the commands that clients send in it.

    A name is as ACL rules have it, such as ``hget`` or ``client|id``.
    """
    found: list[str] = []
    with _seen(client) as rows:
        yield found
    for row in rows:
        words = row["command"].split(" ")
        if row["client_type"] != "lua":
            found.append("|".join(words[: 1 + (words[0].upper() in PARTS)]).lower())


@contextlib.contextmanager
def record_round_trips() -> Iterator[list[int]]:
    """Yield a list that receives the number of commands of each round trip of queues, flows and schedules."""
    found: list[int] = []
    send, send_many = DirectLink.send, DirectLink.send_many

    def counted(link: DirectLink, *command: Any) -> Any:
        found.append(1)
        return send(link, *command)

    def counted_many(link: DirectLink, commands: Sequence[Any]) -> list[Any]:
        found.append(len(commands))
        return send_many(link, commands)

    with mock.patch.multiple(DirectLink, send=counted, send_many=counted_many):
        yield found


def commands_run(client: redis.Redis) -> int:
    """Return how many commands the server has run, those inside scripts included."""
    return sum(row["calls"] for row in client.info("commandstats").values())
