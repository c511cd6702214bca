"""CurrentSend: what this thread sends at this moment; parts of Celery's publish only see the message."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis_queue.celery.message.envelope import Due, Envelope
from redis_queue.celery.message.unique_header import UniqueHeader

if TYPE_CHECKING:
    from celery import Celery


def is_retry_of(app: Celery, task_id: Any) -> bool:
    """Tell whether the running task sends a message with its own id; Celery drops a task whose retry raises."""
    task = app.current_task
    return task is not None and str(task.request.id) == str(task_id)


@dataclass(slots=True)
class UniqueMessage:
    """The message of a unique task, which is about to be sent, and the key that it owns."""

    task_id: str
    header: UniqueHeader
    #: Whether it replaces one that waits in the store: it goes the same way, and replaces it there.
    through_store: bool = False
    #: Whether the message has the header.
    is_marked: bool = False
    #: Whether its sending has begun: it may be there although that failed.
    may_be_sent: bool = False
    #: Whether Redis knows that it was sent.
    is_confirmed: bool = False
    #: Whether it replaced another message in the store, which is gone.
    replaced: bool = False


class CurrentSend(threading.local):
    """Arguments of the current send of this thread: the message only has the eta that Celery computed."""

    task_id: str | None = None
    countdown: float | None = None
    #: Arguments of the task, of which its keys are made.
    arguments: tuple[Any, Any] = ((), {})
    #: The list in which push_many collects messages.
    batch: list[tuple[Envelope, Due]] | None = None
    #: The message of a unique task that is sent.
    unique: UniqueMessage | None = None

    def unique_of(self, task_id: Any) -> UniqueMessage | None:
        """Return the message of a unique task if it is that of *task_id*: meanwhile others may be sent."""
        found = self.unique
        return found if found is not None and found.task_id == task_id else None
