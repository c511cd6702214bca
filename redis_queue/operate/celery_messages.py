"""The listing of messages that wait in one of Celery's queues on a Redis broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from redis_queue.celery.message.task_entry import Conditions
from redis_queue.celery.queues.contents import REACH, QueueContents
from redis_queue.celery.queues.message import Element, WaitingMessage
from redis_queue.celery.queues.open import queue_contents
from redis_queue.errors import ConfigurationError
from redis_queue.operate.access import Access
from redis_queue.operate.celery_queues import CeleryQueues
from redis_queue.operate.listing import Chunk, Listing, SearchReport

__all__ = ["REACH", "Messages", "WaitingMessage"]

MessageCursor = tuple[int, int]
"""The number of a list, and of its older messages to skip."""


class Messages(Listing[WaitingMessage, MessageCursor]):
    """The messages that wait in the queue *name*, the next ones for workers first.

    None is read beyond the :data:`REACH` oldest of each priority. While workers take messages, a next page may skip
    some. Raises ConfigurationError without an app, or if the broker is not Redis, OperationalError and StoreError.
    """

    noun = "messages"

    def __init__(self, access: Access, name: str, conditions: Conditions, scan: SearchReport | None = None) -> None:
        super().__init__(conditions, scan)
        celery_queues_of(access)
        self._app, self._name = access.app, name
        self._contents: QueueContents

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Open the queue for as long as items are read."""
        with queue_contents(self._app, self._name) as self._contents:
            yield

    def read(self, cursor: MessageCursor | None, size: int, budget: int | None) -> Chunk[WaitingMessage, MessageCursor]:  # noqa: ARG002
        """Read messages of one list."""
        number, offset = cursor or (0, 0)
        if number >= self._contents.lists:
            return Chunk((), None)
        found: list[Element] = self._contents.read(number, offset, size)
        items = [(WaitingMessage.of(element), (number, at)) for at, element in enumerate(found, offset + 1)]
        spent = sum(element.size for element in found)
        return Chunk(items, items[-1][1] if items else (number + 1, 0), spent)

    def match(self, item: WaitingMessage) -> bool:
        """Tell whether the message matches, and count it."""
        self.scan.add(item.task)
        return self.conditions.match(item)


def celery_queues_of(access: Access) -> CeleryQueues:
    """Return Celery's queues of the app. Raises ConfigurationError without an app."""
    if access.celery_queues is None:
        raise ConfigurationError("Celery's queues need an app: redis-queue -A APP, or celery -A APP redis-queue")
    return access.celery_queues


def as_row(message: WaitingMessage, *, with_body: bool) -> dict[str, Any]:
    """Return the fields that people see."""
    shown = {
        "id": message.id,
        "task": message.task,
        "since": message.since,
        "bytes": message.element.size,
        "priority": message.element.step,
        "retries": message.retries,
        "waits_for": message.waits_for,
    }
    return {**shown, "args": message.args, "kwargs": message.kwargs} if with_body else shown
