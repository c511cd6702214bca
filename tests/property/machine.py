"""The base of both machines: two clients, faults, and the comparison with the model after every step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import astuple
from typing import Any, ClassVar, Final, NamedTuple

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from redis_queue import aio
from redis_queue.errors import RedisQueueError, StoreRefusedError
from redis_queue.model import DeadLetter, Entry, Message, Quarantined
from redis_queue.store.keys import Keys
from redis_queue.store.links import DirectLink
from tests.property.harness import LEASE_MS, LOSSES, NO_LOSS, TICKS, Loss, LossyLink, OnLoop, ms, profile, token_number
from tests.property.model_shard import MANY, SPOILED, Held, ShardModel, Wire, spoil
from tests.property.state import differences, dump, misplaced, take_shard, told
from tests.support.clock import Clock

NAME: Final = "q"
DAMAGE: Final = ("delete", *SPOILED)

losses = st.sampled_from(LOSSES)
leases = st.integers(0, 9)
some_leases = st.lists(leases, min_size=1, max_size=3)
delays = st.sampled_from((0, 0, 1, LEASE_MS))
reasons = st.sampled_from(("", "why"))
limits = st.sampled_from((1, 2, 3))
works = st.sampled_from((1, MANY))
names = st.integers(0, 2)


class Issued(NamedTuple):
    """A claimed item and the life of the queue in which it was claimed; most leases are stale."""

    item: Message | Entry
    life: int


class Machine(RuleBasedStateMachine):
    """Runs each call on the queue and on the model."""

    server: ClassVar[redis.Redis]
    #: Runs the queues for asyncio; None: those for threads.
    loop: ClassVar[asyncio.AbstractEventLoop | None] = None
    model: Any
    alphabet: ClassVar[tuple[str, ...]]

    def __init__(self) -> None:
        super().__init__()
        self.server.flushall()
        self.clock = Clock()
        self.wire = Wire()
        self._direct = DirectLink(self.server)
        self.link = LossyLink(self._direct)
        self.clients: list[Any] = []
        self.parts: list[tuple[ShardModel, Keys]] = []
        self.issued: list[Issued] = []
        self.life = self.serial = self.calls = self.disturbed_at = 0

    def teardown(self) -> None:
        """Close the connections of this example."""
        self._direct.close()
        if self.loop is not None:
            self.loop.run_until_complete(aio.run(self._direct.close))

    def open(self, kind: Any, **options: Any) -> None:
        """Open two clients of one queue; for asyncio if there is a loop."""
        made = kind if self.loop is None else getattr(aio, kind.__name__)
        for _ in range(2):
            queue = made(NAME, self.server, clock=self.clock, **options)
            sync = queue if self.loop is None else queue.sync
            sync._shards.scripts._link = self.link
            self.clients.append(queue if self.loop is None else OnLoop(queue, self.loop))

    def within(self, work: Callable[[Any], Any]) -> Any:
        """Return what *work* returns for the synchronous queue of the client."""
        return work(self.queue) if self.loop is None else self.loop.run_until_complete(aio.run(work, self.queue.sync))

    # --- calls of both queues ---

    @property
    def queue(self) -> Any:
        """The client that makes the calls."""
        return self.clients[0]

    @rule(lease=leases, loss=losses)
    @precondition(lambda self: self.in_flight() or self.seldom())
    def ack(self, lease: int, loss: Loss) -> None:
        """Ack an item with any lease, current or stale."""
        (item,), held = self.pick([lease])
        self.both(lambda: [self.queue.ack(item)], lambda: self.model.ack(held), loss)

    @rule(many=st.lists(leases, min_size=2, max_size=4), loss=losses)
    @precondition(lambda self: self.in_flight())
    def ack_many(self, many: list[int], loss: Loss) -> None:
        """Ack several items at once, with current and stale leases, some of them twice."""
        items, held = self.pick(many)
        self.both(lambda: self.queue.ack_many(items), lambda: self.model.ack(held), loss)

    @rule(many=some_leases, delay=delays, reason=reasons, counted=st.booleans(), loss=losses)
    @precondition(lambda self: self.in_flight())
    def nack(self, many: list[int], delay: int, reason: str, counted: bool, loss: Loss) -> None:
        """Give items back, with current and stale leases."""
        self.give_back(many, delay, reason, "" if counted else "uncounted", loss)

    @rule(lease=leases, reason=reasons, loss=losses)
    @precondition(lambda self: self.in_flight())
    def give_up(self, lease: int, reason: str, loss: Loss) -> None:
        """Bury an item, with any lease."""
        self.give_back([lease], 0, reason, "dead", loss)

    @rule(lease=leases, length=st.sampled_from((1, LEASE_MS, 3 * LEASE_MS)), loss=losses)
    @precondition(lambda self: self.in_flight())
    def extend(self, lease: int, length: int, loss: Loss) -> None:
        (item,), held = self.pick([lease])
        shard, _ = self.part(item.id)
        self.both(lambda: [self.queue.extend(item, length / 1000)], lambda: shard.extend(held, length), loss)

    @rule(limit=works, loss=losses)
    @precondition(lambda self: self.expired())
    def put_back(self, limit: int, loss: Loss) -> None:
        """Put back expired leases, if there are any."""
        self.both(lambda: astuple(self.queue.put_back(limit)), lambda: self.model.put_back(limit), loss)

    @rule(several=st.none() | st.lists(names, max_size=3), rate=st.sampled_from((None, 1000.0, 0.3)), loss=losses)
    @precondition(lambda self: any(shard.dead for shard, _ in self.parts))
    def redrive(self, several: list[int] | None, rate: float | None, loss: Loss) -> None:
        ids = None if several is None else [self.known(name) for name in several]
        gap = 1000 / rate if rate else 0.0
        self.both(lambda: self.queue.redrive(ids, rate=rate), lambda: self.model.redrive(ids, gap), loss)

    # --- faults and invariants of both queues ---

    @rule(ms=st.sampled_from(TICKS))
    @precondition(lambda self: any(shard.waiting or shard.in_flight for shard, _ in self.parts))
    def tick(self, ms: int) -> None:
        """Move the clock forward."""
        self.clock.now += ms

    @rule(flush=st.booleans())
    @precondition(lambda self: self.calls != self.disturbed_at)
    def disturb(self, flush: bool) -> None:
        """Swap the clients; with *flush*, Redis forgets the scripts, as after a restart."""
        if flush:
            self.server.script_flush()
        self.clients.reverse()
        self.disturbed_at = self.calls

    @rule(how=st.sampled_from(DAMAGE), number=st.integers(0, 2))
    @precondition(lambda self: self.seldom() and self.readable_ids())
    def damage(self, how: str, number: int) -> None:
        """Overwrite or delete the record of a message in any state; at most one is missing at a time."""
        names = self.readable_ids()
        id_ = names[number % len(names)]
        shard, keys = self.part(id_)
        if how != "delete":
            shard.records[id_] = spoil(shard.records[id_], how)
            self.server.hset(keys.records, id_, shard.records[id_].raw)
        elif not any(other.lost for other, _ in self.parts):
            del shard.records[id_]
            self.server.hdel(keys.records, id_)

    @invariant()
    def redis_is_as_the_model_says(self) -> None:
        """Redis holds exactly the data of the model; each stored id is in exactly one state."""
        found = dump(self.server)
        found.pop(b"redis_queue:registry", None)
        for shard, keys in self.parts:
            got = take_shard(found, keys)
            different = differences(got, shard.state())
            assert not different, f"Redis and the model differ: {different}"
            wrong = misplaced(got, shard.lost)
            assert not wrong, wrong
        others = {key.decode(): content for key, (_, content) in found.items()}
        assert others == self.elsewhere(), f"other keys: {others}"

    @invariant()
    @precondition(lambda self: self.at_times())
    def letters_are_as_the_model_says(self) -> None:
        """Pages of dead letters and of quarantined records match the model."""
        queue, offset = self.clients[0], self.serial % 2
        letters = [letter for shard, _ in self.parts for letter in shard.letters()]
        letters.sort(key=lambda letter: (letter[2], letter[0]))
        assert [letter_seen(letter) for letter in queue.dead_letters(offset=offset)] == letters[offset:]
        items = [item for shard, _ in self.parts for item in shard.quarantine]
        assert list(map(item_seen, queue.quarantined(offset=offset, limit=2))) == items[offset : offset + 2]

    # --- helpers ---

    def both(self, real: Callable[[], Any], model: Callable[[], Any], loss: Loss = NO_LOSS) -> None:
        """Run *real* and *model* at the same time, with the same lost reply, and compare the answers."""
        self.calls += 1
        start = self.clock.now
        self.link.arm(loss.number, lambda: self.meanwhile_real(loss.meanwhile))
        got = outcome(real)
        self.link.arm(0, object)
        self.clock.now = start
        self.wire.arm(loss.number, lambda: self.meanwhile_model(loss.meanwhile))
        expected = outcome(model)
        self.wire.arm(0, object)
        assert got == expected, f"the queue answered {got!r}, the model {expected!r}"

    def break_off(self, claim: Callable[[], Any]) -> None:
        """Let Redis refuse a write in the middle of a claim: no entry may be lost."""
        self.calls += 1
        self.server.execute_command("ACL", "SETUSER", "default", "-zadd")
        try:
            assert outcome(claim) is StoreRefusedError
        finally:
            self.server.execute_command("ACL", "SETUSER", "default", "+zadd")

    def give_back(self, many: list[int], delay: int, reason: str, verdict: str, loss: Loss) -> None:
        """Release on both sides."""
        items, held = self.pick(many)
        dead, counted = verdict == "dead", verdict != "uncounted"
        self.both(
            lambda: self.queue.nack_many(items, delay=delay / 1000, reason=reason, dead=dead, counted=counted),
            lambda: self.model.release(held, delay=delay, reason=reason, dead=dead, counted=counted),
            loss,
        )

    def meanwhile_real(self, what: str) -> None:
        """Act as the other client while a call waits for its lost reply."""
        if what == "consume":
            self.consume_real()
        elif what == "expire":
            self.clock.now += LEASE_MS
            self.clients[1].put_back()

    def meanwhile_model(self, what: str) -> None:
        if what == "consume":
            self.consume_model()
        elif what == "expire":
            self.clock.now += LEASE_MS
            self.model.put_back(MANY)

    def consume_real(self) -> None:
        """Claim and ack up to two items as the other client."""
        raise NotImplementedError

    def consume_model(self) -> None:
        raise NotImplementedError

    def known(self, name: int) -> str:
        return self.alphabet[name % len(self.alphabet)]

    def elsewhere(self) -> dict[str, list[bytes]]:
        """Return the expected keys of Redis besides those of the queue."""
        return {}

    def part(self, id_: str) -> tuple[ShardModel, Keys]:
        """Return the model and the keys of the shard of an id."""
        return self.parts[0]

    def pick(self, choices: list[int]) -> tuple[list[Any], list[Held]]:
        """Return claimed items, and their leases in the form of the model.

        A number chooses among current leases, stale leases of held items, or all leases.
        """
        valid = [self.part(one.item.id)[0].holds(*self.held(one)) for one in self.issued]
        current = [one for one, mine in zip(self.issued, valid, strict=True) if mine]
        held = {one.item.id for one in current}
        stale = [one for one, mine in zip(self.issued, valid, strict=True) if not mine and one.item.id in held]
        pools = [current or self.issued, stale or self.issued, self.issued]
        picked = [pool[number // 3 % len(pool)] for number in choices for pool in [pools[number % 3]]]
        return [one.item for one in picked], [self.held(one) for one in picked]

    def held(self, issued: Issued) -> Held:
        """Return a lease in the form of the model; a lease from before destroy() is invalid."""
        item, life = issued
        assert item.lease
        return item.id, token_number(item.lease.token) if life == self.life else 0

    def storable(self, id_: str) -> str:
        """Return *id_*, or another id while the record of *id_* is missing."""
        lost = {name for shard, _ in self.parts for name in shard.lost}
        return next(name for name in (id_, *self.alphabet) if name not in lost)

    def readable_ids(self) -> list[str]:
        return sorted(id_ for shard, _ in self.parts for id_ in shard.records if not shard.flaw(id_))

    def placed(self) -> list[str]:
        return [id_ for shard, _ in self.parts for id_ in shard.placed]

    def placed_ids(self) -> list[str]:
        return sorted(self.placed())

    def in_flight(self) -> bool:
        return any(shard.in_flight for shard, _ in self.parts)

    def expired(self) -> bool:
        """Return whether a lease has ended; at times also without an ended lease."""
        now = self.clock.now
        return any(end <= now for shard, _ in self.parts for end in shard.in_flight.values()) or (
            self.in_flight() and self.seldom()
        )

    def room(self) -> bool:
        """Return whether an id is free; at times also if none is, so that one is stored again."""
        return len(self.placed()) < len(self.alphabet) or self.seldom()

    def seldom(self) -> bool:
        """Return whether destructive rules may run now; if they always ran, little would be left to destroy."""
        return self.calls % 3 == 0

    def at_times(self) -> bool:
        """Return whether to compare by the public reads as well; each takes a round trip."""
        return self.calls % 4 == 1

    def body(self) -> Any:
        """Return a unique body: JSON, at times bytes."""
        self.serial += 1
        return b"\x00\n%d" % self.serial if self.serial % 3 == 0 else {"n": self.serial, "é": [None, " "]}


def run_machine(machine: type[Machine], client: redis.Redis, monkeypatch: pytest.MonkeyPatch, *, on_loop: bool) -> None:
    """Run *machine* on the Redis of *client*; *on_loop*: the queues for asyncio."""
    monkeypatch.setattr(machine, "server", client, raising=False)
    with closing(asyncio.new_event_loop()) as loop:
        monkeypatch.setattr(machine, "loop", loop if on_loop else None)
        run_state_machine_as_test(machine, settings=profile())


def outcome(call: Callable[[], Any]) -> Any:
    """Return the result of *call*, or the class of the RedisQueueError that it raises."""
    try:
        return call()
    except RedisQueueError as error:
        return type(error)


def letter_seen(letter: DeadLetter) -> tuple[str, Any, int, int, str]:
    """Return the attributes of a dead letter that the models know, without the problem of an unreadable record."""
    reason = letter.reason.partition(" (unreadable")[0]
    return letter.id, letter.body, ms(letter.died_at), letter.deliveries, reason


def item_seen(item: Quarantined) -> tuple[int, str, str, bytes]:
    """Return a quarantined record in the form of the models."""
    return ms(item.found_at), item.id, told(item.reason), item.raw
