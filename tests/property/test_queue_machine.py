"""RedisQueue against its model: after any sequence of calls, Redis and the answers match the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from redis_queue import Message, RedisQueue, Settings
from redis_queue.store.keys import Keys
from tests.property.harness import LEASE_MS, NO_LOSS, Loss, ms, timeout, token_number
from tests.property.machine import NAME, Issued, Machine, delays, leases, limits, losses, run_machine, works
from tests.property.model_queue import Put, QueueModel
from tests.property.model_shard import Claim, Row

IDS = ("a", "b")
PLACES = {"ready": "ready", "delayed": "waiting", "dead": "dead", "quarantine": "quarantine"}

Seen = tuple[str, Any, dict[str, Any], int, int, int, int]

ids = st.sampled_from(IDS)


class QueueMachine(Machine):
    """Two clients of one queue, with the passage of time, lost replies and damaged records."""

    alphabet = IDS
    settings: ClassVar = Settings(lease=LEASE_MS / 1000, max_deliveries=2, put_back_on_get=1)

    def __init__(self) -> None:
        super().__init__()
        self.open(RedisQueue, settings=self.settings)
        self.model = QueueModel(self.wire, self.clock, self.settings)
        self.parts = [(self.model, Keys(self.settings.prefix, "queue", NAME))]

    @initialize(dead=st.booleans())
    def start(self, dead: bool) -> None:
        """Start with one message in flight and the other ready, or the other dead."""
        for number, id_ in enumerate(IDS):
            self.store([Put(id_, 0, self.body(), {})], NO_LOSS)
            if number == 0 or dead:
                self.claim(lambda: self.queue.get_many(1), 1, NO_LOSS)
        if dead:
            self.give_back([0], 0, "why", "dead", NO_LOSS)

    # --- producers ---

    @rule(id_=ids, delay=delays, headers=st.booleans(), loss=losses)
    @precondition(Machine.room)
    def put(self, id_: str, delay: int, headers: bool, loss: Loss) -> None:
        """Store one message under an id that may exist."""
        self.store([Put(self.storable(id_), delay, self.body(), {"h": self.serial} if headers else {})], loss)

    @rule(names=st.lists(ids, min_size=1, max_size=3), delay=delays, loss=losses)
    @precondition(Machine.room)
    def put_many(self, names: list[str], delay: int, loss: Loss) -> None:
        """Store several messages at once, some with the same id."""
        self.store([Put(self.storable(name), delay, self.body(), {}) for name in names], loss)

    # --- consumers ---

    @rule(limit=limits, loss=losses)
    @precondition(lambda self: self.model.ready or self.model.waiting or self.model.in_flight)
    def get_many(self, limit: int, loss: Loss) -> None:
        self.claim(lambda: self.queue.get_many(limit), limit, loss)

    @rule()
    @precondition(lambda self: self.model.ready)
    def get(self) -> None:
        self.claim(lambda: [message for message in [self.queue.get(block=False)] if message], 1, NO_LOSS)

    @rule(limit=limits)
    @precondition(lambda self: self.model.ready and not self.model.paused and self.readable_ids() == self.placed_ids())
    def get_broken_off(self, limit: int) -> None:
        """Claim while Redis refuses to record the lease."""
        self.break_off(lambda: self.queue.get_many(limit))
        self.model.meta["claims"] += 1

    @rule(lease=leases, loss=losses)
    @precondition(Machine.in_flight)
    def check(self, lease: int, loss: Loss) -> None:
        (message,), held = self.pick([lease])
        self.both(lambda: [self.queue.still_mine(message)], lambda: self.model.extend(held, 0), loss)

    @rule(lease=leases, loss=losses)
    @precondition(lambda self: self.model.in_flight and self.seldom())
    def call_unreadable(self, lease: int, loss: Loss) -> None:
        """Quarantine a message with any lease, as a client does that cannot read it."""
        (message,), ((id_, number),) = self.pick([lease])
        self.both(
            lambda: self.within(lambda queue: queue._records.quarantine(message, "why")),
            lambda: self.model.set_aside(id_, number),
            loss,
        )

    # --- upkeep ---

    @rule(limit=works, loss=losses)
    @precondition(lambda self: self.model.due(self.clock.now) or (self.model.waiting and self.seldom()))
    def promote(self, limit: int, loss: Loss) -> None:
        """Promote delayed messages, if any are due."""
        self.both(lambda: self.queue.promote(limit), lambda: self.model.promote(limit), loss)

    @rule(places=st.sampled_from(((), ("ready",), ("delayed",), ("dead",), ("quarantine", "dead"))), loss=losses)
    @precondition(lambda self: self.seldom() and (self.model.placed or self.model.quarantine))
    def purge(self, places: tuple[Any, ...], loss: Loss) -> None:
        """Delete all messages in some states."""
        self.both(
            lambda: self.queue.purge(*places),
            lambda: sum(self.model.purge(PLACES[place]) for place in places or ("ready", "delayed")),
            loss,
        )

    @rule(what=st.sampled_from(("resume", "pause", "destroy")), loss=losses)
    @precondition(lambda self: self.model.paused or self.seldom())
    def administer(self, what: str, loss: Loss) -> None:
        """Pause or resume the queue, or delete it once while old leases are still around."""
        if self.model.paused or (what == "destroy" and self.life):
            what = "resume"
        self.both(getattr(self.queue, what), getattr(self.model, what), loss)
        self.life += what == "destroy"

    # --- invariants ---

    @invariant()
    @precondition(Machine.at_times)
    def looks_are_as_the_model_says(self) -> None:
        """All reads match the model."""
        model, queue, limit = self.model, self.queue, 1 + self.serial % 2
        ready = [id_ for id_ in model.ready[: -limit - 1 : -1] if not model.flaw(id_)]
        assert [peeked(message) for message in queue.peek(limit)] == [
            (id_, model.records[id_].body, model.records[id_].put_at, model.deliveries(id_)) for id_ in ready
        ]
        stats = queue.stats()
        places = (model.ready, model.waiting, model.in_flight, model.dead, model.quarantine)
        assert (stats.ready, stats.delayed, stats.in_flight, stats.dead, stats.quarantined) == tuple(map(len, places))
        totals = (stats.put, stats.acked, stats.redelivered, stats.put_back)
        assert totals == tuple(model.meta[name] for name in ("put", "acked", "redelivered", "put_back"))
        assert stats.paused == model.paused
        oldest = stats.oldest_ready_at
        assert (ms(oldest) if oldest else None) == (model.put_at(model.ready[-1]) if model.ready else None)

    # --- helpers ---

    def store(self, messages: list[Put], loss: Loss) -> None:
        """Put on both sides: one message with `put`, several with `put_many`."""
        first, seconds, following = messages[0], messages[0].delay / 1000, iter(messages)
        if len(messages) == 1:
            body, head, name = first.body, first.headers or None, first.id
            self.both(
                lambda: [self.queue.put(body, delay=seconds, headers=head, dedupe_key=name)],
                lambda: self.model.put(messages),
                loss,
            )
        else:
            bodies = [message.body for message in messages]
            self.both(
                lambda: self.queue.put_many(bodies, delay=seconds, dedupe_key=lambda _: next(following).id),
                lambda: self.model.put(messages),
                loss,
            )

    def claim(self, real: Callable[[], list[Message]], limit: int, loss: Loss) -> None:
        """Claim on both sides and keep the leases. A repeated claim may have another order."""
        claimed: list[Message] = []

        def remember() -> list[Seen]:
            claimed.extend(real())
            return [seen(message) for message in claimed]

        order = by_id if loss.number else list
        self.both(lambda: order(remember()), lambda: order([row_seen(*found) for found in self.model.get(limit)]), loss)
        self.issued += [Issued(message, self.life) for message in claimed]

    def consume_real(self) -> None:
        """Claim and ack as the other client."""
        other = self.clients[1]
        other.ack_many(other.get_many(2))

    def consume_model(self) -> None:
        if found := self.model.get(2):
            self.model.ack([(row.id, claim.number) for row, claim in found])


class BoundedQueueMachine(QueueMachine):
    """A queue that refuses more than one waiting message and leaves expired leases to put_back."""

    settings = Settings(lease=LEASE_MS / 1000, max_deliveries=3, max_length=1, put_back_on_get=0)


def peeked(message: Message) -> tuple[str, Any, int, int]:
    """Return the attributes of an unclaimed message that the model knows."""
    return message.id, message.body, ms(message.put_at), message.deliveries


def seen(message: Message) -> Seen:
    """Return the attributes of a claimed message that the model knows."""
    assert message.lease
    number, expires = token_number(message.lease.token), ms(message.lease.expires_at)
    id_, body, put_at, deliveries = peeked(message)
    return id_, body, dict(message.headers), put_at, deliveries, number, expires


def row_seen(row: Row, claim: Claim) -> Seen:
    """Return the same attributes of a row of the model."""
    record = row.record
    return row.id, record.body, record.headers, record.put_at, row.deliveries, claim.number, claim.expires


def by_id(found: list[Seen]) -> list[Seen]:
    return sorted(found, key=lambda one: one[0])


@pytest.mark.timeout(timeout())
@pytest.mark.parametrize("on_loop", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize("machine", [QueueMachine, BoundedQueueMachine])
def test_every_sequence_of_calls_agrees_with_the_model(
    machine: type[QueueMachine], client: redis.Redis, monkeypatch: pytest.MonkeyPatch, on_loop: bool
) -> None:
    """No sequence of calls, lost replies, damage and time makes RedisQueue differ from its model."""
    run_machine(machine, client, monkeypatch, on_loop=on_loop)
