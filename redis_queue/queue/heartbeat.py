"""Heartbeat: a thread that extends leases while other threads work."""

from __future__ import annotations

import math
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import monotonic
from redis_queue.basics.waits import off_loop
from redis_queue.errors import RedisQueueError
from redis_queue.store.records import LeasedItem

logger = logger_of(__name__)

BEATS_PER_LEASE = 3


Extend = Callable[[Sequence[LeasedItem], int], list[bool]]
"""Lengthens leases to so many ms from now; False for each that was lost."""


class Turn:
    """The start of the work on messages that were added together."""

    def __init__(self) -> None:
        self.since = monotonic()

    def pause(self) -> None:
        """Stop the count until the next restart: waiting messages are extended without a limit."""
        self.since = math.inf


class Heartbeat:
    """Extends every lease that was added, three times per lease, until it is removed or lost.

    It has a thread of its own: a handler that never yields keeps its lease as long as the process lives. After
    *max_runtime* seconds since :meth:`add`, or since the last :meth:`restart`, a lease is no longer extended: a hung
    handler loses its message. The thread ends when *owner*, if given, is deleted.
    """

    def __init__(
        self, extend: Extend, lease_ms: int, *, max_runtime: float | None = None, owner: object = None
    ) -> None:
        self._extend = extend
        self._lease_ms = lease_ms
        self._max_runtime = max_runtime
        self._owner = None if owner is None else weakref.ref(owner)
        self._held: dict[tuple[str, str], tuple[LeasedItem, Turn]] = {}
        self._lost: set[tuple[str, str]] = set()
        #: From then on leases may have ended: the machine slept, or Redis was away.
        self.sure_until = monotonic() + lease_ms / 1000
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="redis-queue-heartbeat", daemon=True)

    def add(self, *held: LeasedItem) -> Turn:
        """Begin to extend the leases of *held*; the work on them is one turn."""
        turn = Turn()
        with self._lock:
            self._held.update({_key(item): (item, turn) for item in held})
        return turn

    def restart(self, turn: Turn) -> None:
        """Count *max_runtime* anew for everything that was added with *turn*."""
        late = not self._counts(turn) or monotonic() > self.sure_until
        turn.since = monotonic()
        if late:
            # It was not extended for a while: the worker must learn which leases were lost.
            self._beat_or_log()

    def remove(self, *held: LeasedItem) -> None:
        """Stop extending the leases of *held*."""
        with self._lock:
            for item in held:
                self._held.pop(_key(item), None)
                self._lost.discard(_key(item))

    def is_lost(self, held: LeasedItem) -> bool:
        """Return whether the last beat found the lease of *held* lost."""
        with self._lock:
            return _key(held) in self._lost

    def beat(self) -> None:
        """Extend all leases once."""
        began = monotonic()
        with self._lock:
            held = [item for item, turn in self._held.values() if self._counts(turn)]
        kept = self._extend(held, self._lease_ms) if held else []
        with self._lock:
            for item, mine in zip(held, kept, strict=True):
                if not mine and self._held.pop(_key(item), None) is not None:
                    self._lost.add(_key(item))
                    logger.warning("lease lost", extra={"action": "lease_lost", "message_id": item.id})
            # After the losses are known: who sees this time sees them.
            self.sure_until = began + self._lease_ms / 1000

    def start(self) -> Heartbeat:
        self._pid = os.getpid()
        self._thread.start()
        return self

    @property
    def elsewhere(self) -> bool:
        """Whether a parent of this process started it: then the parent holds the leases."""
        return self._pid != os.getpid()

    def stop(self) -> None:
        """Stop the thread; leases still held end by themselves."""
        if self.elsewhere:
            return
        self._stopped.set()
        off_loop(self._thread.join)

    def __enter__(self) -> Heartbeat:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopped.wait(self._lease_ms / 1000 / BEATS_PER_LEASE):
            if self._owner is not None and self._owner() is None:
                return
            self._beat_or_log()

    def _beat_or_log(self) -> None:
        try:
            self.beat()
        except RedisQueueError as error:
            logger.warning("heartbeat failed, will try again: %s", error, extra={"action": "heartbeat_failed"})
        except Exception:
            # This thread must go on, else all leases would end.
            logger.exception("heartbeat failed, will try again", extra={"action": "heartbeat_failed"})

    def _counts(self, turn: Turn) -> bool:
        return self._max_runtime is None or turn.since > monotonic() - self._max_runtime


def _key(held: LeasedItem) -> tuple[str, str]:
    return held.id, held.lease.token if held.lease else ""
