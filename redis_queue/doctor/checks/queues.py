"""Checks of what the queues hold: is anything stuck, lost from sight, or waiting for a person."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from redis_queue.doctor.finding import Check, Finding, error, warning
from redis_queue.doctor.server_info import SAMPLE, STEP, Shard, pairs, text
from redis_queue.store import keys
from redis_queue.store.chunks import chunks
from redis_queue.store.scripts import Scripts

FORGOTTEN_MS: Final = 600_000
"""A lease that ended so long ago was missed by two put-backs of beat's."""

LATE_MS: Final = 60_000

FEW: Final = 20
"""Suspects of a queue that are looked at one by one; each may cost a walk through the ready list."""

NO_RECORD: Final = ord("1")


@dataclass(frozen=True, slots=True)
class Tally:
    """Records, and places where they may stand."""

    records: int
    ready: int
    waiting: int
    in_flight: int
    dead: int
    quarantined: int

    @property
    def surplus(self) -> int:
        """Records that have no place, less places that have no record."""
        return self.records - self.ready - self.waiting - self.in_flight - self.dead

    @property
    def seen(self) -> bool:
        """Whether a sample is all."""
        return max(self.ready, self.waiting, self.in_flight, self.dead) <= SAMPLE


def tally(shard: Shard) -> Tally:
    """Count in one consistent look."""
    return Tally(*shard.script("lease/tally")())


def orphans(shard: Shard) -> Iterator[Finding]:
    """Every record stands in one place, and every place has its record."""
    count = tally(shard)
    lost = sum(1 for _ in recordless(shard, SAMPLE, FEW))
    stray = count.surplus + lost
    advice = "redis-queue doctor --fix"
    if stray > 0:
        yield error(f"{shard.label}: {stray:,} records stand in no place: nobody gets them", advice, repairable=True)
    if lost:
        some = "" if count.seen and lost < FEW else "at least "
        yield error(f"{shard.label}: {some}{lost:,} ids stand in a place without a record", advice, repairable=True)
    if stray < 0:
        what = "stand in more than one place" if count.seen and lost < FEW else "have no record, or two places"
        yield error(
            f"{shard.label}: {-stray:,} more ids {what}",
            "find out what else writes to this queue, then run doctor again",
        )


def recordless(shard: Shard, limit: int | None, most: int | None = None) -> Iterator[bytes]:
    """Yield ids that stand in a place and have no record, at most *most* out of *limit* of each place."""
    look, confirm = shard.script("lease/recordless"), shard.script("lease/mend")
    left = most
    for chunk in chunks(shard.placed(limit), STEP):
        flags = look(more=chunk)
        suspects = [id_ for id_, flag in zip(chunk, flags, strict=True) if flag == NO_RECORD]
        for id_ in dict.fromkeys(suspects):
            if left == 0:
                return
            # Between two looks it may have been settled.
            if confirm(now=0, listed=shard.listed, acting=0, more=[id_]) == b"2":
                yield id_
                left = None if left is None else left - 1


def leases(shard: Shard) -> Iterator[Finding]:
    """Every lease belongs to something in flight, and the other way round."""
    bare = sum(1 for _ in _bare(shard))
    if bare:
        yield warning(
            f"{shard.label}: {bare:,} leases belong to nothing in flight", "find out what else writes to this queue"
        )
    ids = [id_ for id_, _ in pairs(shard.command("ZRANGE", shard.keys.in_flight, 0, STEP - 1, "WITHSCORES"))]
    free = [id_ for id_ in ids if _is_free(shard, id_)] if ids else []
    if free:
        yield warning(
            f"{shard.label}: {len(free):,} in flight have no lease: nobody can ack them",
            "nothing: they are put back when their time is up",
        )


def _bare(shard: Shard) -> Iterator[bytes]:
    held = ((id_, lease) for id_, lease in shard.fields(shard.keys.leases) if b" " in lease)
    look = shard.script("lease/mend")
    left = FEW
    for chunk in chunks(held, STEP):
        scores = shard.command("ZMSCORE", shard.keys.in_flight, *(id_ for id_, _ in chunk))
        for (id_, lease), score in zip(chunk, scores, strict=True):
            if score is not None or shard.command("HGET", shard.keys.leases, id_) != lease:
                continue
            if left == 0:
                return
            left -= 1
            # A record without any place is what the check of orphans tells of.
            if look(now=0, listed=shard.listed, acting=0, more=[id_]) != b"1":
                yield id_


def _is_free(shard: Shard, id_: bytes) -> bool:
    lease = shard.command("HGET", shard.keys.leases, id_)
    if lease is not None and b" " in lease:
        return False
    # Still in flight, and not for want of a record, which is another check's.
    return (
        shard.command("ZSCORE", shard.keys.in_flight, id_) is not None
        and shard.command("HEXISTS", shard.keys.records, id_) == 1
    )


def put_back(shard: Shard) -> Iterator[Finding]:
    """What expired leases hold is put back."""
    first = shard.soonest(shard.keys.in_flight)
    late = shard.now() - first[1] if first else 0
    if late > FORGOTTEN_MS:
        yield error(
            f"{shard.label}: a lease ended {_span(late)} ago and nobody put back what it holds",
            "run tasks.putback.putback by beat, or call put_back(); now: redis-queue doctor --fix",
            repairable=True,
        )


def dispatch(shard: Shard) -> Iterator[Finding]:
    """Entries are taken when they are due."""
    if shard.kind != "delay":
        return
    first = shard.soonest(shard.keys.waiting)
    late = shard.now() - first[1] if first else 0
    if late > LATE_MS:
        leader = shard.command("GET", shard.first.leader)
        if leader:
            yield error(
                f"{shard.label}: the first entry is due for {_span(late)}, and {text(leader)} leads",
                "see the log of the workers, or run more of them",
            )
        elif any(shard.command("HLEN", key) for key in (shard.first.lateness, shard.first.dispatchers)):
            yield error(
                f"{shard.label}: the first entry is due for {_span(late)}, and no dispatcher leads",
                "run celery redis-queue dispatch, or workers",
            )
        else:
            # Nobody ever dispatched it, so it may hold data that its owner takes at any time.
            yield warning(
                f"{shard.label}: the first entry is due for {_span(late)}, and there never was a dispatcher",
                "if it holds tasks, run celery redis-queue dispatch, or workers; if data, look at what takes it",
            )


def dead_letters(shard: Shard) -> Iterator[Finding]:
    """No dead letters wait for a person."""
    if count := tally(shard).dead:
        yield warning(f"{shard.label}: {count:,} dead letters", "look why they died, then redrive or purge them")


def quarantine(shard: Shard) -> Iterator[Finding]:
    """Nothing unreadable is in quarantine."""
    if count := tally(shard).quarantined:
        yield warning(f"{shard.label}: {count:,} unreadable records in quarantine", "look at quarantined(), then purge")


def paused(shard: Shard) -> Iterator[Finding]:
    """No queue is paused."""
    if shard.command("HEXISTS", shard.keys.meta, "paused"):
        yield warning(f"{shard.label} is paused", "resume() when the reason is gone")


def visibility_timeouts(scripts: Scripts) -> Iterator[Finding]:
    """All workers on this broker have the same visibility timeout."""
    seen = pairs(scripts.command("ZRANGE", keys.visibility_timeouts(""), 0, STEP - 1, "WITHSCORES"))
    now = int(scripts.command("TIME")[0])
    # A worker shows itself three times per timeout.
    alive = sorted(float(timeout) for timeout, at in seen if now - float(at) <= float(timeout))
    if len(alive) > 1:
        shown = ", ".join(f"{timeout:g}" for timeout in alive)
        yield warning(
            f"workers with visibility_timeout {shown} s share this broker: those with the shortest one take tasks from "
            "the others, which renew less often",
            "give all apps on one broker the same visibility_timeout",
        )


def unreadable(scripts: Scripts) -> Iterator[Finding]:
    """Workers found nothing unreadable in Celery's queues."""
    if count := scripts.command("LLEN", keys.unreadable("")):
        name = text(keys.unreadable(""))
        yield warning(f"{count:,} messages that no worker can read are in {name}", "look at them, then DEL the list")


def _span(milliseconds: float) -> str:
    minutes = milliseconds / 60_000
    return f"{minutes:,.0f} min" if minutes < 120 else f"{minutes / 60:,.0f} h"  # noqa: PLR2004


CHECKS: Final[dict[str, Check[Shard]]] = {
    "orphans": orphans,
    "leases": leases,
    "put-back": put_back,
    "dispatch": dispatch,
    "dead letters": dead_letters,
    "quarantine": quarantine,
    "paused": paused,
}

BROKER_CHECKS: Final[dict[str, Check[Scripts]]] = {
    "visibility timeouts": visibility_timeouts,
    "unreadable tasks": unreadable,
}
