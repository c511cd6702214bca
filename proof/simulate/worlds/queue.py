"""A RedisQueue: a producer, and consumers with threads, batches and a heartbeat."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from proof.simulate.scheduler import SIM, Process
from proof.simulate.server import MODEL, Server
from proof.simulate.world import URL, World
from redis_queue.errors import StoreError
from redis_queue.model import Message
from redis_queue.queue.claims import Step
from redis_queue.queue.consumer import Consumer
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.connection import connect
from redis_queue.store.keys import Keys
from redis_queue.store.settings import Settings
from redis_queue.validation.history import Event, Violation

MESSAGES: Final = 10

SETTLED: Final = 1.0
"""Seconds within which a message that is done is acked, however long the rest of its batch takes."""


class Observed(RedisQueue):
    """A queue that notes what is claimed and settled."""

    world: QueueWorld

    def get_many(self, limit: int, **options: Any) -> list[Message]:
        return self._claimed(super().get_many(limit, **options))

    def ack_many(self, messages: Iterable[Message]) -> list[bool]:
        done = list(messages)
        self._note("ack", "invoke", done)
        return self._acked(done, super().ack_many(done))

    def ack_then_get(self, messages: Iterable[Message], limit: int) -> Callable[[], Step]:
        done = list(messages)
        self._note("ack", "invoke", done)
        call = super().ack_then_get(done, limit)

        def noted() -> Step:
            step = call()
            self._acked(done, step.accepted)
            self._claimed(step.messages)
            return step

        return noted

    def _claimed(self, messages: list[Message]) -> list[Message]:
        self.world.note(*(Event.of_claim(message.body, message, self.world.lease) for message in messages))
        return messages

    def _acked(self, done: Sequence[Message], accepted: list[bool]) -> list[bool]:
        for message, mine in zip(done, accepted, strict=True):
            self._note("ack", "ok" if mine else "refused", [message])
        return accepted

    def _note(self, op: str, kind: Any, messages: Iterable[Message]) -> None:
        for message in messages:
            self.world.held.pop(message.body, None)
        self.world.note(*(Event(op, kind, message.body, _claim(message)) for message in messages))


def _claim(message: Message) -> int:
    return int(message.lease.token.partition("-")[0]) if message.lease else 0


class QueueWorld(World):
    """One producer, two consumers."""

    keys: Final = Keys("sim", "queue", "work")
    _put = False

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        #: Who handles a message, or has to ack it, and since when.
        self.held: dict[str, tuple[Process, float]] = {}
        self._found: list[tuple[str, str]] = []

    @property
    def roles(self) -> dict[str, Callable[[], object]]:
        return {"producer": self.produce, "consumer-1": self.consume, "consumer-2": self.consume}

    def open(self) -> Observed:
        settings = Settings(prefix="sim", lease=self.lease, max_deliveries=0, poll_interval=5.0)
        queue = Observed("work", connect(URL, check=False), settings=settings)
        queue.world = self
        return queue

    def produce(self) -> None:
        """Put messages, each once, with and without a delay."""
        queue = self.open()
        begun = {event.id for event in self.events}
        for number in range(MESSAGES):
            label = f"m{number}"
            if label in begun:
                continue
            delay = SIM.rng.choice((0.0, 0.0, 0.0, SIM.rng.uniform(0, 5)))
            lane = 0 if delay else 1
            due = self.now_ms() + round(delay * 1000) if delay else 0
            self.note(Event("put", "invoke", label, due=due, lane=lane))
            try:
                queue.put(label, delay=delay)
                self.note(Event("put", "ok", label, due=due, lane=lane))
            except StoreError:
                pass
            time.sleep(SIM.rng.uniform(0, 2 * self.horizon / MESSAGES))
        self._put = True

    def consume(self) -> None:
        Consumer(self.open(), self.handle, concurrency=2, batch=3, grace=5, retry_delay=lambda _: 1.0).run()

    def handle(self, message: Message) -> None:
        """Take a moment, or longer than a lease; fail at times."""
        assert SIM.current is not None
        label, mine = message.body, SIM.current.process
        found = ["has two holders"] if label in self.held and self.held[label][0].alive else []
        self.held[label] = mine, math.inf
        self.note(Event("execute", "ok", label, _claim(message)))
        time.sleep(SIM.rng.choice((0.001, 0.01, 0.1, SIM.rng.uniform(0, 2 * self.lease))))
        found += ["waits for its batch" for by, since in self.held.values() if by is mine and SIM.now - since > SETTLED]
        # Other faults may hold up an extension of the lease, or an ack.
        self._found += [(promise, label) for promise in found if self.faults <= {"kill", "skew"}]
        self.held[label] = mine, SIM.now
        if SIM.rng.random() < 0.1:
            del self.held[label]
            raise ValueError("this one fails")

    def is_done(self) -> bool:
        return self._put and not MODEL.call(b"HLEN", self.keys.records)

    def left(self) -> Iterator[str]:
        records: Any = MODEL.call(b"HVALS", self.keys.records)
        yield from (record.rpartition(b"\n")[2].decode().strip('"') for record in records)

    def wrong(self) -> Iterator[Violation]:
        """Yield what was found on the way, and ids in two places, or in none."""
        yield from (Violation(promise, label, self.events) for promise, label in self._found)
        places = [self.keys.waiting, self.keys.in_flight, self.keys.dead]
        found: Any = MODEL.call(b"LRANGE", self.keys.ready, b"0", b"-1")
        for key in places:
            found += MODEL.call(b"ZRANGE", key, b"0", b"-1")
        records: Any = MODEL.call(b"HKEYS", self.keys.records)
        if sorted(found) != sorted(records):
            yield Violation(f"misplaced: {found} for {records}", "-", [])
