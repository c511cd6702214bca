"""RedisQueue against kombu's SimpleQueue: get + ack by one consumer, on the same Redis, in alternating rounds.

Prints a table and, as its last line, one JSON object with the median ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

from kombu.connection import Connection

from benchmarks.server import private_redis
from redis_queue import RedisQueue, connect

BODY = {"order": 4711, "customer": "c-0815", "note": "x" * 150}


def redis_queue(url: str, messages: int, batch: int) -> float:
    """Return messages per second of get_many(batch) and ack_many; batch 1 uses get and ack."""
    queue = RedisQueue("bench", connect(url))
    queue.put_many(BODY for _ in range(messages))
    left = messages
    started = time.perf_counter()
    while left:
        if batch == 1:
            message = queue.get()
            assert message is not None
            assert queue.ack(message)
            left -= 1
        else:
            found = queue.get_many(batch)
            assert all(queue.ack_many(found))
            left -= len(found)
    return messages / (time.perf_counter() - started)


def redis_queue_consume(url: str, messages: int, _batch: int) -> float:
    """Return messages per second of a consume() loop, which acks one message with the next claim."""
    queue = RedisQueue("bench", connect(url))
    queue.put_many(BODY for _ in range(messages))
    left = messages
    started = time.perf_counter()
    for _ in queue.consume():
        left -= 1
        if not left:
            break
    return messages / (time.perf_counter() - started)


def kombu_simple_queue(url: str, messages: int, _batch: int) -> float:
    """Return messages per second of SimpleQueue.get and ack; kombu has no batch."""
    # kombu has its own URL scheme for a unix socket.
    with Connection(url.replace("unix://", "redis+socket://")) as connection:
        queue = connection.SimpleQueue("bench")
        for _ in range(messages):
            queue.put(BODY)
        started = time.perf_counter()
        for _ in range(messages):
            queue.get().ack()
        elapsed = time.perf_counter() - started
        queue.close()
    return messages / elapsed


CONTESTS: dict[str, tuple[Callable[[str, int, int], float], int, int]] = {
    "kombu SimpleQueue get+ack": (kombu_simple_queue, 3000, 1),
    "RedisQueue consume(), one by one": (redis_queue_consume, 6000, 1),
    "RedisQueue get() and ack(), one by one": (redis_queue, 6000, 1),
    "RedisQueue get_many+ack_many, batch 100": (redis_queue, 40000, 100),
}


def main() -> None:
    """Run the rounds, print the table and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="alternating rounds (default 5)")
    rounds = parser.parse_args().rounds
    rates: dict[str, list[float]] = {name: [] for name in CONTESTS}
    with private_redis() as url:
        client = connect(url)
        for number in range(rounds):
            for name, (contest, messages, batch) in CONTESTS.items():
                client.flushall()
                rates[name].append(contest(url, messages, batch))
            print(f"round {number + 1}/{rounds}: " + ", ".join(f"{found[-1]:,.0f}/s" for found in rates.values()))
    base, consumed, single, batched = rates.values()
    print(f"\n{'':42}{'messages/s':>12}{'lowest':>12}{'highest':>12}{'ratio':>8}")
    for name, found in rates.items():
        ratio = statistics.median(a / b for a, b in zip(found, base, strict=True))
        print(f"{name:42}{statistics.median(found):12,.0f}{min(found):12,.0f}{max(found):12,.0f}{ratio:8.2f}")
    named = {"ratio_batch_1": consumed, "ratio_batch_1_two_calls": single, "ratio_batch_100": batched}
    print(
        json.dumps(
            {
                name: round(statistics.median(a / b for a, b in zip(found, base, strict=True)), 2)
                for name, found in named.items()
            }
        )
    )


if __name__ == "__main__":
    main()
