"""A model of RedisQueue in plain Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from redis_queue.errors import QueueFullError
from redis_queue.store.settings import Settings
from tests.property.model_shard import MANY, Claim, Row, ShardModel, Wire, make_record, same


class Put(NamedTuple):
    """One message of a put: its id, delay in ms, body and headers."""

    id: str
    delay: int
    body: Any
    headers: dict[str, Any]


class QueueModel(ShardModel):
    """A model of RedisQueue, one script call at a time."""

    def __init__(self, wire: Wire, clock: Callable[[], int], settings: Settings) -> None:
        super().__init__(wire, clock, settings, listed=True)

    def state(self) -> dict[str, Any]:
        """Return the expected content of Redis."""
        found = super().state()
        return {**found, "meta": {**found["meta"], **({"paused": 1} if self.paused else {})}}

    def put(self, messages: Sequence[Put]) -> list[str]:
        """Store all messages with new ids, or none of them."""
        now = self.clock()
        if self.wire.send(lambda: self._put(messages, now), same) == "full":
            raise QueueFullError
        return [message.id for message in messages]

    def _put(self, messages: Sequence[Put], now: int) -> str:
        new: dict[str, Put] = {}
        for message in messages:
            if message.id not in self.records:
                new.setdefault(message.id, message)
        if not new:
            return "known"
        if 0 < self.settings.max_length < len(self.ready) + len(self.waiting) + len(new):
            return "full"
        for id_, delay, body, headers in new.values():
            self.records[id_] = make_record(now, body, headers)
            if delay:
                self.waiting[id_] = now + delay
            else:
                self.ready.insert(0, id_)
        self.meta["put"] += len(new)
        self.meta["schema"] = 1
        self._wake()
        return "stored"

    def get(self, limit: int) -> list[tuple[Row, Claim]]:
        """Claim; if entries are due, promote and put back; claim again if that made messages ready."""
        found, next_in = self._get_once(limit)
        if next_in > 0:
            return found
        moved = self._promote_some(MANY)
        if self.settings.put_back_on_get:
            moved += self.put_back(self.settings.put_back_on_get)[0]
        return self._get_once(limit)[0] if moved and not found else found

    def _get_once(self, limit: int) -> tuple[list[tuple[Row, Claim]], float]:
        while True:
            now = self.clock()
            claim = self.wire.send(lambda: self._get(limit, now), self.held_by)  # noqa: B023
            if not claim.rows and not claim.again:
                return [], claim.next_in
            if rows := self.readable(claim):
                return [(row, claim) for row in rows], claim.next_in

    def _get(self, limit: int, now: int) -> Claim:
        if self.paused:
            return Claim()
        times = [*self.in_flight.values(), *self.waiting.values()]
        next_in = max(0, min(times) - now) if times else float("inf")
        if not self.ready:
            self.wake = 0
            return Claim(next_in=next_in)
        ids = self.ready[: -limit - 1 : -1]
        del self.ready[-limit:]
        claim = self.lease_out(ids, now)
        claim.next_in = next_in
        if self.ready:
            self._wake()
        return claim

    def promote(self, limit: int) -> int:
        """Promote up to *limit* due messages; those of a call without a reply are not counted."""
        total = 0
        while total < limit and (moved := self._promote_some(limit - total)):
            total += moved
        return total

    def _promote_some(self, limit: int) -> int:
        now = self.clock()

        def effect() -> int:
            ids = self.due(now)[:limit]
            for id_ in ids:
                self.waiting.pop(id_)
                self.ready.insert(0, id_)
            if ids:
                self._wake()
            return len(ids)

        return self.wire.send(effect)

    def pause(self) -> None:
        """Refuse claims."""
        self.wire.send(lambda: setattr(self, "paused", True))

    def resume(self) -> None:
        """Allow claims again. Each call leaves a wake-up token."""
        self.wire.send(lambda: setattr(self, "paused", False))
        self.wire.send(lambda: setattr(self, "wake", self.wake + 1))

    def destroy(self) -> None:
        self.wire.send(self.clear)

    def clear(self) -> None:
        super().clear()
        self.paused = False
