"""The workload of RedisQueue, DelayQueue and Lock: producers, consumers, dispatchers, sweepers, lockers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from chaos import holds
from chaos.checker import miscounted, misplaced
from chaos.workload import PRODUCER, Post, Step, Workload, note_cancel
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import StoreError
from redis_queue.lock.lock import Lock
from redis_queue.model import Entry, Message
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.connection import Client, connect
from redis_queue.store.keys import Keys
from redis_queue.store.settings import Settings
from redis_queue.validation.history import Event, History

PREFIX: Final = "chaos"
WORK: Final = Keys(PREFIX, "queue", "work")
LATER: Final = Keys(PREFIX, "delay", "later", 0)
LEASE: Final = 0.2
"""Seconds of a lease: short, so that messages of dead processes are redelivered soon."""

MAX_DELIVERIES: Final = 10
MAX_DELAY: Final = 0.3
CANCELLED: Final = 0.1
"""Share of delayed entries that are cancelled, before or after they are due."""

SLOW: Final = 0.02
"""Share of messages that take longer than their lease."""

POISON: Final = 100
"""Each consumer returns one in so many messages."""

UNREADABLE: Final = "bad"
MAX_UNREADABLE: Final = 20
MAX_SHOWN: Final = 500


class Queues(Workload):
    """Both queues and a lock in one Redis, with all their calls, in ten processes."""

    crew = (*[PRODUCER] * 2, *["consumer"] * 3, *["dispatcher"] * 2, "sweeper", *["locker"] * 2)
    lease = LEASE

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = connect(url, check=False)
        self._queue, self._delayed = _queues(self._client)
        self._unreadable = 0

    def begin(self, role: str, post: Post) -> Step:
        """Return the step that a process of *role* repeats."""
        post.arm()
        client = connect(self._url, check=False)
        roles: dict[str, Callable[[Client, Post], Step]] = {
            PRODUCER: _produce,
            "consumer": _consume,
            "dispatcher": _dispatch,
            "sweeper": _sweep,
            "locker": _lock,
        }
        return _through_outages(roles[role](client, post))

    def look(self) -> Iterator[str]:
        """Yield broken invariants; sometimes add an unreadable record."""
        if self._unreadable < MAX_UNREADABLE and random.random() < 0.1:  # noqa: PLR2004 - one look in ten
            self._add_unreadable(WORK)
        yield from misplaced(self._client, WORK)
        yield from miscounted(self._client, WORK, foreign=UNREADABLE)
        yield from misplaced(self._client, LATER)

    def is_done(self, histories: Sequence[Path]) -> bool:  # noqa: ARG002 - Redis knows
        """Return whether no message waits or is held."""
        stats, later = self._queue.stats(), self._delayed.stats()
        return not (stats.ready or stats.delayed or stats.in_flight or later.waiting or later.in_flight)

    def left(self) -> Iterator[str]:
        for keys in (WORK, LATER):
            records: Any = self._client.hvals(keys.records)
            for record in records:
                with contextlib.suppress(ValueError):
                    yield str(json.loads(record.rpartition(b"\n")[2]))

    def wrong(self) -> Iterator[str]:
        """Yield messages that became dead letters too early, and unreadable records that are not in quarantine."""
        for letter in self._dead():
            if letter.deliveries != MAX_DELIVERIES:
                yield f"{letter.body} is dead after {letter.deliveries} of {MAX_DELIVERIES} deliveries"
        kept = {found.raw for found in self._queue.quarantined(limit=MAX_SHOWN)}
        for number in range(self._unreadable):
            if _garbage(number) not in kept:
                yield f"unreadable record {number} is not in quarantine"

    def _dead(self) -> Iterator[Any]:
        offset = 0
        while page := self._queue.dead_letters(offset=offset, limit=MAX_SHOWN):
            yield from page
            offset += len(page)

    def _add_unreadable(self, keys: Keys) -> None:
        # If the reply is lost, the next look adds another one: the same id would stand in the list twice.
        id_ = f"{UNREADABLE}{self._unreadable}-{os.urandom(4).hex()}"
        with self._client.pipeline(transaction=True) as pipe:
            pipe.hset(keys.records, id_, _garbage(self._unreadable))
            pipe.lpush(keys.ready, id_)
            pipe.execute()
        self._unreadable += 1


def _garbage(number: int) -> bytes:
    return b"v1 \xff\x00 not a record %d" % number


def _queues(client: Client) -> tuple[RedisQueue, DelayQueue]:
    settings = Settings(prefix=PREFIX, lease=LEASE, max_deliveries=MAX_DELIVERIES)
    return RedisQueue("work", client, settings=settings), DelayQueue("later", client, settings=settings)


def _through_outages(step: Step) -> Step:
    def tried() -> bool:
        try:
            return step()
        except StoreError:
            # The outcome is unknown, and the history records it as such.
            time.sleep(0.01)
            return True

    return tried


def _produce(client: Client, post: Post) -> Step:
    """Put each label into the queue, and its twin into the delay queue; cancel some of the twins."""
    history, dice = History(post.history), random.Random(post.seed)
    queue, delayed = _queues(client)
    labels = iter(post.labels)

    def step() -> bool:
        number = next(labels, None)
        if number is None:
            return False
        label, twin = f"w{number}", f"d{number}"
        history.write(Event("put", "invoke", label, lane=post.lane))
        queue.put(label)
        history.write(Event("put", "ok", label, lane=post.lane))
        delay = dice.choice((0, dice.uniform(0, MAX_DELAY)))
        due = int(time.time() * 1000) + int(delay * 1000)
        history.write(Event("put", "invoke", twin, due=due))
        delayed.push(twin, delay=delay, id=twin)
        history.write(Event("put", "ok", twin, due=due))
        if dice.random() < CANCELLED:
            time.sleep(dice.uniform(0, MAX_DELAY / 5))
            history.write(Event("cancel", "invoke", twin))
            note_cancel(history, twin, delayed.cancel(twin))
        return True

    return step


def _consume(client: Client, post: Post) -> Step:
    """Get messages, execute and settle them; hold some for longer than their lease."""
    queue, _ = _queues(client)
    return _work(post, queue, lambda limit: queue.get_many(limit, block=True, timeout=0.1))


def _dispatch(client: Client, post: Post) -> Step:
    """Claim due entries, execute and settle them."""
    _, delayed = _queues(client)
    return _work(post, delayed, delayed.claim)


def _work(post: Post, queue: RedisQueue | DelayQueue, take: Callable[[int], Iterable[Message | Entry]]) -> Step:
    history, dice = History(post.history), random.Random(post.seed)

    def step() -> bool:
        for held in take(dice.randint(1, 5)):
            _execute(history, held, queue, slow=dice.random() < SLOW)
        return True

    return step


def _sweep(client: Client, _post: Post) -> Step:
    """End expired leases."""
    queue, delayed = _queues(client)

    def step() -> bool:
        queue.put_back()
        delayed.put_back()
        return True

    return step


def _lock(client: Client, post: Post) -> Step:
    """Acquire the lock, hold it for a moment or for longer than its lease, release it."""
    history, dice = History(post.history), random.Random(post.seed)
    lock = Lock("gate", client, lease=holds.LEASE, prefix=PREFIX)

    def step() -> bool:
        asked_at = holds.now_ms()
        held = lock.acquire(wait=LEASE)
        if held:
            with held, holds.holding(history, held, asked_at=asked_at):
                time.sleep(2 * LEASE if dice.random() < SLOW else dice.uniform(0, LEASE / 10))
        return True

    return step


def _execute(history: History, held: Message | Entry, queue: Any, *, slow: bool) -> None:
    label = str(held.body if isinstance(held, Message) else held.payload)
    claimed = Event.of_claim(label, held, LEASE)
    claim = claimed.claim
    history.write(claimed, Event("execute", "ok", label, claim))
    if slow:
        time.sleep(2 * LEASE)
    if isinstance(held, Message) and int(label[1:]) % POISON == 0:
        history.write(Event("nack", "ok", label, claim))
        queue.nack(held, reason="poison")
        return
    history.write(Event("ack", "invoke", label, claim))
    history.write(Event("ack", "ok" if queue.ack(held) else "refused", label, claim))
