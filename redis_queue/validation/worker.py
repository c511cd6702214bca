"""A consumer process that loses messages on purpose; it reads its order from stdin."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from redis_queue.model import Message
from redis_queue.queue.queue import RedisQueue
from redis_queue.store.connection import connect
from redis_queue.validation.history import Event, History


@dataclass(frozen=True, slots=True)
class Order:
    """Settings of one consumer; sent through stdin, so that the process list shows no password."""

    url: str
    prefix: str
    name: str
    lease: float
    lose_every: int
    batch: int
    history: str

    def dumps(self) -> str:
        """Return the order as one line of JSON."""
        return json.dumps(asdict(self))


def main() -> None:
    """Run one consumer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    work(Order(**json.loads(sys.stdin.readline())))


def work(order: Order) -> None:
    """Claim, handle and ack until killed or terminated."""
    queue = RedisQueue(
        order.name,
        connect(order.url),
        prefix=order.prefix,
        lease=order.lease,
        max_deliveries=0,
    )
    history = History(Path(order.history))
    while True:
        messages = queue.get_many(order.batch, block=True, timeout=1)
        claims = [Event.of_claim(str(message.body), message, order.lease) for message in messages]
        dropped = [_is_dropped(message, order.lose_every) for message in messages]
        history.write(*_steps(claims, dropped))
        kept = [(message, claim) for message, claim, drop in zip(messages, claims, dropped, strict=True) if not drop]
        accepted = queue.ack_many([message for message, _ in kept])
        history.write(
            *(
                claim._replace(op="ack", kind="ok" if mine else "refused")
                for (_, claim), mine in zip(kept, accepted, strict=True)
            )
        )


def _is_dropped(message: Message, lose_every: int) -> bool:
    return bool(lose_every) and message.deliveries == 1 and message.body % lose_every == lose_every - 1


def _steps(claims: Sequence[Event], dropped: Sequence[bool]) -> Iterator[Event]:
    for claim, drop in zip(claims, dropped, strict=True):
        yield claim
        if drop:
            yield claim._replace(op="drop")
        else:
            yield claim._replace(op="execute")
            yield claim._replace(op="ack", kind="invoke")
