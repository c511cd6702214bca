"""Actions on messages that wait in Celery's queues."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from kombu.exceptions import OperationalError

from redis_queue.admission.flows import OF_QUEUE
from redis_queue.basics.options import Conditions, counted
from redis_queue.celery.message.destinations import Destinations
from redis_queue.celery.queues.message import WaitingMessage
from redis_queue.celery.queues.open import on_redis
from redis_queue.celery.queues.open import purge as purge_messages
from redis_queue.errors import ConfigurationError, InvalidNameError, InvalidValueError
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Action, Argument, Choice, Plan, Result
from redis_queue.operate.actions.queues import One
from redis_queue.operate.actions.rows import INVALID_ROW, Rows
from redis_queue.operate.audit import MAX_SUBJECTS, Subject
from redis_queue.operate.items import Messages, celery_queues_of, contents_of
from redis_queue.operate.listing import Selection

_REFERENCE: Final = re.compile(r"\d{1,3}\.[0-9a-f]{32}", re.ASCII)

Message = WaitingMessage | str
"""A message, or the reference to one."""

TO: Final = Argument(
    "to", "The queue to which they are moved.", missing="Move to which queue? Fill in its name.", metavar="QUEUE"
)


class MessageRows(Rows[Message]):
    """Messages that wait in the queue *name* of the scope."""

    name, noun, plural, at = "messages", "message", "messages", "sent"
    scope: ClassVar = {"name": True}
    gone = "taken by a worker, changed, larger than 1 MiB, or of another program"
    complete = True
    place = " of {name}"

    def plan(self, action: Action, access: Access, choice: Choice) -> Plan:
        """Return the plan. Raises InvalidNameError and ForbiddenDestinationError for another queue."""
        if "to" in choice.arguments:
            check_target(access, choice.scope["name"], choice.arguments["to"])
        return super().plan(action, access, choice)

    def find(self, access: Access, choice: Choice) -> Selection[Message]:
        """Return the messages with the ids of *choice*, or those that match."""
        wanted = None if choice.ids is None else frozenset(choice.ids)
        listing = _listing(access, choice, choice.conditions or Conditions())
        return listing.gather(choice.most, lambda row: row if wanted is None or row.id in wanted else None)

    def read(self, access: Access, choice: Choice) -> list[Message]:  # noqa: ARG002
        if not all(map(_REFERENCE.fullmatch, choice.references)):
            raise InvalidValueError(INVALID_ROW)
        return list(dict.fromkeys(choice.references))

    def current(self, access: Access, choice: Choice, items: Sequence[Message]) -> list[Message]:
        """Return the messages that are shown; the others stay references, since each has to be searched."""
        if not choice.references:
            return list(items)
        shown, known = set(choice.references[:MAX_SUBJECTS]), dict[str, WaitingMessage]()
        for message in _listing(access, choice, Conditions()).all():
            if message.element.reference in shown:
                known[message.element.reference] = message
                if len(known) == len(shown):
                    break
        return [known.get(reference, reference) for reference in choice.references]

    def reference(self, item: Message) -> str:
        return item if isinstance(item, str) else item.element.reference

    def subjects(self, choice: Choice, items: Sequence[Message]) -> list[Subject]:
        return [_subject(choice.scope["name"], item) for item in items[:MAX_SUBJECTS] if not isinstance(item, str)]

    def queues(self, choice: Choice, items: Sequence[Message], subjects: Sequence[Subject]) -> Sequence[str]:  # noqa: ARG002
        return [choice.scope["name"]]


class KeyMessageRows(MessageRows):
    """Messages with one *key* of the flow *name* of the scope."""

    name = "key-messages"
    scope: ClassVar = {"name": True, "key": True}
    place = " of key {key} of {name}"

    def plan(self, action: Action, access: Access, choice: Choice) -> Plan:
        """Return the plan, whose detail for the audit begins with the key."""
        plan = super().plan(action, access, choice)
        return replace(plan, detail=", ".join(filter(None, [f"key {choice.scope['key']}", plan.detail])))


def move(access: Access, found: Sequence[Message], choice: Choice) -> Iterator[Result]:
    """Move messages to another queue, by id, by conditions, or all; they keep order and priority.

    Those that wait for a place in a flow keep their keys, and wait for a place in the other queue. It reaches the
    10,000 oldest messages of each priority; run it again for more.

    Example: redis-queue -A shop celery-queue mail move --task shop.remind --to slow
    """
    return _remove(access, found, choice)


def delete(access: Access, found: Sequence[Message], choice: Choice) -> Iterator[Result]:
    """Delete messages, by id or by conditions, also those that wait for a place in a flow: their tasks never run.

    It reaches the 10,000 oldest messages of each priority. To delete all: celery-queue NAME purge.

    Example: redis-queue -A shop celery-queue mail delete --task shop.remind --dry-run
    """
    return _remove(access, found, choice)


def move_key(access: Access, found: Sequence[Message], choice: Choice) -> Iterator[Result]:
    """Move waiting messages of KEY of the flow NAME to another queue, by id, by conditions, or all.

    They keep their order, their priority and their keys. It reaches the 10,000 oldest of each list; run it again for
    more.

    Example: redis-queue -A shop flow move queue:reports acme --all --to slow
    """
    return _remove(access, found, choice)


def delete_key(access: Access, found: Sequence[Message], choice: Choice) -> Iterator[Result]:
    """Delete waiting messages of KEY of the flow NAME, by id, by conditions, or all: their tasks never run.

    It reaches the 10,000 oldest of each list; run it again for more.

    Example: redis-queue flow delete queue:reports acme --all --dry-run
    """
    return _remove(access, found, choice)


def purge(access: Access, choice: Choice) -> Plan:
    """Delete all messages that wait, also for a place in a flow; those in flight stay with their workers.

    Example: redis-queue -A shop celery-queue mail purge --dry-run
    """
    name = choice.scope["name"]
    row: Any = celery_queues_of(access).row(name)
    if row.error:
        raise OperationalError(row.error)
    if row.ready is None:
        raise ConfigurationError(f"{name}: this broker does not count its messages")
    count = row.ready if choice.confirmed is None else choice.confirmed
    text = (
        f"{counted(count, 'message')} will be deleted, also those that wait for a place in a flow: their tasks never "
        "run. Messages in flight stay with their workers."
    )
    if not on_redis(access.app):
        text += " On this broker, messages that arrive meanwhile are deleted as well."
    return Plan(
        question=f"Delete {_messages.counted(count)} of {name}",
        count=count,
        run=lambda: (Result(deleted, tried=deleted) for deleted in purge_messages(access.app, name, max(1, count))),
        queues=[name],
        text=text,
    )


def check_target(access: Access, name: str, target: str) -> None:
    """Raise an error unless messages of the queue or flow *name* can be moved to *target*.

    InvalidNameError for an unknown queue, with a suggestion, or ForbiddenDestinationError.
    """
    if target == name.removeprefix(OF_QUEUE):
        raise InvalidNameError(f"to={target!r}: must be another queue")
    Destinations(access.app).check_queue(celery_queues_of(access).check(target))


def remove(
    access: Access, name: str, references: Iterable[str], target: str | None = None, key: str | None = None
) -> Iterator[Result]:
    """Delete the messages with these *references*, or move them to the queue *target*, batch by batch.

    They are those of the queue *name*, or of a *key* of the flow *name*. A message that a worker has taken meanwhile is
    left out, as is one that cannot be moved: messages of other programs, and those larger than 1 MiB.
    """
    if key is None:
        celery_queues_of(access)
    chosen = list(references)
    left = len(chosen)
    with contents_of(access, name, key) as contents:
        for removed, refused in contents.remove(chosen, target):
            left -= len(removed) + refused
            subjects = [_subject(name, WaitingMessage.of(element)) for element in removed[:MAX_SUBJECTS]]
            yield Result(len(removed), tried=len(removed) + refused, subjects=subjects)
    if left > 0:
        yield Result(0, tried=left)


def _remove(access: Access, found: Sequence[Message], choice: Choice) -> Iterator[Result]:
    references = map(_messages.reference, found)
    return remove(access, choice.scope["name"], references, choice.arguments.get("to"), choice.scope.get("key"))


def _listing(access: Access, choice: Choice, conditions: Conditions) -> Messages:
    return Messages(access, choice.scope["name"], conditions, choice.scope.get("key"))


def _subject(name: str, message: WaitingMessage) -> Subject:
    return Subject(message.id, message.queue or name, message.task, message.since)


def _to(given: Mapping[str, Any]) -> str:
    return f" to {given['to']}"


_messages, _of_key = MessageRows(), KeyMessageRows()
_queue = One("messages", _messages.scope)

ACTIONS: Final = (
    Action(_messages, "move", "Move", "moved", move, (TO,), phrase=_to),
    Action(_messages, "delete", "Delete", "deleted", delete, destroys=True, takes_all=False),
    Action(_queue, "purge", "Delete all messages", "deleted", purge, destroys=True),
    Action(_of_key, "move", "Move", "moved", move_key, (TO,), phrase=_to),
    Action(_of_key, "delete", "Delete", "deleted", delete_key, destroys=True),
)
