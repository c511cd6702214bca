"""Messages that wait in one of Celery's queues on a Redis broker: conditions, pages and actions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from redis_queue.celery.message.destinations import Destinations
from redis_queue.celery.message.task_entry import Conditions
from redis_queue.celery.queues.contents import REACH, QueueContents
from redis_queue.celery.queues.message import Element, WaitingMessage
from redis_queue.celery.queues.open import on_redis, purge, queue_contents
from redis_queue.errors import ConfigurationError, InvalidNameError
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Done
from redis_queue.operate.audit import MOST_SUBJECTS, Subject
from redis_queue.operate.celery_queues import CeleryQueues
from redis_queue.operate.listing import Chunk, Listing, SearchReport

__all__ = ["REACH", "Messages", "WaitingMessage"]

_REFERENCE: Final = re.compile(r"\d{1,3}\.[0-9a-f]{32}", re.ASCII)

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
        return Chunk(items, items[-1][1] if items else (number + 1, 0), spent=spent)

    def match(self, item: WaitingMessage) -> bool:
        """Tell whether the message matches, and count it."""
        self.scan.add(item.task)
        return self.conditions.match(item)


def celery_queues_of(access: Access) -> CeleryQueues:
    """Return Celery's queues of the app. Raises ConfigurationError without an app."""
    if access.celery_queues is None:
        raise ConfigurationError("Celery's queues need an app: redis-queue -A APP, or celery -A APP redis-queue")
    return access.celery_queues


def check_target(access: Access, name: str, target: str) -> str:
    """Return *target* if messages of the queue *name* can be moved to it.

    Raises InvalidNameError for an unknown queue, with a suggestion, and ForbiddenDestinationError.
    """
    if target == name:
        raise InvalidNameError(f"to={target!r}: must be another queue")
    found = celery_queues_of(access).check(target)
    Destinations(access.app).check_queue(found)
    return found


def by_reference(access: Access, name: str, references: Sequence[str]) -> list[WaitingMessage]:
    """Return the messages with these *references* that still wait."""
    left, found = set(references), []
    for message in Messages(access, name, Conditions()).all() if left else ():
        if message.element.reference in left:
            left.remove(message.element.reference)
            found.append(message)
            if not left:
                break
    return found


def is_reference(text: str) -> bool:
    """Tell whether *text* has the form of a reference."""
    return _REFERENCE.fullmatch(text) is not None


def keeps_order(access: Access) -> bool:
    """Tell whether the broker is Redis, whose messages can be read and chosen."""
    return on_redis(access.app)


def remove(access: Access, name: str, references: Sequence[str], target: str | None = None) -> Iterator[Done]:
    """Delete the messages with these *references*, or move them to the queue *target*, batch by batch.

    A message that a worker has taken meanwhile is left out, as is one that cannot be moved: messages of other
    programs, and those larger than 1 MiB.
    """
    celery_queues_of(access)
    left = len(references)
    with queue_contents(access.app, name) as contents:
        for removed, refused in contents.remove(references, target):
            left -= len(removed) + refused
            subjects = [subject(name, WaitingMessage.of(element)) for element in removed[:MOST_SUBJECTS]]
            yield Done(len(removed), tried=len(removed) + refused, subjects=subjects)
    if left > 0:
        yield Done(0, tried=left)


def purge_queue(access: Access, name: str, limit: int) -> Iterator[Done]:
    """Delete up to *limit* messages, also those that wait for a place in a flow.

    On brokers other than Redis, all that the broker has are deleted, and up to *limit* that wait for a place.
    """
    celery_queues_of(access)
    for count in purge(access.app, name, limit):
        yield Done(count, tried=count)


def subject(name: str, message: WaitingMessage) -> Subject:
    """Return *message* for preview and audit."""
    return Subject(message.id, name, message.task, message.since)


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
