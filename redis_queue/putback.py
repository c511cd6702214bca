"""Put back the messages of expired leases in many queues; a broken queue does not stop the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from redis_queue.catalog import Catalog
from redis_queue.errors import RedisQueueError
from redis_queue.model import PutBack
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.chunks import MANY
from redis_queue.store.registry import Known


@dataclass(frozen=True, slots=True)
class PutBackStep:
    """The result of one step in a queue, or the *error* that ended the work on it."""

    known: Known
    back: PutBack = field(default_factory=PutBack)
    promoted: int = 0
    error: RedisQueueError | None = None

    @property
    def name(self) -> str:
        """Kind and name of the queue, as the registry writes them."""
        return f"{self.known.kind}:{self.known.name}"


def put_back_each(
    catalog: Catalog, queues: Iterable[Known], *, step: int = MANY, promote: bool = False
) -> Iterator[PutBackStep]:
    """Put back expired leases, queue by queue, up to *step* leases at a time; yield the result of each step.

    With *promote*, delayed messages that are due become ready, too. Errors of a queue are yielded, not raised.
    """
    for known in queues:
        try:
            queue = catalog.open(known)
            while (back := queue.put_back(step)) != PutBack():
                yield PutBackStep(known, back)
            ready = queue.promote() if promote and isinstance(queue, RedisQueue) else 0
            yield PutBackStep(known, promoted=ready)
        except RedisQueueError as error:
            yield PutBackStep(known, error=error)
