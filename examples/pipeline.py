"""A CSV file through a RedisQueue in batches: an unfinished batch of a dead process is processed by the next one.

``python -m examples.pipeline`` counts the orders of each customer in ``examples/orders/orders.csv``, or in your file.
It needs ``pip install .`` and a Redis: REDIS_URL, default redis://localhost:6379/0.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from redis_queue import RedisQueue

FILE = Path(__file__).with_name("orders") / "orders.csv"
BATCH = 100


def rows(file: Path) -> Iterator[dict[str, str]]:
    """Yield the lines of *file* as dicts, with the names in its first line."""
    with file.open(newline="", encoding="utf-8") as lines:
        yield from csv.DictReader(lines)


def feed(queue: RedisQueue, found: Iterable[dict[str, str]]) -> int:
    """Put all rows, 500 in one round trip; return their number."""
    return len(queue.put_many(found))


def work(queue: RedisQueue, column: str) -> Counter[str]:
    """Take batches until the queue is empty and count the values of *column*."""
    total: Counter[str] = Counter()
    while messages := queue.get_many(BATCH, block=False):
        total.update(message.body[column] for message in messages)
        # The batch is acked as a whole, or redelivered as a whole.
        queue.ack_many(messages)
    return total


def main(url: str, file: Path, column: str = "customer") -> Counter[str]:
    """Feed *file* into a queue, process it, and return how often each value of *column* occurs."""
    queue = RedisQueue("pipeline", url)
    fed = feed(queue, rows(file))
    total = work(queue, column)
    print(f"{fed:,} rows in, {total.total():,} done")
    for value, count in total.most_common(3):
        print(f"{count:5,} {value}")
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m examples.pipeline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=FILE, help="a CSV file with names in its first line")
    parser.add_argument("--column", default="customer", help="what is counted")
    asked = parser.parse_args()
    try:
        main(os.environ.get("REDIS_URL", "redis://localhost:6379/0"), asked.file, asked.column)
    except (OSError, KeyError) as error:
        parser.error(f"{asked.file}, column {asked.column!r}: {error}")
