"""Checks of queue contents: orphans, leases, overdue entries, dead letters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from redis_queue.basics.options import counted
from redis_queue.basics.times import span_text
from redis_queue.doctor.finding import Check, Finding, error, warning
from redis_queue.doctor.survey import SAMPLE, STEP, ShardView
from redis_queue.store.chunks import chunks
from redis_queue.store.keys import BrokerKeys
from redis_queue.store.scripts import Scripts, pairs, text

FORGOTTEN_MS: Final = 600_000
"""Age of an expired lease that beat's put-back has missed at least twice."""

LATE_MS: Final = 60_000

FEW: Final = 20
"""Maximum number of suspects that are confirmed one by one; each may need a scan of the ready list."""

SUSPECT: Final = ord("1")
"""Flag of the script records/recordless: an id that seems to have no record."""

NO_PLACE: Final = b"1"
"""Flag of the script records/repair: a record without a place."""

NO_RECORD: Final = b"2"
"""Flag of the script records/repair: a place without a record."""


@dataclass(frozen=True, slots=True)
class RecordCounts:
    """Numbers of records, and of ids in each place."""

    records: int
    ready: int
    waiting: int
    in_flight: int
    dead: int
    quarantined: int

    @property
    def surplus(self) -> int:
        """Number of records without a place, minus the number of places without a record."""
        return self.records - self.ready - self.waiting - self.in_flight - self.dead

    @property
    def fits_sample(self) -> bool:
        """Whether a sample covers all ids."""
        return max(self.ready, self.waiting, self.in_flight, self.dead) <= SAMPLE


def count_records(shard: ShardView) -> RecordCounts:
    """Count records and places in one script."""
    return RecordCounts(*shard.script("records/tally")())


def orphans(shard: ShardView) -> Iterator[Finding]:
    """Every record is in exactly one place, and every place has a record."""
    count = count_records(shard)
    lost = sum(1 for _ in recordless(shard, SAMPLE, FEW))
    stray = count.surplus + lost
    advice = "redis-queue doctor --fix"
    if stray > 0:
        yield error(
            f"{shard.label}: {counted(stray, 'record')} in no place: no consumer gets them", advice, repairable=True
        )
    if lost:
        some = "" if count.fits_sample and lost < FEW else "at least "
        yield error(f"{shard.label}: {some}{counted(lost, 'id')} in a place without a record", advice, repairable=True)
    if stray < 0:
        what = "in more than one place" if count.fits_sample and lost < FEW else "without a record, or in two places"
        yield error(
            f"{shard.label}: {counted(-stray, 'id')} {what}",
            "find out which other program writes to this queue, then run doctor again",
        )


def recordless(shard: ShardView, limit: int | None, most: int | None = None) -> Iterator[bytes]:
    """Yield ids in a place without a record, at most *most*, out of *limit* ids of each place."""
    look, confirm = shard.script("records/recordless"), shard.script("records/repair")
    left = most
    for chunk in chunks(shard.placed(limit), STEP):
        flags = look(more=chunk)
        suspects = [id_ for id_, flag in zip(chunk, flags, strict=True) if flag == SUSPECT]
        for id_ in dict.fromkeys(suspects):
            if left == 0:
                return
            # A consumer may have settled it meanwhile.
            if confirm(now=0, listed=shard.listed, repair=0, more=[id_]) == NO_RECORD:
                yield id_
                left = None if left is None else left - 1


def leases(shard: ShardView) -> Iterator[Finding]:
    """Every lease belongs to an id in flight, and every id in flight has a lease."""
    bare = sum(1 for _ in _leases_not_in_flight(shard))
    if bare:
        yield warning(
            f"{shard.label}: {counted(bare, 'lease')} of ids that are not in flight",
            "find out which other program writes to this queue",
        )
    ids = [id_ for id_, _ in pairs(shard.command("ZRANGE", shard.keys.in_flight, 0, STEP - 1, "WITHSCORES"))]
    free = [id_ for id_ in ids if _is_free(shard, id_)] if ids else []
    if free:
        yield warning(
            f"{shard.label}: {counted(len(free), 'id')} in flight without a lease: nobody can ack them",
            "nothing to do: put-back returns them when their time is up",
        )


def _leases_not_in_flight(shard: ShardView) -> Iterator[bytes]:
    held = ((id_, lease) for id_, lease in shard.fields(shard.keys.leases) if b" " in lease)
    look = shard.script("records/repair")
    left = FEW
    for chunk in chunks(held, STEP):
        scores = shard.command("ZMSCORE", shard.keys.in_flight, *(id_ for id_, _ in chunk))
        for (id_, lease), score in zip(chunk, scores, strict=True):
            if score is not None or shard.command("HGET", shard.keys.leases, id_) != lease:
                continue
            if left == 0:
                return
            left -= 1
            # The check of orphans reports records without a place.
            if look(now=0, listed=shard.listed, repair=0, more=[id_]) != NO_PLACE:
                yield id_


def _is_free(shard: ShardView, id_: bytes) -> bool:
    lease = shard.command("HGET", shard.keys.leases, id_)
    if lease is not None and b" " in lease:
        return False
    # The check of orphans reports ids without a record.
    return (
        shard.command("ZSCORE", shard.keys.in_flight, id_) is not None
        and shard.command("HEXISTS", shard.keys.records, id_) == 1
    )


def put_back(shard: ShardView) -> Iterator[Finding]:
    """Expired leases are put back."""
    late = shard.late_ms(shard.keys.in_flight)
    if late > FORGOTTEN_MS:
        yield error(
            f"{shard.label}: a lease expired {span_text(late / 1000)} ago and was not put back",
            "run tasks.putback.putback by beat, or call put_back(); to repair it now: redis-queue doctor --fix",
            repairable=True,
        )


def dispatch(shard: ShardView) -> Iterator[Finding]:
    """Due entries are claimed in time."""
    if shard.kind != "delay":
        return
    late = shard.late_ms(shard.keys.waiting)
    if late <= LATE_MS:
        return
    found, first = f"{shard.label}: the first entry is overdue by {span_text(late / 1000)}, and", shard.first
    if leader := shard.command("GET", first.leader):
        yield error(f"{found} {text(leader)} leads", "see the log of the workers, or run more of them")
    elif any(shard.command("HLEN", key) for key in (first.lateness, first.dispatchers)):
        yield error(f"{found} no dispatcher leads", "run celery redis-queue dispatch, or workers")
    else:
        # Without a dispatcher the queue may hold data that its owner claims at any time.
        yield warning(
            f"{found} it never had a dispatcher",
            "for tasks, run celery redis-queue dispatch, or workers; for data, check the process that claims it",
        )


def dead_letters(shard: ShardView) -> Iterator[Finding]:
    """There are no dead letters."""
    if count := count_records(shard).dead:
        yield warning(
            f"{shard.label}: {counted(count, 'dead letter')}", "inspect their reasons, then redrive or purge them"
        )


def quarantine(shard: ShardView) -> Iterator[Finding]:
    """The quarantine is empty."""
    if count := count_records(shard).quarantined:
        yield warning(
            f"{shard.label}: {counted(count, 'unreadable record')} in quarantine",
            "inspect them with redis-queue quarantine list, then purge them",
        )


def paused(shard: ShardView) -> Iterator[Finding]:
    """No queue is paused."""
    if shard.command("HEXISTS", shard.keys.meta, "paused"):
        yield warning(f"{shard.label} is paused", "resume it when the reason for the pause is gone")


def unreadable(scripts: Scripts) -> Iterator[Finding]:
    """Workers found no unreadable messages in Celery queues."""
    if count := scripts.command("LLEN", BrokerKeys("").unreadable):
        name = text(BrokerKeys("").unreadable)
        yield warning(f"{counted(count, 'unreadable message')} in {name}", "inspect them, then DEL the list")


CHECKS: Final[dict[str, Check[ShardView]]] = {
    "orphans": orphans,
    "leases": leases,
    "put-back": put_back,
    "dispatch": dispatch,
    "dead letters": dead_letters,
    "quarantine": quarantine,
    "paused": paused,
}
