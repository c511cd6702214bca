"""A consumer process that loses messages on purpose; ``__main__`` tells it what to do."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from redis_queue.model import Message
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.connection import connect
from redis_queue.validation.log import ACKED, CLAIMED, HANDLED, LOST_ON_PURPOSE, REFUSED, Step, StepLog


@dataclass(frozen=True, slots=True)
class Order:
    """What one consumer is told; it goes through stdin, so that no password shows in the process list."""

    url: str
    prefix: str
    name: str
    visibility_timeout: float
    lose_every: int
    batch: int
    log: str

    def dumps(self) -> str:
        """Return the order as one line of JSON."""
        return json.dumps(asdict(self))


def work(order: Order) -> None:
    """Claim, handle and ack until killed or terminated."""
    queue = RedisQueue(
        order.name,
        connect(order.url),
        prefix=order.prefix,
        visibility_timeout=order.visibility_timeout,
        max_deliveries=0,
    )
    log = StepLog(Path(order.log))
    while True:
        messages = queue.get_many(order.batch, block=True, timeout=1)
        log.write(_step(CLAIMED, message) for message in messages)
        kept = [message for message in messages if not _is_lost(message, order.lose_every)]
        log.write(_step(LOST_ON_PURPOSE, message) for message in messages if message not in kept)
        log.write(_step(HANDLED, message) for message in kept)
        accepted = queue.ack_many(kept)
        log.write(_step(ACKED if mine else REFUSED, message) for message, mine in zip(kept, accepted, strict=True))


def _is_lost(message: Message, lose_every: int) -> bool:
    return bool(lose_every) and message.deliveries == 1 and message.body % lose_every == lose_every - 1


def _step(kind: str, message: Message) -> Step:
    return Step(kind, message.body, message.deliveries)
