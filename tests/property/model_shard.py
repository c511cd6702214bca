"""The base of both models: the content of one set of keys, and the effect of the scripts for leases on it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

from redis_queue.store.settings import Settings

T = TypeVar("T")

MANY: Final = 1_000_000_000
END_MS: Final = 253_402_300_799_000
"""The last second that a datetime can represent."""

SCRIPT_FLAWS: Final = ("not a whole record", "record missing")
"""The problems that scripts detect."""

UNREADABLE: Final = "unreadable"
"""Any problem that only the client detects when it decodes the record."""

Held = tuple[str, int]
"""An id and the number of the claim that leased it."""


class Wire:
    """Counts script calls, and repeats the one with a lost reply like the library."""

    def __init__(self) -> None:
        self._until_loss = 0
        self._meanwhile: Callable[[], object] = object

    def arm(self, number: int, meanwhile: Callable[[], object]) -> None:
        """Lose the reply of call *number*, counted from now; 0 loses none."""
        self._until_loss, self._meanwhile = number, meanwhile

    def send(self, effect: Callable[[], T], recall: Callable[[T], T | None] | None = None) -> T:
        """Return the reply of *effect*, or the answer of the repeated call if the reply is lost.

        *recall* returns the answer of the repetition; None means that the effect happens again.
        """
        reply = effect()
        if self._until_loss:
            self._until_loss -= 1
            if not self._until_loss:
                self._meanwhile()
                recalled = recall(reply) if recall else None
                return effect() if recalled is None else recalled
        return reply


class Record(NamedTuple):
    """A record as stored in Redis, its decoded content, and its problem if it is unreadable."""

    raw: bytes
    put_at: int
    body: Any
    headers: dict[str, Any]
    destination: str | None = None
    flaw: str = ""

    @property
    def data(self) -> bytes:
        """The bytes of the body of a complete record, readable or not."""
        size = int(self.raw.partition(b"\n")[0].split(b" ")[4])
        return self.raw[len(self.raw) - size :]


def make_record(put_at: int, body: Any, headers: dict[str, Any], destination: str | None = None) -> Record:
    kind, data = ("bytes", body) if isinstance(body, bytes) else ("json", _json(body))
    head = _json(headers) if headers else b""
    target = b"" if destination is None else destination.encode()
    third = "" if destination is None else f" {len(target)}"
    frame = f"v1 {put_at} {kind} {len(head)} {len(data)}{third}\n".encode()
    return Record(frame + head + target + data, put_at, body, headers, destination)


def spoil(record: Record, how: str) -> Record:
    """Return *record* as a bug, a bad disk or a manual edit may leave it."""
    frame, _, rest = record.raw.partition(b"\n")
    version, put_at, _, split, _, *third = frame.split(b" ")
    head, target = rest[: int(split)], rest[int(split) : int(split) + sum(map(int, third))]

    def whole(at: bytes, kind: bytes, head: bytes, data: bytes) -> bytes:
        words = [version, at, kind, b"%d" % len(head), b"%d" % len(data), *third]
        return b" ".join(words) + b"\n" + head + target + data

    raw = {
        "cut": record.raw[:-1],
        "garbage": b"\xff garbage",
        "newer": b"v2" + record.raw[2:],
        "body": whole(put_at, b"json", head, b"{no json}"),
        "serializer": whole(put_at, b"pickle", head, b"."),
        "headers": whole(put_at, b"json", b"[]", b"1"),
        "time": whole(b"%d" % (10 * END_MS), b"json", head, b"1"),
    }[how]
    return record._replace(raw=raw, flaw=SCRIPT_FLAWS[0] if how in ("cut", "garbage", "newer") else UNREADABLE)


SPOILED: Final = ("cut", "garbage", "newer", "body", "serializer", "time", "headers")


def due_order(places: dict[str, int]) -> list[str]:
    """Return the ids of a sorted set in its order: by score, then by id."""
    return sorted(places, key=lambda id_: (places[id_], id_.encode()))


def same(reply: T) -> T:
    """Answer a repeated call like the first one."""
    return reply


class Row(NamedTuple):
    """One message in the answer of a claim."""

    id: str
    deliveries: int
    record: Record


@dataclass
class Claim:
    """The outcome of one claim: its number (0: empty), and whether another claim may find more at once."""

    number: int = 0
    expires: int = 0
    rows: list[Row] = field(default_factory=list)
    again: bool = False
    next_in: float = float("inf")


class ShardModel:
    def __init__(self, wire: Wire, clock: Callable[[], int], settings: Settings, *, listed: bool) -> None:
        self.wire, self.clock, self.settings, self.listed = wire, clock, settings, listed
        self.clear()

    def clear(self) -> None:
        """Reset the model."""
        self.meta: Counter[str] = Counter()
        self.records: dict[str, Record] = {}
        self.ready: list[str] = []  # the next one is last
        self.waiting: dict[str, int] = {}
        self.in_flight: dict[str, int] = {}
        self.leases: dict[str, tuple[int, int | None]] = {}  # deliveries, number of the current claim
        self.errors: dict[str, str] = {}
        self.dead: dict[str, int] = {}
        self.quarantine: list[tuple[int, str, str, bytes]] = []  # time, id, reason, bytes
        self.wake = 0

    def state(self) -> dict[str, Any]:
        """Return the expected content of Redis."""
        return {
            "meta": {name: count for name, count in self.meta.items() if count},
            "records": {id_: record.raw for id_, record in self.records.items()},
            "ready": self.ready,
            "waiting": self.waiting,
            "in_flight": self.in_flight,
            "leases": self.leases,
            "errors": self.errors,
            "dead": self.dead,
            "quarantine": self.quarantine,
            "wake": self.wake,
        }

    @property
    def placed(self) -> list[str]:
        return [*self.ready, *self.waiting, *self.in_flight, *self.dead]

    @property
    def lost(self) -> set[str]:
        """The ids whose record was deleted."""
        return set(self.placed) - set(self.records)

    def due(self, now: int) -> list[str]:
        """Return the due ids, the longest due first."""
        return [id_ for id_ in due_order(self.waiting) if self.waiting[id_] <= now]

    def flaw(self, id_: str) -> str:
        """Return the problem of a record; "" if it is readable."""
        return self.records[id_].flaw if id_ in self.records else SCRIPT_FLAWS[1]

    def deliveries(self, id_: str) -> int:
        """Return the number of claims of a message."""
        return self.leases.get(id_, (0, None))[0]

    def holds(self, id_: str, number: int) -> bool:
        """Return whether claim *number* still holds the message."""
        return self.leases.get(id_, (0, None))[1] == number

    def ack(self, held: Sequence[Held]) -> list[bool]:
        def effect() -> list[bool]:
            flags = []
            for id_, number in held:
                flags.append(self.holds(id_, number))
                if flags[-1]:
                    self._forget([id_])
                    self.in_flight.pop(id_)
                    self.meta["acked"] += 1
            return flags

        return self.wire.send(effect, lambda flags: flags if any(flags) else None)

    def release(self, held: Sequence[Held], *, delay: int, reason: str, dead: bool, counted: bool) -> list[bool]:
        """Release leases, the last first, so that the first is delivered first."""
        now = self.clock()

        def effect() -> list[bool]:
            flags = [self.holds(*one) and leave(one[0]) for one in reversed(held)]
            if any(flags):
                self._wake()
            return flags[::-1]

        def leave(id_: str) -> bool:
            self.in_flight.pop(id_)
            if reason:
                self.errors[id_] = reason
            deliveries = self.deliveries(id_) - (0 if counted or dead else 1)
            self.leases.pop(id_)
            if deliveries:
                self.leases[id_] = (deliveries, None)
            if dead or (counted and 0 < self.settings.max_deliveries <= deliveries):
                self.dead[id_] = now
                self.meta["dead"] += 1
                return True
            self._come_back(id_, now, delay)
            self.meta["redelivered"] += 1
            return True

        return self.wire.send(effect, lambda flags: flags if any(flags) else None)

    def _come_back(self, id_: str, now: int, delay: int) -> None:
        if self.listed and not delay:
            self.ready.append(id_)
        else:
            self.waiting[id_] = now + delay

    def extend(self, held: Sequence[Held], lease: int) -> list[bool]:
        """Extend leases; 0 only checks them."""
        now = self.clock()

        def effect() -> list[bool]:
            flags = [self.holds(*one) for one in held]
            for (id_, _), mine in zip(held, flags, strict=True):
                if mine and lease:
                    self.in_flight[id_] = max(self.in_flight[id_], now + lease)
            return flags

        return self.wire.send(effect)

    def put_back(self, limit: int) -> tuple[int, int]:
        """End up to *limit* expired leases; return the number of returned messages and of dead letters."""
        now = self.clock()
        _, returned, died = self.wire.send(lambda: self._put_back(now, limit))
        return returned, died

    def _put_back(self, now: int, limit: int) -> tuple[int, int, int]:
        ids = [id_ for id_ in due_order(self.in_flight) if self.in_flight[id_] <= now][:limit]
        returned = died = 0
        for id_ in reversed(ids):
            self.in_flight.pop(id_)
            deliveries, _ = self.leases.pop(id_)
            if id_ not in self.records:
                self.quarantine.append((now, id_, SCRIPT_FLAWS[1], b""))
                continue
            self.leases[id_] = (deliveries, None)
            before = self.errors.get(id_, "lease expired")
            self.errors[id_] = before if before.startswith("lease expired") else f"lease expired; before that: {before}"
            if 0 < self.settings.max_deliveries <= deliveries:
                self.dead[id_] = now
                died += 1
            else:
                returned += 1
                self._come_back(id_, now, 0)
        self.meta["dead"] += died
        self.meta["redelivered"] += returned
        self.meta["put_back"] += returned + died
        if returned:
            self._wake()
        return len(ids), returned, died

    def redrive(self, ids: Sequence[str] | None, gap: float, after: float = 0.0) -> int:
        """Redrive dead letters, the first one *after* some ms, then one each *gap* ms."""
        now, chosen = self.clock(), due_order(self.dead) if ids is None else ids
        return self.wire.send(lambda: self._redrive(now, chosen, gap, after), same) if chosen else 0

    def _redrive(self, now: int, ids: Sequence[str], gap: float, after: float) -> int:
        moved = 0
        for id_ in ids:
            if id_ not in self.dead:
                continue
            self.dead.pop(id_)
            self.leases.pop(id_, None)
            if id_ not in self.records:
                self.quarantine.append((now, id_, SCRIPT_FLAWS[1], b""))
                continue
            delay = int(after + moved * gap)
            if self.listed and not delay:
                self.ready.insert(0, id_)
            else:
                self.waiting[id_] = now + delay
            moved += 1
        if moved:
            self._wake()
        return moved

    def purge(self, place: str) -> int:
        """Delete all entries in one state; a purge of the quarantine without a reply is not counted."""
        standing: list[Any] | dict[str, int] = getattr(self, place)
        size, total = len(standing), 0
        if place == "quarantine":
            self.wire.send(self.quarantine.clear)
            return size
        while total < size and (deleted := self.wire.send(lambda: self._purge(place, size - total), same)):  # noqa: B023
            total += deleted
        return total

    def _purge(self, place: str, limit: int) -> int:
        if place == "ready":
            ids = self.ready[-limit:]
            del self.ready[-limit:]
        else:
            scores: dict[str, int] = getattr(self, place)
            ids = due_order(scores)[:limit]
            for id_ in ids:
                del scores[id_]
        self._forget(ids)
        return len(ids)

    def lease_out(self, ids: Sequence[str], now: int) -> Claim:
        """Lease *ids*, which were removed from their state; quarantine records that the scripts cannot read."""
        self.meta["claims"] += 1
        claim = Claim(self.meta["claims"], now + self.settings.lease_ms)
        for id_ in ids:
            flaw = self.flaw(id_)
            if flaw in SCRIPT_FLAWS:
                raw = self.records.pop(id_).raw if id_ in self.records else b""
                self.quarantine.append((now, id_, flaw, raw))
                self.leases.pop(id_, None)
            else:
                self.leases[id_] = (self.deliveries(id_) + 1, claim.number)
                self.in_flight[id_] = claim.expires
                claim.rows.append(self._row(id_))
        claim.again = not claim.rows
        return claim

    def held_by(self, claim: Claim) -> Claim:
        """Return the answer to a repeated claim: the messages that the first one still holds."""
        rows = [self._row(id_) for id_ in due_order(self.in_flight) if self.holds(id_, claim.number)]
        return Claim(claim.number, claim.expires, rows, again=claim.again)

    def readable(self, claim: Claim) -> list[Row]:
        """Return the readable rows of a claim; the client quarantines the others, one by one."""
        for id_, _, record in claim.rows:
            if record.flaw:
                self.set_aside(id_, claim.number)
        return [row for row in claim.rows if not row.record.flaw]

    def set_aside(self, id_: str, number: int) -> bool:
        """Quarantine a message; a repeated call finds no lease."""
        now = self.clock()

        def effect() -> bool:
            mine = self.holds(id_, number)
            if mine:
                raw = self.records[id_].raw if id_ in self.records else b""
                self.quarantine.append((now, id_, UNREADABLE, raw))
                self._forget([id_])
                self.in_flight.pop(id_)
            return mine

        return self.wire.send(effect)

    def _row(self, id_: str) -> Row:
        return Row(id_, self.deliveries(id_), self.records[id_])

    def letters(self) -> list[tuple[str, Any, int, int, str]]:
        """Return id, body, time, deliveries and reason of each dead letter, oldest first."""
        return [
            (
                id_,
                None if self.flaw(id_) else self.records[id_].body,
                self.dead[id_],
                self.deliveries(id_),
                self.errors.get(id_, ""),
            )
            for id_ in due_order(self.dead)
        ]

    def put_at(self, id_: str) -> int | None:
        """Return the time of the put, if the record has one that a datetime can represent."""
        found = re.match(rb"v1 (\d+) ", self.records[id_].raw) if id_ in self.records else None
        return min(int(found[1]), END_MS) if found else None

    def _forget(self, ids: Iterable[str]) -> None:
        for id_ in ids:
            self.records.pop(id_, None)
            self.leases.pop(id_, None)
            self.errors.pop(id_, None)

    def _wake(self) -> None:
        if self.listed:
            self.wake = self.wake or 1


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
