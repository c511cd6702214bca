"""Lock: one holder at a time, with a lease that ends by itself and a number that tells holders apart."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from redis_queue.errors import InvalidDelayError, LeaseLostError, LockTakenError, RedisQueueError
from redis_queue.logs import logger_of
from redis_queue.model import Lease
from redis_queue.queue.heartbeat import Heartbeat
from redis_queue.store.connection import Client, connect
from redis_queue.store.ids import id_bytes, id_text
from redis_queue.store.keys import LockKeys
from redis_queue.store.records import Clock, Held, server_clock
from redis_queue.store.scripts import Scripts
from redis_queue.store.settings import Settings
from redis_queue.times import Seconds, duration_ms, from_ms

logger = logger_of(__name__)

MIN_LEASE: Final = timedelta(milliseconds=100)
MAX_LEASE: Final = timedelta(days=7)
MAX_WAIT: Final = timedelta(days=1)

LOOK_AGAIN: Final = 0.1
"""Most seconds between two looks of who waits for a lock in place."""


class Lock:
    """The lock *name*: at most one holder at a time, as long as each holder's lease is extended.

    A holder extends its lease of *lease* seconds (0.1 to 7 days) from a thread of its own; that of a dead one ends by
    itself. All times are by the Redis server's clock. Raises InvalidNameError and InvalidDelayError for what cannot be,
    before anything is sent.

    Its key has a TTL: a Redis that may evict such keys (``maxmemory-policy volatile-*``) may let two hold it.

    Safe for threads and after fork. Who waits gets it in no order that is promised.
    """

    def __init__(
        self,
        name: str,
        redis: str | Client,
        *,
        lease: Seconds = 60.0,
        prefix: str = "redis_queue",
        clock: Clock = server_clock,
    ) -> None:
        self.name = name
        self.lease_ms = check_lease(lease)
        self._clock = clock
        keys = LockKeys(Settings(prefix=prefix).prefix, name)
        self.key = keys.holder
        scripts = Scripts(connect(redis, check=isinstance(redis, str)))
        self._acquire = scripts.bind("lock/acquire", keys)
        self._extend = scripts.bind("lock/extend", keys)
        self._release = scripts.bind("lock/release", keys)
        self._next = scripts.bind("lock/next", keys)

    def __repr__(self) -> str:
        return f"Lock({self.name!r})"

    def acquire(self, *, wait: Seconds = 0, id: str = "") -> HeldLock | None:
        """Take the lock and begin to extend it; None if somebody else holds it, and still does after *wait* seconds.

        With *id* the caller stands in the line of those whom :meth:`HeldLock.release` tells of. Where every reply was
        lost (StoreUnavailableError) the lock may be taken until its lease ends.
        """
        left = check_wait(wait) / 1000
        deadline = time.monotonic() + left
        token = os.urandom(16).hex()
        while True:
            asked_at = time.monotonic()
            fence, ends_in = self._acquire(now=self._clock(), token=token, lease=self.lease_ms, id=id_bytes(id))
            if fence:
                return HeldLock(self, token, fence, asked_at)
            left = min(left, deadline - time.monotonic())
            if left <= 0:
                return None
            pause = min(left, ends_in / 1000, random.uniform(LOOK_AGAIN / 4, LOOK_AGAIN))
            time.sleep(pause)
            # In a test with freezegun the clock stands still.
            left -= pause

    @contextlib.contextmanager
    def hold(self, *, wait: Seconds = 0) -> Iterator[HeldLock]:
        """Hold the lock for a ``with`` block. Raises LockTakenError where :meth:`acquire` returns None."""
        held = self.acquire(wait=wait)
        if held is None:
            raise LockTakenError(f"somebody else holds the lock {self.name!r}")
        with held:
            yield held

    def pass_over(self, id: str) -> str | None:
        """Take *id* out of the line; return who waits longest now, or None."""
        return _id_or_none(self._next(id=id_bytes(id)))

    def extend(self, held: Sequence[Held], lease_ms: int) -> list[bool]:
        """Lengthen the leases of *held*, holders of this lock, to *lease_ms* from now; False where it was lost.

        0 only asks.
        """
        return [
            bool(self._extend(now=self._clock(), token=item.lease.token if item.lease else "", lease=lease_ms))
            for item in held
        ]

    def release(self, token: str) -> Released:
        """Give back what was taken with *token*."""
        mine, waiting = self._release(token=token)
        return Released(bool(mine), _id_or_none(waiting))


class Released(NamedTuple):
    """What became of a lock that was given back: *mine* is False if it had been lost; *waiting* has waited longest."""

    mine: bool
    waiting: str | None


class _Term:
    """The lease of a lock that was taken, for its heartbeat."""

    def __init__(self, lock: Lock, lease: Lease, asked_at: float) -> None:
        self.id = lock.name
        self.lease = lease
        self.sure_until = asked_at + lock.lease_ms / 1000
        self._lock = lock

    def extend(self, held: Sequence[Held], lease_ms: int) -> list[bool]:
        """Lengthen it, as the heartbeat does."""
        asked_at = time.monotonic()
        kept = self._lock.extend(held, lease_ms)
        if all(kept):
            self.sure_until = asked_at + lease_ms / 1000
        return kept


class HeldLock:
    """A lock that was taken; its lease is extended from a thread until it is given back, or this object is gone.

    *fence* is greater than that of every holder before: a third system that remembers the greatest number it has seen
    can refuse the late write of a holder that was stopped for longer than its lease. It follows the server's clock:
    only one that is set back by more than an hour, while nobody uses the lock, breaks that.
    """

    def __init__(self, lock: Lock, token: str, fence: int, asked_at: float) -> None:
        self.lock = lock
        self.fence = fence
        self.id = lock.name
        self.lease = Lease(token, from_ms(time.time() * 1000 + lock.lease_ms))
        self._released: Released | None = None
        # The heartbeat knows nothing of this object: one that is dropped must not be held for ever.
        self._term = _Term(lock, self.lease, asked_at)
        self._heartbeat = Heartbeat(self._term, lock.lease_ms, owner=self)
        self._heartbeat.add(self._term)
        self._heartbeat.start()
        _HELD.own().append(weakref.ref(self))

    @property
    def lost(self) -> bool:
        """Whether another one may hold the lock by now: asked no server, but known within a third of the lease."""
        return self._heartbeat.is_lost(self._term) or time.monotonic() > self._term.sure_until

    def check(self) -> None:
        """Ask Redis whether the lock is still held. Raises LeaseLostError if another one took it meanwhile."""
        if not self.lock.extend([self], 0)[0]:
            raise LeaseLostError(f"the lease of the lock {self.lock.name!r} ended, and another one has taken it")

    def release(self) -> Released:
        """Give the lock back; the same again answers the same. What Redis cannot be told ends with the lease.

        A child forked while it was held gives nothing back.
        """
        if self._heartbeat.elsewhere:
            return Released(mine=False, waiting=None)
        if self._released is None:
            self._heartbeat.stop()
            self._released = self._give_back()
        return self._released

    def _give_back(self) -> Released:
        try:
            released = self.lock.release(self.lease.token)
        except RedisQueueError as error:
            logger.warning("lock not given back: %s", error, extra={"action": "unlock_failed", "lock": self.lock.name})
            return Released(mine=False, waiting=None)
        if not released.mine:
            logger.warning("lock %s was lost", self.lock.name, extra={"action": "lock_lost", "lock": self.lock.name})
        return released

    def __enter__(self) -> HeldLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def current_lock() -> HeldLock | None:
    """Return the lock that this thread took last and holds, or None."""
    held = _mine()
    return held[-1] if held else None


def held_here(lock: Lock) -> bool:
    """Tell whether this thread holds *lock* already."""
    return any(held.lock.key == lock.key for held in _mine())


@contextlib.contextmanager
def holding_nothing() -> Iterator[None]:
    """Run a ``with`` block as another thread would, which has none of the locks of this one."""
    before, _HELD.locks = _HELD.own(), []
    try:
        yield
    finally:
        _HELD.locks = before


def check_lease(lease: Seconds) -> int:
    """Return *lease* in ms; raises InvalidDelayError unless it is 0.1 s to 7 days."""
    return _between("lease", lease, MIN_LEASE, MAX_LEASE)


def check_wait(wait: Seconds) -> int:
    """Return *wait* in ms; raises InvalidDelayError unless it is 0 to one day."""
    return _between("wait", wait, timedelta(0), MAX_WAIT)


def _between(name: str, value: Seconds, low: timedelta, high: timedelta) -> int:
    found = duration_ms(value, name=name)
    if not low <= timedelta(milliseconds=found) <= high:
        raise InvalidDelayError(f"{name}={value!r}: give {low.total_seconds():g} to {high.total_seconds():g} seconds")
    return found


def _id_or_none(raw: bytes) -> str | None:
    return id_text(raw) if raw else None


class _Held(threading.local):
    """What this thread holds, in the order in which it was taken."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.locks: list[weakref.ref[HeldLock]] = []

    def own(self) -> list[weakref.ref[HeldLock]]:
        """Return what was taken in this process and neither given back nor dropped."""
        if self.pid != os.getpid():
            # What the parent held when it forked is not its child's.
            self.pid, self.locks = os.getpid(), []
        # Another thread may have given back what this one took.
        self.locks = [found for found in self.locks if (held := found()) is not None and held._released is None]
        return self.locks


_HELD: Final = _Held()


def _mine() -> list[HeldLock]:
    return [held for found in _HELD.own() if (held := found()) is not None]
