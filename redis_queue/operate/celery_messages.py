"""Messages that wait in one of Celery's queues on a Redis broker: conditions, pages and actions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis_queue.celery.message.destinations import Destinations
from redis_queue.celery.queues.contents import REACH, QueueContents
from redis_queue.celery.queues.message import Element, WaitingMessage
from redis_queue.celery.queues.open import on_redis, purge, queue_contents
from redis_queue.errors import ConfigurationError, InvalidNameError
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Done
from redis_queue.operate.audit import Subject
from redis_queue.operate.celery_queues import CeleryQueues
from redis_queue.operate.pages import LOOK_BYTES, MOST_LOOKED_AT, Page
from redis_queue.operate.search_report import SearchReport
from redis_queue.operate.subjects import SHOWN
from redis_queue.store.chunks import CHUNK

__all__ = [
    "REACH",
    "Conditions",
    "MessageCursor",
    "WaitingMessage",
    "by_reference",
    "check_target",
    "find",
    "is_reference",
    "keeps_order",
    "page",
    "purge_queue",
    "references_of",
    "remove",
]

MOST_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of messages that are read for one page."""

_REFERENCE: Final = re.compile(r"\d{1,3}\.[0-9a-f]{32}", re.ASCII)

MessageCursor = tuple[int, int]
"""The number of a list, and of its older messages to skip."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions for waiting messages, all of which must hold; None: any.

    *task* is the whole name of the task, *task_part* a part of it, *text* a part of the arguments in the message.
    """

    task: str | None = None
    task_part: str | None = None
    id_prefix: str | None = None
    text: str | None = None

    def __bool__(self) -> bool:
        return any(value is not None for value in (self.task, self.task_part, self.id_prefix, self.text))

    def match(self, message: WaitingMessage) -> bool:
        """Tell whether *message* matches."""
        return (
            (self.task is None or message.task == self.task)
            and (self.task_part is None or self.task_part in message.task)
            and (self.id_prefix is None or message.id.startswith(self.id_prefix))
            and (self.text is None or self.text in message.args or self.text in message.kwargs)
        )


def celery_queues_of(access: Access) -> CeleryQueues:
    """Return Celery's queues of the app. Raises ConfigurationError without an app."""
    if access.celery_queues is None:
        raise ConfigurationError("Celery's queues need an app: redis-queue -A APP, or celery -A APP redis-queue")
    return access.celery_queues


def page(
    access: Access,
    name: str,
    conditions: Conditions,
    start: MessageCursor | None,
    limit: int,
    *,
    scan: SearchReport | None = None,
) -> Page[WaitingMessage, MessageCursor]:
    """Return up to *limit* matching messages of the queue *name* from *start* on, the next ones for workers first.

    It reads at most :data:`MOST_LOOKED_AT` messages and :data:`MOST_BYTES`, and none beyond the :data:`REACH` oldest of
    each priority. *scan* counts all messages that were read. While workers take messages, a next page may skip some.
    Raises ConfigurationError if the broker is not Redis, OperationalError and StoreError.
    """
    celery_queues_of(access)
    with queue_contents(access.app, name) as contents:
        return _page(contents, conditions, start, limit, scan or SearchReport())


def find(access: Access, name: str, conditions: Conditions, scan: SearchReport) -> Iterator[WaitingMessage]:
    """Yield all matching messages within :data:`REACH`, in the order of :func:`page`; *scan* counts all of them."""
    celery_queues_of(access)
    with queue_contents(access.app, name) as contents:
        cursor: MessageCursor | None = (0, 0)
        while cursor is not None:
            found = _page(contents, conditions, cursor, CHUNK, scan)
            yield from found.items
            cursor = found.next


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
    for message in find(access, name, Conditions(), SearchReport()) if left else ():
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
            subjects = [subject(name, WaitingMessage.of(element)) for element in removed[:SHOWN]]
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


def _page(
    contents: QueueContents, conditions: Conditions, start: MessageCursor | None, limit: int, scan: SearchReport
) -> Page[WaitingMessage, MessageCursor]:
    number, offset = start or (0, 0)
    found: list[WaitingMessage] = []
    looked = unread = spent = 0
    while number < contents.lists:
        if len(found) == limit or looked >= MOST_LOOKED_AT or spent >= MOST_BYTES:
            return Page(found, (number, offset), looked, unread, spent // LOOK_BYTES)
        read: list[Element] = contents.read(number, offset, CHUNK if conditions else min(limit, CHUNK))
        if not read:
            number, offset = number + 1, 0
        for element in read:
            looked, offset, spent = looked + 1, offset + 1, spent + element.size
            message = WaitingMessage.of(element)
            scan.add(message.task)
            if conditions.match(message):
                found.append(message)
                if len(found) == limit:
                    break
    return Page(found, None, looked, unread, spent // LOOK_BYTES)


def references_of(messages: Sequence[WaitingMessage]) -> list[str]:
    """Return the references of *messages*."""
    return [message.element.reference for message in messages]


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
