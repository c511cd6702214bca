"""Heartbeat: a thread that lengthens leases while others work."""

from __future__ import annotations

import math
import os
import threading
import time
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Protocol

from redis_queue.errors import RedisQueueError
from redis_queue.logs import logger_of
from redis_queue.store.records import Held

logger = logger_of(__name__)

BEATS_PER_LEASE = 3


class Leases(Protocol):
    """Where the leases are that a heartbeat lengthens."""

    def extend(self, held: Sequence[Held], lease_ms: int) -> list[bool]:
        """Lengthen leases to *lease_ms* from now; False where the lease was lost."""
        ...


class Turn:
    """Since when the work on what was added together goes on."""

    def __init__(self) -> None:
        self.since = time.monotonic()

    def pause(self) -> None:
        """Let nothing count until the next restart: what waits is extended for as long as it takes."""
        self.since = math.inf


class Heartbeat:
    """Extends every lease that was added, three times per visibility timeout, until it is removed or lost.

    It runs beside the work, so a handler that never yields keeps its lease as long as the process lives. What is worked
    on for longer than *max_runtime* seconds is no longer extended: a hung handler gives its message up. That counts
    from :meth:`add`, or from the last :meth:`restart`. It ends by itself once its *owner*, if it has one, is gone.
    """

    def __init__(
        self, leases: Leases, lease_ms: int, *, max_runtime: float | None = None, owner: object = None
    ) -> None:
        self._leases = leases
        self._lease_ms = lease_ms
        self._max_runtime = max_runtime
        self._owner = None if owner is None else weakref.ref(owner)
        self._held: dict[tuple[str, str], tuple[Held, Turn]] = {}
        self._lost: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="redis-queue-heartbeat", daemon=True)

    def add(self, *held: Held) -> Turn:
        """Begin to extend the leases of *held*, which are worked on in one turn."""
        turn = Turn()
        with self._lock:
            self._held.update({_key(item): (item, turn) for item in held})
        return turn

    def restart(self, turn: Turn) -> None:
        """Count *max_runtime* anew for all that was added with *turn*."""
        late = not self._counts(turn)
        turn.since = time.monotonic()
        if late:
            # Nobody extended it for a while: who works on must know what was given to someone else.
            self._beat_or_log()

    def remove(self, *held: Held) -> None:
        """Stop extending the leases of *held*."""
        with self._lock:
            for item in held:
                self._held.pop(_key(item), None)
                self._lost.discard(_key(item))

    def is_lost(self, held: Held) -> bool:
        """Tell whether the last beat found that the lease of *held* was given to someone else."""
        with self._lock:
            return _key(held) in self._lost

    def beat(self) -> None:
        """Extend all leases once."""
        with self._lock:
            held = [item for item, turn in self._held.values() if self._counts(turn)]
        if not held:
            return
        kept = self._leases.extend(held, self._lease_ms)
        with self._lock:
            for item, mine in zip(held, kept, strict=True):
                if not mine and self._held.pop(_key(item), None) is not None:
                    self._lost.add(_key(item))
                    logger.warning("lease lost", extra={"action": "lease_lost", "message_id": item.id})

    def start(self) -> Heartbeat:
        """Start the thread."""
        self._pid = os.getpid()
        self._thread.start()
        return self

    @property
    def elsewhere(self) -> bool:
        """Whether it was started in a parent of this process, which holds the leases."""
        return self._pid != os.getpid()

    def stop(self) -> None:
        """Stop the thread; leases still held end by themselves."""
        if self.elsewhere:
            return
        self._stopped.set()
        self._thread.join()

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
            # Without this thread all leases would end.
            logger.exception("heartbeat failed, will try again", extra={"action": "heartbeat_failed"})

    def _counts(self, turn: Turn) -> bool:
        return self._max_runtime is None or turn.since > time.monotonic() - self._max_runtime


def _key(held: Held) -> tuple[str, str]:
    return held.id, held.lease.token if held.lease else ""
