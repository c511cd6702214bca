"""All errors of redis_queue.

RedisQueueError
├── ConfigurationError          (also ValueError)
├── InvalidValueError           (also ValueError)
│   ├── InvalidDelayError
│   ├── InvalidNameError
│   └── BodyError               cannot be serialised, or too large
├── StoreError
│   ├── StoreUnavailableError   (also ConnectionError)
│   ├── StoreRefusedError
│   ├── UnsupportedServerError
│   ├── WrongTypeError
│   └── SchemaError
├── QueueFullError
├── EntryExistsError
├── LeaseLostError
├── LockTakenError
├── DuplicateTaskError
└── WorkerRefusedError

Verdict                         raised by a handler to decide the outcome of its message
├── Nack
└── Dead

The docstring of a class is its default message. The error of redis-py stays in ``__cause__``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

Reason = str | BaseException | None
"""Reason for giving a message back: text, or an exception."""


class RedisQueueError(Exception):
    """Any error of redis_queue."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class ConfigurationError(RedisQueueError, ValueError):
    """A setting is unknown, invalid, or contradicts another one."""


class InvalidValueError(RedisQueueError, ValueError):
    """An argument was refused; nothing was sent to Redis."""


class InvalidDelayError(InvalidValueError):
    """A delay or due time was refused; nothing was sent to Redis."""


class InvalidNameError(InvalidValueError):
    """A queue name or id was refused; nothing was sent to Redis."""


class BodyError(InvalidValueError):
    """A body cannot be serialised or is too large; nothing was sent to Redis."""


class StoreError(RedisQueueError):
    """Redis returned an error."""


class StoreUnavailableError(StoreError, ConnectionError):
    """Redis is unreachable, refuses writes for now, or did not answer; the message says if the outcome is unknown."""


class StoreRefusedError(StoreError):
    """Redis refused the command: wrong password, missing permission, unknown command or out of memory."""


class UnsupportedServerError(StoreError):
    """This Redis is not suitable: too old, a read-only replica, or it may evict queues."""


class WrongTypeError(StoreError):
    """A key of the queue has another Redis type; another program wrote to it."""


class SchemaError(StoreError):
    """The queue was written by a newer redis_queue; upgrade this process."""


class QueueFullError(RedisQueueError):
    """The queue would hold more than max_length ready and delayed messages; nothing was added."""


class EntryExistsError(RedisQueueError):
    """An entry with this id is already stored."""


class LeaseLostError(RedisQueueError):
    """The lease ended and another consumer got the message; its outcome was not recorded."""


class LockTakenError(RedisQueueError):
    """Another holder has the lock."""


class DuplicateTaskError(RedisQueueError):
    """A task with this key waits or runs already; nothing was sent."""

    def __init__(self, message: str | None = None, *, task_id: str = "") -> None:
        super().__init__(message)
        #: The id of that task.
        self.task_id = task_id


class WorkerRefusedError(RedisQueueError):
    """A worker refused a command, or did not answer."""


class Verdict(Exception):  # noqa: N818 - a decision of the handler, not a failure
    """Outcome that a handler chooses for its message instead of acking it."""


class Nack(Verdict):
    """Give the message back for a delivery after *delay* (seconds or timedelta); if *counted*, count this one."""

    def __init__(self, reason: Reason = "", *, delay: float | timedelta = 0, counted: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = delay
        self.counted = counted


class Dead(Verdict):
    """Move the message to the dead letters now, even if it has deliveries left."""

    def __init__(self, reason: Reason = "") -> None:
        super().__init__(reason)
        self.reason = reason


def quoted(value: object) -> str:
    """Return *value* for an error message: ASCII, cut after 80 characters."""
    text = ascii(value)
    return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "..."


MAX_QUOTED: Final = 80
