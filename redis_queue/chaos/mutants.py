"""Mutants: scripts with a fault in them, each of which a run must find; a checker that finds nothing proves nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from redis_queue.scripts import load


class Mutant(NamedTuple):
    """One fault: in *script*, *old* becomes *new*."""

    name: str
    script: str
    old: str
    new: str


MUTANTS: Final = [
    Mutant("ack without its token", "lease/ack", "string.sub(current[i], -#token) == token", "true"),
    Mutant("take and record nothing", "queue/get", "redis.call('ZADD', in_flight, unpack(scores))", ""),
    Mutant("take what is due and record nothing", "delay/claim", "redis.call('ZADD', in_flight, unpack(scores))", ""),
    Mutant("take what is not due", "delay/claim", "string.format('%.0f', now - older_than)", "'+inf'"),
    Mutant("tell that anything was cancelled", "delay/cancel", "flags[i] = 0", "flags[i] = 1"),
    Mutant("put back and keep in flight", "lease/put_back", "  redis.call('ZREM', in_flight, id)\n", ""),
    Mutant("put back to nowhere", "lease/put_back", "redis.call('ZADD', waiting, at, id)", "redis.call('ZCARD', dead)"),
    Mutant("settle and keep in flight", "lease/ack", "redis.call('ZREM', in_flight, unpack(done))", ""),
    Mutant("store without a place", "queue/put", "redis.pcall('LPUSH', ready, unpack(pushed))", "#pushed"),
]
"""Each breaks one rule of the scripts."""


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """Put the fault into the script for processes that are forked meanwhile. Raises ValueError if it fits nowhere."""
    script = load(mutant.script)
    source, sha = script.source, script.sha
    if source.count(mutant.old) != 1:
        raise ValueError(f"{mutant.name}: {mutant.old!r} stands {source.count(mutant.old)} times in {mutant.script}")
    script.source = source.replace(mutant.old, mutant.new)
    script.sha = hashlib.sha1(script.source.encode(), usedforsecurity=False).hexdigest()
    try:
        yield
    finally:
        script.source, script.sha = source, sha
