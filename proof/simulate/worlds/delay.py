"""A DelayQueue: a producer that pushes and cancels, movers into a list, claimers, and a sweep."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from proof.simulate.scheduler import SIM
from proof.simulate.server import MODEL
from proof.simulate.world import URL, World
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import StoreError
from redis_queue.model import CancelOutcome
from redis_queue.store.connection import connect
from redis_queue.store.keys import Keys
from redis_queue.store.settings import Settings
from redis_queue.validation.history import Event

ENTRIES: Final = 14

LIST: Final = b"moved"


class DelayWorld(World):
    """Half of the entries are moved into a list, the others are claimed."""

    keys: Final = Keys("sim", "delay", "later", 0)
    _pushed = False
    _drained = 0

    @property
    def roles(self) -> dict[str, Callable[[], object]]:
        return {"producer": self.produce, "mover-1": self.move, "mover-2": self.move, "claimer": self.claim}

    def begin(self) -> None:
        """Start, and empty the list in which moved entries arrive."""
        super().begin()
        self._drain()

    def open(self) -> DelayQueue:
        settings = Settings(prefix="sim", lease=self.lease, max_deliveries=0)
        return DelayQueue("later", connect(URL, check=False), settings=settings)

    def produce(self) -> None:
        """Push each entry once; cancel some."""
        queue = self.open()
        begun = {event.id for event in self.events}
        for number in range(ENTRIES):
            label = f"d{number}"
            if label in begun:
                continue
            delay = SIM.rng.choice((0.0, SIM.rng.uniform(0, self.horizon)))
            due = self.now_ms() + round(delay * 1000)
            self.note(Event("put", "invoke", label, due=due))
            try:
                queue.push(label, delay=delay, id=label, destination=LIST.decode() if number % 2 else None)
                self.note(Event("put", "ok", label, due=due))
                if SIM.rng.random() < 0.3:
                    time.sleep(SIM.rng.uniform(0, delay))
                    self.note(Event("cancel", "invoke", label))
                    outcome = queue.cancel(label)
                    if outcome is not CancelOutcome.MAYBE_SENT:
                        self.note(Event("cancel", "ok" if outcome else "refused", label, at=self.now_ms()))
            except StoreError:
                pass
            time.sleep(SIM.rng.uniform(0, self.horizon / ENTRIES))
        self._pushed = True

    def move(self) -> None:
        queue = self.open()
        while True:
            self._try(lambda: queue.move_due(SIM.rng.choice((1, 3, 100)), lists=[LIST.decode()]))
            time.sleep(SIM.rng.uniform(0.1, 2))

    def claim(self) -> None:
        """Claim what is due and stays, work on it, and settle it; put back expired leases."""
        queue = self.open()
        while True:
            self._try(queue.put_back)
            self._try(lambda: self._work(queue))
            time.sleep(SIM.rng.uniform(0.1, 3))

    def _work(self, queue: DelayQueue) -> None:
        # Those of the list are given a second to get there.
        for entry in queue.claim(3, older_than=1):
            claimed = Event.of_claim(entry.id, entry, self.lease)
            self.note(claimed, Event("execute", "ok", entry.id, claimed.claim))
            time.sleep(SIM.rng.choice((0.01, 0.01, SIM.rng.uniform(0, 1.5 * self.lease))))
            self.note(Event("ack", "invoke", entry.id, claimed.claim))
            self.note(Event("ack", "ok" if queue.ack(entry) else "refused", entry.id, claimed.claim))

    @staticmethod
    def _try(call: Callable[[], object]) -> None:
        try:
            call()
        except StoreError:
            time.sleep(0.1)

    def _drain(self) -> None:
        while (element := MODEL.call(b"RPOP", LIST)) is not None:
            self._drained += 1
            id_, claim = json.loads(element), 10**9 + self._drained  # type: ignore[arg-type]
            self.note(Event("claim", "ok", id_, claim, self.now_ms()), Event("ack", "ok", id_, claim))
        SIM.at(SIM.now + 0.05, self._drain)

    def is_done(self) -> bool:
        return self._pushed and not MODEL.call(b"HLEN", self.keys.records) and not MODEL.call(b"LLEN", LIST)

    def left(self) -> Iterator[str]:
        records: Any = MODEL.call(b"HKEYS", self.keys.records)
        yield from (record.decode() for record in records)
