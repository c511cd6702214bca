"""Repairs that lose no data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from redis_queue.doctor.checks.keyspace import mortal
from redis_queue.doctor.checks.queues import recordless, tally
from redis_queue.doctor.examination import DEFAULT_PREFIX
from redis_queue.doctor.finding import PERMIT, Finding
from redis_queue.doctor.server_info import servers
from redis_queue.doctor.shard_view import ShardView
from redis_queue.doctor.survey import Survey, survey
from redis_queue.errors import StoreError, StoreUnavailableError
from redis_queue.store.chunks import CHUNK, chunks
from redis_queue.store.connection import Client
from redis_queue.store.replies import text
from redis_queue.store.settings import Settings

WALK: Final = 50_000
"""Most elements of ready lists that one call may scan, some milliseconds; each id may need a scan of the whole list."""


def repair(client: Client, prefix: str = DEFAULT_PREFIX, *, dry_run: bool = True) -> list[Finding]:
    """Make all possible repairs under *prefix*; return one finding for each, with *dry_run* for each planned one.

    Removes the TTL of permanent keys, puts back expired leases, gives orphans a place, and moves places without a
    record to quarantine. Nothing is dropped; a second call finds nothing to do. The severity of a completed repair is
    "ok". Raises StoreUnavailableError, and StoreRefusedError if nothing can be read.
    """
    Settings(prefix=prefix)
    found = survey(client, servers(client), prefix)
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
    for key in list(mortal(found)):
        if not dry_run:
            found.scripts.command("PERSIST", key)
        yield f"remove the TTL of {text(key)}", not dry_run


def _put_back(shard: ShardView, dry_run: bool) -> Iterator[tuple[str, bool]]:
    if dry_run:
        count = int(shard.command("ZCOUNT", shard.keys.in_flight, "-inf", shard.now()))
    else:
        script = shard.script("lease/put_back")
        count, seen = 0, CHUNK
        while seen == CHUNK:
            seen, _, _ = script(now=0, limit=CHUNK, max_deliveries=shard.max_deliveries, listed=shard.listed)
            count += seen
    if count:
        yield f"{shard.label}: put back {count:,} expired leases", not dry_run


def _quarantine(shard: ShardView, dry_run: bool) -> Iterator[tuple[str, bool]]:
    # An id in several places counts once.
    count = _mend(shard, list(dict.fromkeys(recordless(shard, None))), b"2", dry_run)
    if count:
        yield f"{shard.label}: move {count:,} places without a record to quarantine", not dry_run


def _place(shard: ShardView, dry_run: bool) -> Iterator[tuple[str, bool]]:
    count = tally(shard)
    if not count.records:
        return
    if count.surplus <= 0 and not count.fits_sample:
        # A scan of the whole queue is worth it only if something is missing.
        return
    records = list(shard.ids(None))
    placed = set(shard.placed(None))
    found = _mend(shard, [id_ for id_ in dict.fromkeys(records) if id_ not in placed], b"1", dry_run)
    where = "back into the ready list" if shard.listed else "to the dead letters, since their due times are lost"
    if found:
        yield f"{shard.label}: move {found:,} records without a place {where}", not dry_run


def _mend(shard: ShardView, ids: list[bytes], answer: bytes, dry_run: bool) -> int:
    script = shard.script("lease/mend")
    size = max(1, min(CHUNK, WALK // max(1, tally(shard).ready)))
    found = 0
    for chunk in chunks(ids, size):
        found += script(now=0, listed=shard.listed, acting=int(not dry_run), more=chunk).count(answer)
    return found
