"""Decide how to give back a message whose handler raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import Seconds, duration_ms
from redis_queue.basics.waits import retry_delay
from redis_queue.errors import Dead, Nack
from redis_queue.model import Message

logger = logger_of(__name__)


class GiveBack(NamedTuple):
    """How to nack a message."""

    reason: object
    delay: Seconds = 0
    dead: bool = False
    counted: bool = True


def verdict_on(message: Message, error: BaseException, after: Callable[[int], Seconds]) -> GiveBack:
    """Return how to give *message* back after *error*: as a Verdict says, else with the delay ``after(deliveries)``."""
    if isinstance(error, Dead):
        return GiveBack(error.reason, dead=True)
    if isinstance(error, Nack):
        return GiveBack(error.reason, _checked(message, lambda: error.delay), counted=bool(error.counted))
    return GiveBack(error, _checked(message, lambda: after(message.deliveries)))


def _checked(message: Message, ask: Callable[[], Seconds]) -> Seconds:
    try:
        delay = ask()
        duration_ms(delay)
    except Exception:
        # An invalid delay must neither end the loop nor bring the message back at once.
        logger.exception("invalid delay", extra={"action": "delay_refused", "message_id": message.id})
        return retry_delay(message.deliveries)
    return delay
