"""DelayQueue against its model: after any sequence of calls, Redis and the answers match the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from redis_queue import DelayQueue, Entry, Settings
from redis_queue.delay.model import Push
from redis_queue.model import OnConflict
from redis_queue.store.keys import Keys
from tests.property.harness import LEASE_MS, NO_LOSS, Loss, moment, ms, timeout, token_number
from tests.property.machine import NAME, Issued, Machine, limits, losses, names, run_machine, works
from tests.property.model_delay import DelayModel, DelayShard, Pushed, Taken
from tests.support.clock import START

LISTS = ("to", "other")

Seen = tuple[str, Any, dict[str, Any], int, int, "str | None", int, int, int]

some_names = st.lists(names, min_size=1, max_size=3)
conflicts = st.sampled_from(("replace", "keep", "error"))
ages = st.sampled_from((0, 0, 1, LEASE_MS))
times = st.tuples(st.sampled_from((0, 0, 1, LEASE_MS)), st.sampled_from((None, None, -1, 0, LEASE_MS + 1)))
"""A delay in ms, and a due time relative to now that has precedence if it is not None."""


class DelayMachine(Machine):
    """Two clients of one queue, with the passage of time, lost replies and damaged records."""

    alphabet: ClassVar[tuple[str, ...]] = ("a", "b")
    settings: ClassVar = Settings(lease=LEASE_MS / 1000, max_deliveries=2)

    def __init__(self) -> None:
        super().__init__()
        self.open(DelayQueue, settings=self.settings)
        self.model = DelayModel(self.wire, self.clock, self.settings)
        self.parts = [
            (shard, Keys(self.settings.prefix, "delay", NAME, number)) for number, shard in enumerate(self.model.shards)
        ]
        self.turns: Counter[int] = Counter()
        self.cursors = ["0:a", f"{START}:a"]

    @initialize(dead=st.booleans(), broken=st.booleans())
    def start(self, dead: bool, broken: bool) -> None:
        """Start with entries in flight, at most one dead letter, and one entry with a destination."""
        *first, last = self.alphabet
        self.push_all([Pushed(name, self.body()) for name in first], "replace", NO_LOSS)
        self.claim(lambda queue: queue.claim(len(first)), len(first), 0, NO_LOSS)
        self.push_all([Pushed(last, self.body(), destination=LISTS[0])], "replace", NO_LOSS)
        if dead:
            self.give_back([0], 0, "why", "dead", NO_LOSS)
        if broken:
            self.break_or_mend(LISTS[0])

    # --- producers ---

    @rule(name=names, at=times, to=st.sampled_from((LISTS[0], None, LISTS[1])), on=conflicts, loss=losses)
    @precondition(Machine.room)
    def push(self, name: int, at: tuple[int, int | None], to: str | None, on: OnConflict, loss: Loss) -> None:
        """Store one entry under an id that may be new, waiting, in flight or dead."""
        entry = self.entry(name, at)
        self.push_all([entry._replace(headers={"h": self.serial} if to else {}, destination=to)], on, loss)

    @rule(several=some_names, at=times, on=conflicts, loss=losses)
    @precondition(Machine.room)
    def push_many(self, several: list[int], at: tuple[int, int | None], on: OnConflict, loss: Loss) -> None:
        """Store several entries at once, some with the same id."""
        self.push_all([self.entry(name, at) for name in several], on, loss)

    @rule(name=names, loss=losses)
    @precondition(Machine.seldom)
    def cancel(self, name: int, loss: Loss) -> None:
        """Cancel an entry in any state."""
        id_ = self.known(name)
        self.both(lambda: [self.queue.cancel(id_)], lambda: self.model.cancel([id_]), loss)

    @rule(several=some_names, loss=losses)
    @precondition(Machine.seldom)
    def cancel_many(self, several: list[int], loss: Loss) -> None:
        """Cancel several entries, some of them twice."""
        ids = [self.known(name) for name in several]
        self.both(lambda: self.queue.cancel_many(ids), lambda: self.model.cancel(ids), loss)

    @rule(name=names, at=times, loss=losses)
    @precondition(lambda self: self.placed())
    def reschedule(self, name: int, at: tuple[int, int | None], loss: Loss) -> None:
        """Reschedule an entry in any state."""
        id_, (delay, offset) = self.known(name), at
        due = None if offset is None else self.clock.now + offset
        when: dict[str, Any] = {"delay": delay / 1000} if due is None else {"due_at": moment(due)}
        self.both(
            lambda: self.queue.reschedule(id_, **when), lambda: self.model.shard(id_).reschedule(id_, delay, due), loss
        )

    @rule(name=names, loss=losses)
    @precondition(lambda self: self.placed())
    def run_now(self, name: int, loss: Loss) -> None:
        """Make an entry in any state due at once."""
        id_ = self.known(name)
        self.both(lambda: self.queue.run_now(id_), lambda: self.model.shard(id_).reschedule(id_, 0, None), loss)

    # --- consumers ---

    @rule(limit=limits, age=ages, loss=losses)
    @precondition(lambda self: self.model.waiting())
    def claim_some(self, limit: int, age: int, loss: Loss) -> None:
        self.claim(lambda queue: queue.claim(limit, older_than=age / 1000), limit, age, loss)

    @rule()
    @precondition(lambda self: self.due())
    def claim_one(self) -> None:
        self.claim(lambda queue: queue.claim(), 1, 0, NO_LOSS)

    @rule()
    @precondition(lambda self: self.due() and self.readable_ids() == self.placed_ids())
    def claim_broken_off(self) -> None:
        """Claim while Redis refuses to record the lease."""
        self.turn()
        self.break_off(self.queue.claim)
        for shard in self.model.shards:
            if shard.due(self.clock.now):
                shard.meta["claims"] += 1

    @rule(limit=limits, age=ages, loss=losses)
    @precondition(lambda self: self.due() and self.seldom())
    def pop(self, limit: int, age: int, loss: Loss) -> None:
        turn = self.turn()
        self.compare(
            lambda: self.queue.pop(limit, older_than=age / 1000), lambda: self.model.pop(turn, limit, age), loss
        )

    @rule(limit=works, loss=losses)
    @precondition(lambda self: self.due())
    def move_due(self, limit: int, loss: Loss) -> None:
        self.both(lambda: self.queue.move_due(limit), lambda: self.model.move_due(limit), loss)

    # --- upkeep ---

    @rule(places=st.sampled_from(((), ("dead",), ("quarantine", "dead"), ("waiting", "quarantine"))), loss=losses)
    @precondition(Machine.seldom)
    def purge(self, places: tuple[Any, ...], loss: Loss) -> None:
        """Delete all entries in some states."""
        self.both(lambda: self.queue.purge(*places), lambda: self.model.purge(places or ("waiting",)), loss)

    @rule(loss=losses)
    @precondition(lambda self: self.life == 0 and self.seldom())
    def destroy(self, loss: Loss) -> None:
        """Delete the queue once, while old leases are still around."""
        self.both(self.queue.destroy, self.model.destroy, loss)
        self.life += 1

    @rule(name=st.sampled_from(LISTS))
    @precondition(Machine.seldom)
    def break_destination(self, name: str) -> None:
        """Replace a destination by a string, or delete that string."""
        self.break_or_mend(name)

    # --- invariants ---

    @rule(
        cursor=st.integers(0, 9),
        limit=limits,
        window=st.tuples(*[st.sampled_from((None, 0, 1, LEASE_MS))] * 2),
        width=st.sampled_from((1, LEASE_MS)),
    )
    @precondition(lambda self: self.model.waiting())
    def look(self, cursor: int, limit: int, window: tuple[int | None, int | None], width: int) -> None:
        """Pages, counts and the forecast match the model; a cursor is valid after its entry is gone."""
        now = self.clock.now
        after, before = (None if offset is None else now + offset for offset in window)
        text = [None, *self.cursors][cursor % (1 + len(self.cursors))]
        page = self.queue.list(
            after=text,
            limit=limit,
            due_after=None if after is None else moment(after),
            due_before=None if before is None else moment(before),
        )
        self.cursors += [self.queue.cursor(entry) for entry in page]
        low, high = 0 if after is None else after, 10**15 if before is None else before
        inside = [one for one in self.model.waiting() if low <= one[0] < high]
        due, _, id_ = text.partition(":") if text else ("-1", "", "")
        behind = [one for one in inside if one > (int(due), id_) and self.readable(one[1])]
        assert [(ms(entry.due_at), entry.id) for entry in page] == behind[:limit]
        assert self.queue.count(
            due_after=None if after is None else moment(after), due_before=None if before is None else moment(before)
        ) == len(inside)
        waiting = [due for due, _ in self.model.waiting()]
        assert [(ms(at), count) for at, count in self.queue.forecast(2, width=width / 1000)] == [
            (now, sum(due < now + width for due in waiting)),
            (now + width, sum(now + width <= due < now + 2 * width for due in waiting)),
        ]

    @invariant()
    @precondition(Machine.at_times)
    def looks_are_as_the_model_says(self) -> None:
        """Statistics and each single entry match the model."""
        shards, waiting, stats = self.model.shards, self.model.waiting(), self.queue.stats()
        places = ("in_flight", "dead", "quarantine")
        sizes = [sum(len(getattr(shard, place)) for shard in shards) for place in places]
        assert [stats.in_flight, stats.dead, stats.quarantined] == sizes
        assert (stats.waiting, stats.due) == (len(waiting), len(self.due()))
        assert (None if stats.next_due is None else ms(stats.next_due)) == (waiting[0][0] if waiting else None)
        for id_ in self.alphabet:
            found, shard = self.queue.get(id_), self.model.shard(id_)
            due = shard.waiting.get(id_, shard.in_flight.get(id_))
            if due is None or not self.readable(id_):
                assert found is None
            else:
                record = shard.records[id_]
                assert found is not None
                assert (found.payload, ms(found.due_at), ms(found.put_at), found.deliveries, found.destination) == (
                    record.body,
                    due,
                    record.put_at,
                    shard.deliveries(id_),
                    record.destination,
                )

    # --- helpers ---

    def break_or_mend(self, name: str) -> None:
        """Replace a destination by a string, or delete that string."""
        if name in self.model.broken:
            self.model.broken.remove(name)
            self.server.delete(name)
        else:
            self.model.broken.add(name)
            self.model.destinations.pop(name, None)
            self.server.set(name, "no list")

    def push_all(self, entries: list[Pushed], on_conflict: OnConflict, loss: Loss) -> None:
        items = [
            Push(
                entry.payload,
                entry.delay / 1000 if entry.due is None else None,
                None if entry.due is None else moment(entry.due),
                entry.id,
                entry.headers,
                entry.destination,
            )
            for entry in entries
        ]
        self.both(
            lambda: self.queue.push_many(items, on_conflict=on_conflict),
            lambda: self.model.push(entries, on_conflict),
            loss,
        )

    def claim(self, real: Callable[[DelayQueue], list[Entry]], limit: int, age: int, loss: Loss) -> None:
        """Claim on both sides and keep the leases."""
        claimed: list[Entry] = []
        turn = self.turn()

        def remember() -> list[Entry]:
            claimed.extend(real(self.queue))
            return claimed

        self.compare(remember, lambda: self.model.claim(turn, limit, age), loss)
        self.issued += [Issued(entry, self.life) for entry in claimed]

    def compare(self, real: Callable[[], list[Entry]], model: Callable[[], list[Taken]], loss: Loss) -> None:
        """Claim on both sides. A repeated claim may have another order and lack the due times."""
        if loss.number:
            self.both(
                lambda: sorted([seen(entry)[:-1] for entry in real()], key=lambda one: one[0]),
                lambda: sorted([taken_seen(taken)[:-1] for taken in model()], key=lambda one: one[0]),
                loss,
            )
        else:
            self.both(lambda: list(map(seen, real())), lambda: list(map(taken_seen, model())))

    def turn(self, client: int = 0) -> int:
        """Return the number of a client's next claim: each starts with another shard."""
        key = id(self.clients[client])
        self.turns[key] += 1
        return self.turns[key]

    def entry(self, name: int, at: tuple[int, int | None]) -> Pushed:
        delay, offset = at
        due = None if offset is None else self.clock.now + offset
        return Pushed(self.storable(self.known(name)), self.body(), delay, due)

    def readable(self, id_: str) -> bool:
        """Return whether a record can be read."""
        return not self.model.shard(id_).flaw(id_)

    def due(self) -> list[str]:
        return [id_ for due, id_ in self.model.waiting() if due <= self.clock.now]

    def part(self, id_: str) -> tuple[DelayShard, Keys]:
        number = self.model.number(id_)
        return self.model.shards[number], self.parts[number][1]

    def elsewhere(self) -> dict[str, list[bytes]]:
        return {**self.model.destinations, **{name: [b"no list"] for name in self.model.broken}}

    def consume_real(self) -> None:
        """Pop as the other client."""
        self.clients[1].pop(2)

    def consume_model(self) -> None:
        self.model.pop(self.turn(1), 2, 0)


class ShardedDelayMachine(DelayMachine):
    """A queue of three shards: "a" and "c" share one, "b" is in another, the third stays empty."""

    alphabet = ("a", "b", "c")
    settings = Settings(lease=LEASE_MS / 1000, max_deliveries=3, shards=3)


def seen(entry: Entry) -> Seen:
    """Return the attributes of a claimed entry that the model knows; the due time is last."""
    assert entry.lease
    return (
        entry.id,
        entry.payload,
        dict(entry.headers),
        ms(entry.put_at),
        entry.deliveries,
        entry.destination,
        token_number(entry.lease.token),
        ms(entry.lease.expires_at),
        ms(entry.due_at),
    )


def taken_seen(taken: Taken) -> Seen:
    """Return the same attributes of an entry that the model claimed; the due time is last."""
    (id_, deliveries, record), claim, due = taken
    return (
        id_,
        record.body,
        record.headers,
        record.put_at,
        deliveries,
        record.destination,
        claim.number,
        claim.expires,
        due,
    )


@pytest.mark.timeout(timeout())
@pytest.mark.parametrize("on_loop", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize("machine", [DelayMachine, ShardedDelayMachine])
def test_every_sequence_of_calls_agrees_with_the_model(
    machine: type[DelayMachine], client: redis.Redis, monkeypatch: pytest.MonkeyPatch, on_loop: bool
) -> None:
    """No sequence of calls, lost replies, damage and time makes DelayQueue differ from its model."""
    run_machine(machine, client, monkeypatch, on_loop=on_loop)
