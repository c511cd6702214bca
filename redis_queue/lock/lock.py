"""Lock: one holder at a time, with a lease that expires and a fence that orders holders."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import Seconds, check_duration, from_ms, monotonic
from redis_queue.errors import LeaseLostError, LockTakenError, RedisQueueError
from redis_queue.model import Lease
from redis_queue.queue.heartbeat import Heartbeat
from redis_queue.store.connection import Client, connect
from redis_queue.store.keys import LockKeys
from redis_queue.store.records import LeasedItem
from redis_queue.store.scripts import Clock, NumberedCalls, Scripts, server_clock
from redis_queue.store.settings import Settings

logger = logger_of(__name__)

LOOK_AGAIN: Final = 0.1
"""Maximum seconds between two attempts of a caller that waits."""


class Lock:
    """The lock *name*: at most one holder at a time, as long as each holder's lease is extended.

    A thread extends the lease of *lease* seconds (0.1 s to 7 days) while the lock is held; the lease of a dead holder
    expires. All times are by the Redis server's clock. Raises InvalidNameError and InvalidDelayError before anything is
    sent.

    The key of the lock has a TTL: if Redis may evict such keys (``maxmemory-policy volatile-*``), two may hold it at
    once.

    Safe for threads and after fork. The order of waiting callers is not promised.
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
        self._calls = NumberedCalls(scripts, keys, _CALLERS)
        self._extend = scripts.bind("lock/extend", keys)
        self._release = scripts.bind("lock/release", keys)

    def __repr__(self) -> str:
        return f"Lock({self.name!r})"

    def acquire(self, *, wait: Seconds = 0) -> HeldLock | None:
        """Take the lock and begin to extend its lease; None if it is still taken after *wait* seconds.

        If all replies were lost (StoreUnavailableError), the lock may be taken until its lease ends.
        """
        left = check_wait(wait) / 1000
        deadline = monotonic() + left
        token = os.urandom(16).hex()
        while True:
            asked_at = monotonic()
            fence, ends_in = self._calls.call(
                "lock/acquire", others={"holder": self.key}, now=self._clock(), token=token, lease=self.lease_ms
            )
            if fence:
                return HeldLock(self, token, fence, asked_at)
            left = min(left, deadline - monotonic())
            if left <= 0:
                return None
            pause = min(left, ends_in / 1000, random.uniform(LOOK_AGAIN / 4, LOOK_AGAIN))
            time.sleep(pause)
            # Under freezegun the clock stands still.
            left -= pause

    @contextlib.contextmanager
    def hold(self, *, wait: Seconds = 0) -> Iterator[HeldLock]:
        """Hold the lock for a ``with`` block. Raises LockTakenError if it is taken, as :meth:`acquire` returns None."""
        held = self.acquire(wait=wait)
        if held is None:
            raise LockTakenError(f"another holder has the lock {self.name!r}")
        with held:
            yield held

    def extend(self, held: Sequence[LeasedItem], lease_ms: int) -> list[bool]:
        """Lengthen the leases of *held*, holders of this lock, to *lease_ms* from now; False if the lease was lost.

        With 0 it only checks them.
        """
        return [
            bool(self._extend(now=self._clock(), token=item.lease.token if item.lease else "", lease=lease_ms))
            for item in held
        ]

    def release(self, token: str) -> bool:
        """Release the lock that was taken with *token*; False if it had been lost."""
        return bool(self._release(token=token))


class _Term(NamedTuple):
    """What a heartbeat extends."""

    id: str
    lease: Lease


class HeldLock:
    """A lock that is held; a thread extends its lease until :meth:`release`, or until this object is deleted.

    *fence* is greater than the fences of all earlier holders. A third system that remembers the greatest fence it has
    seen can refuse late writes of a holder that was stopped for longer than its lease. Fences follow the server's
    clock: they may repeat only if that is set back by more than an hour while the lock is unused.
    """

    def __init__(self, lock: Lock, token: str, fence: int, asked_at: float) -> None:
        self.lock = lock
        self.fence = fence
        self.id = lock.name
        self.lease = Lease(token, from_ms(time.time() * 1000 + lock.lease_ms))
        self._released: bool | None = None
        # The heartbeat does not reference this object: else an object that is dropped would hold the lock forever.
        self._term = _Term(self.id, self.lease)
        self._heartbeat = Heartbeat(lock.extend, lock.lease_ms, owner=self)
        self._heartbeat.sure_until = asked_at + lock.lease_ms / 1000
        self._heartbeat.add(self._term)
        self._heartbeat.start()
        _HELD.own().append(weakref.ref(self))

    @property
    def lost(self) -> bool:
        """Whether another holder may have the lock; known within a third of the lease, without asking Redis."""
        return monotonic() > self._heartbeat.sure_until or self._heartbeat.is_lost(self._term)

    def check(self) -> None:
        """Ask Redis whether the lock is still held. Raises LeaseLostError if another holder has taken it."""
        if not self.lock.extend([self], 0)[0]:
            raise LeaseLostError(f"the lease of the lock {self.lock.name!r} ended, and another holder has taken it")

    def release(self) -> bool:
        """Release the lock; False if it had been lost. Calling again returns the same outcome.

        If Redis is away, it returns False, and the lock ends with its lease. In a child process that was forked while
        the lock was held, it does nothing and returns False.
        """
        if self._heartbeat.elsewhere:
            return False
        if self._released is None:
            self._heartbeat.stop()
            self._released = self._release()
        return self._released

    def _release(self) -> bool:
        try:
            released = self.lock.release(self.lease.token)
        except RedisQueueError as error:
            logger.warning("lock not released: %s", error, extra={"action": "unlock_failed", "lock": self.lock.name})
            return False
        if not released:
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
    """Return whether this thread holds *lock*."""
    return any(held.lock.key == lock.key for held in _mine())


def check_lease(lease: Seconds) -> int:
    """Return *lease* in ms; raises InvalidDelayError unless it is 0.1 s to 7 days."""
    return check_duration("lease", lease, 0.1, 7 * 86_400)


def check_wait(wait: Seconds) -> int:
    """Return *wait* in ms; raises InvalidDelayError unless it is 0 to one day."""
    return check_duration("wait", wait, 0, 86_400)


class _ThreadLocks(threading.local):
    """The locks that this thread holds, in the order in which they were taken."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.locks: list[weakref.ref[HeldLock]] = []

    def own(self) -> list[weakref.ref[HeldLock]]:
        """Return the locks that were taken in this process and neither released nor dropped."""
        if self.pid != os.getpid():
            # The locks of a parent process do not belong to its child.
            self.pid, self.locks = os.getpid(), []
        # Another thread may have released a lock of this one.
        self.locks = [found for found in self.locks if (held := found()) is not None and held._released is None]
        return self.locks


_HELD: Final = _ThreadLocks()

_CALLERS: Final[dict[int, Any]] = {}
"""Names of the threads that take locks: one each, although handlers make a Lock for every call."""


def _mine() -> list[HeldLock]:
    return [held for found in _HELD.own() if (held := found()) is not None]
