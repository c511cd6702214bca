"""Put-back over many queues: what expired leases hold goes back, and one broken queue keeps no other from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from redis_queue.errors import RedisQueueError
from redis_queue.inspector import Inspector
from redis_queue.model import PutBack
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.chunks import MANY
from redis_queue.store.registry import Known


@dataclass(frozen=True, slots=True)
class Served:
    """One step: what it did in a queue, or the *error* that ended the work on this queue."""

    known: Known
    back: PutBack = field(default_factory=PutBack)
    promoted: int = 0
    error: RedisQueueError | None = None

    @property
    def name(self) -> str:
        """Kind and name of the queue, as the registry writes them."""
        return f"{self.known.kind}:{self.known.name}"


def put_back_each(
    inspector: Inspector, queues: Iterable[Known], *, step: int = MANY, promote: bool = False
) -> Iterator[Served]:
    """Put back in one queue after the other, up to *step* leases at a time, and yield what each step did.

    With *promote*, delayed messages that are due become ready, too. Errors of a queue are yielded, not raised.
    """
    for known in queues:
        try:
            queue = inspector.open(known)
            while (back := queue.put_back(step)) != PutBack():
                yield Served(known, back)
            ready = queue.promote() if promote and isinstance(queue, RedisQueue) else 0
            yield Served(known, promoted=ready)
        except RedisQueueError as error:
            yield Served(known, error=error)
