"""Feed a file of orders into both queues at a steady pace."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.orders.ledger import Ledger
from redis_queue import DelayQueue, RedisQueue
from redis_queue.celery import push_task
from tasks.orders import cancel_unpaid, remind

FILE = Path(__file__).with_name("orders.csv")
PER_SECOND = 40


@dataclass(frozen=True, slots=True)
class Order:
    """One row of the file: the order lines, and the seconds until the shop reminds and cancels."""

    id: str
    customer: str
    amount: str
    remind_after: float
    cancel_after: float
    lines: Sequence[tuple[str, int]]


def read(path: Path = FILE) -> list[Order]:
    """Return the orders in *path*."""
    with path.open(newline="", encoding="utf-8") as file:
        return [
            Order(
                row["order"],
                row["customer"],
                row["amount"],
                float(row["remind_after"]),
                float(row["cancel_after"]),
                [_line(text) for text in row["lines"].split("; ")],
            )
            for row in csv.DictReader(file)
        ]


def _line(text: str) -> tuple[str, int]:
    sku, _, quantity = text.rpartition(" x")
    return sku, int(quantity)


class Feed:
    """Put *orders* into *delays* and *lines*, and record in the ledgers when each work is due.

    *speed* divides the delays of the orders and the time between them.
    """

    def __init__(
        self,
        orders: Sequence[Order],
        delays: DelayQueue,
        lines: RedisQueue,
        tasks_done: Ledger,
        lines_done: Ledger,
        *,
        speed: float,
    ) -> None:
        self.fed = 0
        self._orders = orders
        self._delays = delays
        self._lines = lines
        self._tasks_done = tasks_done
        self._lines_done = lines_done
        self._speed = speed
        self._started: float | None = None

    @property
    def share(self) -> float:
        """The fraction of the file that was fed, 0 to 1."""
        return self.fed / len(self._orders)

    def step(self) -> None:
        """Feed the orders that are due since the first step."""
        if self._started is None:
            self._started = time.monotonic()
        turn = int((time.monotonic() - self._started) * PER_SECOND * self._speed) + 1
        for order in self._orders[self.fed : turn]:
            self._feed(order)
            self.fed += 1

    def _feed(self, order: Order) -> None:
        self._later(remind, order, order.remind_after)
        self._later(cancel_unpaid, order, order.cancel_after)
        bodies = {
            f"{order.id}/{number}": {"line": f"{order.id}/{number}", "sku": sku, "quantity": quantity}
            for number, (sku, quantity) in enumerate(order.lines, 1)
        }
        self._lines_done.sent.update(dict.fromkeys(bodies, time.time()))
        self._lines.put_many(bodies.values(), dedupe_key=lambda body: str(body["line"]))

    def _later(self, task: Any, order: Order, seconds: float) -> None:
        delay = seconds / self._speed
        due = time.time() + delay
        # Recorded before the send: work counts even if the reply to its send was lost.
        id_ = f"{order.id}/{task.name.rpartition('.')[2]}"
        self._tasks_done.sent[id_] = due
        push_task(self._delays, task, [order.id, due], delay=delay, id=id_)
