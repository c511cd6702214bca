"""A model of DelayQueue in plain Python."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis_queue.errors import EntryExistsError
from redis_queue.model import CancelOutcome
from redis_queue.store.settings import Settings
from tests.property.model_shard import SCRIPT_FLAWS, Claim, Held, Row, ShardModel, Wire, make_record, same

CHUNK = 500


class Pushed(NamedTuple):
    """One entry of a push, due after *delay* ms or, if given, at *due*."""

    id: str
    payload: Any
    delay: int = 0
    due: int | None = None
    headers: dict[str, Any] = {}  # noqa: RUF012 - never changed
    destination: str | None = None


class Taken(NamedTuple):
    """A claimed entry: its row, its claim and its due time."""

    row: Row
    claim: Claim
    due: int


class DelayShard(ShardModel):
    """A model of the scripts in lua/delay."""

    def push(self, entries: Sequence[Pushed], on_conflict: str) -> None:
        """Store all entries, or none if *on_conflict* refuses one."""
        now = self.clock()
        if self.wire.send(lambda: self._push(entries, on_conflict, now), same) == "exists":
            raise EntryExistsError

    def _push(self, entries: Sequence[Pushed], on_conflict: str, now: int) -> str:
        names = [entry.id for entry in entries]
        known = [name in self.records or name in names[:index] for index, name in enumerate(names)]
        if on_conflict == "error" and any(known):
            return "exists"
        new = [entry for entry, there in zip(entries, known, strict=True) if not there or on_conflict == "replace"]
        for id_, payload, delay, due, headers, destination in new:
            if id_ in self.records:
                self._forget([id_])
                self.in_flight.pop(id_, None)
                self.dead.pop(id_, None)
            self.records[id_] = make_record(now, payload, headers, destination)
            self.waiting[id_] = now + delay if due is None else due
        if not new:
            return "kept"
        self.meta["put"] += len(new)
        self.meta["schema"] = 1
        return "stored"

    def cancel(self, ids: Sequence[str]) -> list[CancelOutcome]:
        """Cancel waiting entries and dead letters."""

        def effect() -> list[CancelOutcome]:
            flags = []
            for id_ in ids:
                flags.append(CancelOutcome.NOT_FOUND)
                if id_ in self.waiting or id_ in self.dead:
                    held = self.deliveries(id_) or id_ in self.errors
                    flags[-1] = CancelOutcome.MAYBE_SENT if held else CancelOutcome.CANCELLED
                    self.waiting.pop(id_, None)
                    self.dead.pop(id_, None)
                    self._forget([id_])
            return flags

        return self.wire.send(effect, same)

    def reschedule(self, id_: str, delay: int, due: int | None) -> bool:
        """Change the due time of a waiting entry."""
        now = self.clock()

        def effect() -> bool:
            if id_ in self.waiting:
                self.waiting[id_] = now + delay if due is None else due
            return id_ in self.waiting

        return self.wire.send(effect, same)

    def claim(self, limit: int, older_than: int) -> list[Taken]:
        """Claim up to *limit* due entries; claim again for each unreadable one."""
        taken: list[Taken] = []
        while len(taken) < limit:
            due: dict[str, int] = {}
            claim = self._claim(limit - len(taken), older_than, due)
            good = self.readable(claim)
            taken += [Taken(row, claim, due[row.id]) for row in good]
            if not claim.again and len(good) == len(claim.rows):
                break
        return taken

    def _claim(self, limit: int, older_than: int, due: dict[str, int]) -> Claim:
        now = self.clock()

        def effect() -> Claim:
            ids = self.due(now - older_than)[:limit]
            due.update((id_, self.waiting.pop(id_)) for id_ in ids)
            return self.lease_out(ids, now) if ids else Claim()

        return self.wire.send(effect, self.held_by)

    def move_due(self, limit: int, destinations: dict[str, list[bytes]], broken: set[str]) -> int:
        """Move due entries to their destinations; skip entries without a destination."""
        offset = total = 0
        while total < limit:
            now, size = self.clock(), min(limit - total, CHUNK)
            seen, moved, passed = self.wire.send(
                lambda: self._move(now, size, offset, destinations, broken)  # noqa: B023
            )
            offset += passed
            total += moved
            if seen < size:
                break
        return total

    def _move(
        self, now: int, limit: int, offset: int, destinations: dict[str, list[bytes]], broken: set[str]
    ) -> tuple[int, int, int]:
        ids = self.due(now)[offset : offset + limit]
        moved = passed = 0
        for id_ in ids:
            flaw = self.flaw(id_)
            record = self.records.get(id_)
            if record is None or flaw in SCRIPT_FLAWS:
                self.quarantine.append((now, id_, flaw, record.raw if record else b""))
            elif record.destination is None or record.destination in broken:
                passed += 1
                continue
            else:
                destinations.setdefault(record.destination, []).insert(0, record.data)
                moved += 1
            del self.waiting[id_]
            self._forget([id_])
        return len(ids), moved, passed


class DelayModel:
    """A model of DelayQueue: a call goes to the shards of its ids, or to all shards in turn."""

    def __init__(self, wire: Wire, clock: Callable[[], int], settings: Settings) -> None:
        self.shards = [DelayShard(wire, clock, settings, listed=False) for _ in range(settings.shards)]
        self.destinations: dict[str, list[bytes]] = {}
        self.broken: set[str] = set()
        self.wire = wire

    def shard(self, id_: str) -> DelayShard:
        return self.shards[self.number(id_)]

    def number(self, id_: str) -> int:
        return zlib.crc32(id_.encode()) % len(self.shards)

    def push(self, entries: Sequence[Pushed], on_conflict: str) -> list[str]:
        """Store entries, shard by shard; a refusal keeps the entries of earlier shards."""
        for shard, group in self._grouped([entry.id for entry in entries]):
            shard.push([entries[index] for index in group], on_conflict)
        return [entry.id for entry in entries]

    def cancel(self, ids: Sequence[str]) -> list[CancelOutcome]:
        return self._each(ids, lambda shard, group: shard.cancel([ids[index] for index in group]))

    def claim(self, turn: int, limit: int, older_than: int) -> list[Taken]:
        """Claim due entries, starting with another shard each time."""
        taken: list[Taken] = []
        for offset in range(len(self.shards)):
            if len(taken) < limit:
                shard = self.shards[(turn + offset) % len(self.shards)]
                taken += shard.claim(limit - len(taken), older_than)
        return taken

    def pop(self, turn: int, limit: int, older_than: int) -> list[Taken]:
        taken = self.claim(turn, limit, older_than)
        kept = self.ack([(one.row.id, one.claim.number) for one in taken])
        return [one for one, mine in zip(taken, kept, strict=True) if mine]

    def ack(self, held: Sequence[Held]) -> list[bool]:
        return self._each([id_ for id_, _ in held], lambda shard, group: shard.ack([held[index] for index in group]))

    def release(self, held: Sequence[Held], *, delay: int, reason: str, dead: bool, counted: bool) -> list[bool]:
        """Release leases."""

        def part(shard: DelayShard, group: list[int]) -> list[bool]:
            some = [held[index] for index in group]
            return shard.release(some, delay=delay, reason=reason, dead=dead, counted=counted)

        return self._each([id_ for id_, _ in held], part)

    def move_due(self, limit: int) -> int:
        """Move due entries with a destination."""
        left = limit
        for shard in self.shards:
            left -= shard.move_due(left, self.destinations, self.broken)
        return limit - left

    def put_back(self, limit: int) -> tuple[int, int]:
        returned = died = 0
        for shard in self.shards:
            if (left := limit - returned - died) > 0:
                back, gone = shard.put_back(left)
                returned, died = returned + back, died + gone
        return returned, died

    def redrive(self, ids: Sequence[str] | None, gap: float) -> int:
        """Redrive dead letters, those of each shard after those of the ones before."""
        total = 0
        for shard, group in [(shard, None) for shard in self.shards] if ids is None else self._grouped(ids):
            total += shard.redrive(None if group is None else [ids[index] for index in group], gap, total * gap)
        return total

    def purge(self, places: Sequence[str]) -> int:
        """Delete all entries in the given states."""
        return sum(shard.purge(place) for place in places for shard in self.shards)

    def destroy(self) -> None:
        """Delete everything but the destinations."""
        for shard in self.shards:
            self.wire.send(shard.clear)

    def waiting(self) -> list[tuple[int, str]]:
        """Return due time and id of all waiting entries, in order."""
        return sorted((due, id_) for shard in self.shards for id_, due in shard.waiting.items())

    def _each(self, ids: Sequence[str], call: Callable[[DelayShard, list[int]], list[Any]]) -> list[Any]:
        flags: list[Any] = [False] * len(ids)
        for shard, group in self._grouped(ids):
            for index, flag in zip(group, call(shard, group), strict=True):
                flags[index] = flag
        return flags

    def _grouped(self, ids: Sequence[str]) -> list[tuple[DelayShard, list[int]]]:
        groups: dict[int, list[int]] = {}
        for position, id_ in enumerate(ids):
            groups.setdefault(self.number(id_), []).append(position)
        return [(self.shards[number], group) for number, group in groups.items()]
