"""Run all checks of the doctor, and make the repairs that lose no data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from redis_queue.basics.options import counted
from redis_queue.doctor import access, keyspace, queues, server
from redis_queue.doctor.finding import COVERAGE, PERMIT, Finding, run, run_all
from redis_queue.doctor.keyspace import keys_with_ttl
from redis_queue.doctor.queues import NO_PLACE, NO_RECORD, count_records, recordless
from redis_queue.doctor.server import ServerInfo, servers
from redis_queue.doctor.survey import ShardView, Survey, survey
from redis_queue.errors import StoreError, StoreRefusedError, StoreUnavailableError
from redis_queue.store.chunks import CHUNK, chunks
from redis_queue.store.connection import Client
from redis_queue.store.redis_errors import is_refused
from redis_queue.store.scripts import Scripts, now_ms, text
from redis_queue.store.settings import Settings

DEFAULT_PREFIX: Final = Settings().prefix

WALK: Final = 50_000
"""Maximum number of elements of ready lists that one call scans, in some milliseconds; each id may need all of them."""


def examine(client: Client, prefix: str = DEFAULT_PREFIX) -> list[Finding]:
    """Check the Redis of *client* and the queues under *prefix*; return the findings of each check.

    Changes nothing, and reads only samples of large queues. Missing permissions are findings. Raises
    StoreUnavailableError if Redis cannot be reached, and StoreError if the login fails: for a wrong password or an
    unknown database.
    """
    Settings(prefix=prefix)
    try:
        Scripts(client).command("PING")
    except StoreRefusedError as error:
        # Without PING, some checks may still be possible.
        if not is_refused(error.__cause__):
            raise
    nodes = servers(client, prefix)
    return [
        *_of_servers(nodes),
        *_of_queues(client, nodes, prefix),
        *run("unreadable tasks", queues.unreadable, [Scripts(client)]),
    ]


def _of_servers(nodes: list[ServerInfo]) -> Iterator[Finding]:
    yield from run_all({**server.CHECKS, **access.CHECKS}, nodes)
    for node in nodes:
        if node.missing:
            names = ", ".join(sorted(node.missing))
            found = f"{node.label}this Redis has no {names}: checks that need it are skipped"
            yield Finding(COVERAGE, "ok", found, "ask your provider for these settings")


def _of_queues(client: Client, nodes: list[ServerInfo], prefix: str) -> Iterator[Finding]:
    try:
        found = survey(client, nodes, prefix)
    except StoreUnavailableError:
        raise
    except StoreError as error:
        yield Finding(COVERAGE, "warning", f"no queue could be checked: {error}", PERMIT)
        return
    yield from run_all(keyspace.CHECKS, [found])
    yield from run_all(queues.CHECKS, found.shards)
    yield from found.notes


def repair(client: Client, prefix: str = DEFAULT_PREFIX, *, dry_run: bool = True) -> list[Finding]:
    """Make all possible repairs under *prefix*; return one finding for each, with *dry_run* for each planned one.

    Removes the TTL of permanent keys, puts back expired leases, gives orphans a place, and moves places without a
    record to quarantine. Nothing is dropped; a second call finds nothing to do. The severity of a completed repair is
    "ok". Raises StoreUnavailableError, and StoreRefusedError if nothing can be read.
    """
    Settings(prefix=prefix)
    found = survey(client, servers(client, prefix), prefix)
    return [
        *each("lifetime", lambda: _persist(found, dry_run)),
        *(
            finding
            for shard in found.shards
            for name, work in (("put-back", _put_back), ("orphans", _quarantine), ("orphans", _place))
            for finding in each(name, lambda work=work, shard=shard: work(shard, dry_run))  # type: ignore[misc]
        ),
    ]


def each(name: str, work: Callable[[], Iterator[tuple[str, bool]]]) -> Iterator[Finding]:
    """Yield a finding for each text of *work*, which also tells whether that repair is done."""
    try:
        for what, done in work():
            yield Finding(name, "ok" if done else "warning", what, "" if done else "not done yet", repairable=not done)
    except StoreUnavailableError:
        raise
    except StoreError as error:
        yield Finding(name, "error", f"could not be repaired: {error}", PERMIT)


def _persist(found: Survey, dry_run: bool) -> Iterator[tuple[str, bool]]:
    for key in list(keys_with_ttl(found)):
        if not dry_run:
            found.scripts.command("PERSIST", key)
        yield f"remove the TTL of {text(key)}", not dry_run


def _put_back(shard: ShardView, dry_run: bool) -> Iterator[tuple[str, bool]]:
    if dry_run:
        count = int(shard.command("ZCOUNT", shard.keys.in_flight, "-inf", now_ms(shard.scripts)))
    else:
        script = shard.script("records/put_back")
        count, seen = 0, CHUNK
        while seen == CHUNK:
            seen, _, _ = script(now=0, limit=CHUNK, max_deliveries=shard.max_deliveries, listed=shard.listed)
            count += seen
    if count:
        yield f"{shard.label}: put back {counted(count, 'expired lease')}", not dry_run


def _quarantine(shard: ShardView, dry_run: bool) -> Iterator[tuple[str, bool]]:
    # An id in several places counts once.
    count = _repair_places(shard, list(dict.fromkeys(recordless(shard, None))), NO_RECORD, dry_run)
    if count:
        yield f"{shard.label}: move {counted(count, 'place')} without a record to quarantine", not dry_run


def _place(shard: ShardView, dry_run: bool) -> Iterator[tuple[str, bool]]:
    count = count_records(shard)
    if not count.records:
        return
    if count.surplus <= 0 and not count.fits_sample:
        # A scan of the whole queue is worth it only if something is missing.
        return
    records = list(shard.ids(None))
    placed = set(shard.placed(None))
    found = _repair_places(shard, [id_ for id_ in dict.fromkeys(records) if id_ not in placed], NO_PLACE, dry_run)
    where = "back into the ready list" if shard.listed else "to the dead letters, since their due times are lost"
    if found:
        yield f"{shard.label}: move {counted(found, 'record')} without a place {where}", not dry_run


def _repair_places(shard: ShardView, ids: list[bytes], answer: bytes, dry_run: bool) -> int:
    script = shard.script("records/repair")
    size = max(1, min(CHUNK, WALK // max(1, count_records(shard).ready)))
    found = 0
    for chunk in chunks(ids, size):
        found += script(now=0, listed=shard.listed, repair=int(not dry_run), more=chunk).count(answer)
    return found
