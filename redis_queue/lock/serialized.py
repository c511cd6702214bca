"""Serialize handlers: calls with the same key never run at the same time."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from redis_queue.basics.key_template import Key, KeyTemplate
from redis_queue.basics.times import Seconds, duration_ms
from redis_queue.errors import InvalidDelayError, Nack
from redis_queue.lock.lock import Lock, check_lease, check_wait, held_here
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.keys import check_name

MIN_RETRY_MS: Final = 10

JITTER: Final = 0.2
"""Largest part of *retry_in* that is added at random, so that retries which met once do not meet again."""

RetryIn = Seconds | Callable[..., Seconds]

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Serial:
    """The settings of a serialized function. Raises InvalidValueError for invalid ones, before anything is sent.

    *key*: a format string over the arguments of *function*, or a function of them. *retry_in*: seconds (at least 0.01),
    or a function of the arguments that returns seconds. *lease* and *wait*: as of :class:`redis_queue.Lock`.
    """

    function: Callable[..., Any]
    key: Key
    retry_in: RetryIn = 5.0
    lease: Seconds = 60.0
    wait: Seconds = 0.0
    signature: inspect.Signature = field(init=False)
    template: KeyTemplate = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "signature", inspect.signature(self.function))
        check_lease(self.lease)
        check_wait(self.wait)
        if not callable(self.retry_in):
            check_retry_in(self.retry_in)
        object.__setattr__(self, "template", KeyTemplate(self.key))
        self.template.check(self.signature, getattr(self.function, "__name__", "the function"))

    def name_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Return the name of the lock for a call with these arguments.

        Raises InvalidValueError if they result in an invalid name, TypeError if the function does not take them.
        """
        name = self.key(*args, **kwargs) if callable(self.key) else self.template.of_call(self.signature, args, kwargs)
        return check_name(name, what="lock")

    def delay_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
        """Return the seconds until a call with these arguments is retried, with jitter. Raises InvalidDelayError."""
        seconds = self.retry_in(*args, **kwargs) if callable(self.retry_in) else self.retry_in
        return check_retry_in(seconds) / 1000 * random.uniform(1, 1 + JITTER)


def check_retry_in(value: Seconds) -> int:
    """Return *value* in ms. Raises InvalidDelayError unless it is a delay of 0.01 seconds or more."""
    found = duration_ms(value, name="retry_in")
    if found < MIN_RETRY_MS:
        raise InvalidDelayError(f"retry_in={value!r}: must be {MIN_RETRY_MS / 1000:g} seconds or more")
    return found


def serialized(
    queue: RedisQueue, *, key: Key, retry_in: RetryIn = 5.0, lease: Seconds = 60.0, wait: Seconds = 0.0
) -> Callable[[F], F]:
    """Serialize a handler of a :class:`~redis_queue.Consumer`: calls with the same *key* never run at the same time.

    *key* is a format string over the handler's arguments, such as ``"customer:{message.body[customer]}"``, or a
    function of them. The lock is in the Redis of *queue*; all functions with that key share it. If it is still taken
    after *wait* seconds, the message goes back for *retry_in* seconds (a number, or a function of the arguments) plus
    up to a fifth; that does not count as a delivery. *lease*: as of :class:`redis_queue.Lock`. Raises InvalidValueError
    for invalid settings at once.
    """

    def decorate(function: F) -> F:
        serial = Serial(function, key, retry_in, lease, wait)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            lock = Lock(serial.name_of(args, kwargs), queue.client, lease=lease, prefix=queue.settings.prefix)
            if held_here(lock):
                return function(*args, **kwargs)
            held = lock.acquire(wait=wait)
            if held is None:
                delay = serial.delay_of(args, kwargs)
                raise Nack(f"another holder has the lock {lock.name!r}", delay=delay, counted=False)
            with held:
                return function(*args, **kwargs)

        return cast("F", run)

    return decorate
