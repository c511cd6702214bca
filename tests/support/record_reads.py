"""Record which records the scripts of a server read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from uuid import uuid4

import redis

READS = ("HGET", "HMGET", "HVALS", "HGETALL")


@contextlib.contextmanager
def record_reads(client: redis.Redis) -> Iterator[list[str]]:
    """Yield a list that receives, at the end of the block, the ids of the records that scripts read in it."""
    found: list[str] = []
    with client.monitor() as monitor:
        yield found
        end = uuid4().hex
        client.echo(end)
        while end not in (seen := monitor.next_command())["command"]:
            command, *words = seen["command"].split(" ")
            if seen["client_type"] == "lua" and command.upper() in READS and words[0].endswith(":records"):
                found += words[1:]
