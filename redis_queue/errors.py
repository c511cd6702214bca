"""Every error of redis_queue.

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
└── LockTakenError

Verdict                         raised by a handler to say what becomes of its message
├── Nack
└── Dead

The docstring of a class is its default message. The error of redis-py stays in ``__cause__``.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

Reason = str | BaseException | None
"""Why a message is given back: text, or the exception that says it."""


class RedisQueueError(Exception):
    """Something went wrong in redis_queue."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class ConfigurationError(RedisQueueError, ValueError):
    """A setting is unknown, out of range or contradicts another one."""


class InvalidValueError(RedisQueueError, ValueError):
    """An argument was refused; nothing was sent to Redis."""


class InvalidDelayError(InvalidValueError):
    """A delay or due time was refused; nothing was sent to Redis."""


class InvalidNameError(InvalidValueError):
    """A queue name or id was refused; nothing was sent to Redis."""


class BodyError(InvalidValueError):
    """A body cannot be serialised or is too large; nothing was sent to Redis."""


class StoreError(RedisQueueError):
    """Redis answered with an error."""


class StoreUnavailableError(StoreError, ConnectionError):
    """Redis is unreachable, refuses writes for now, or did not answer; the message says if the outcome is unknown."""


class StoreRefusedError(StoreError):
    """Redis refused the command: wrong password, missing permission or out of memory."""


class UnsupportedServerError(StoreError):
    """This Redis cannot keep a queue: too old, a read-only replica, or it may evict keys."""


class WrongTypeError(StoreError):
    """A key of the queue holds another Redis type; something else wrote to it."""


class SchemaError(StoreError):
    """The queue was written by a newer redis_queue; upgrade this process."""


class QueueFullError(RedisQueueError):
    """The queue holds max_length waiting messages; nothing was added."""


class EntryExistsError(RedisQueueError):
    """An entry with this id is already stored."""


class LeaseLostError(RedisQueueError):
    """The lease ended and the message was given to someone else; its outcome was not recorded."""


class LockTakenError(RedisQueueError):
    """Somebody else holds the lock."""


class Verdict(Exception):  # noqa: N818 - a decision of the handler, not a failure
    """What a handler decides about its message instead of finishing it."""


class Nack(Verdict):
    """Give the message back, to come again after *delay* (seconds or timedelta); not *counted*: not as a delivery."""

    def __init__(self, reason: Reason = "", *, delay: float | timedelta = 0, counted: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delay = delay
        self.counted = counted


class Dead(Verdict):
    """Move the message to the dead letters now, whatever deliveries it has left."""

    def __init__(self, reason: Reason = "") -> None:
        super().__init__(reason)
        self.reason = reason


def quoted(value: object) -> str:
    """Return *value* for an error message: ASCII, cut after 80 characters."""
    text = ascii(value)
    return text if len(text) <= MAX_QUOTED else text[:MAX_QUOTED] + "..."


MAX_QUOTED: Final = 80
