"""A consumer process: reserve the stock for order lines and record each of them."""

from __future__ import annotations

import json
import logging
import os
import sys
import time

from examples.orders import keyspace
from redis_queue import Consumer, Message, RedisQueue, connect
from redis_queue.store.connection import Client

QUEUE = "order-lines"
LEASE = 3.0
THREADS = 2
BATCH = 10
WAREHOUSE_TAKES = 0.02


def lines_queue(client: Client, prefix: str) -> RedisQueue:
    """Return the queue of order lines."""
    return RedisQueue(QUEUE, client, prefix=prefix, lease=LEASE)


class Reserve:
    """The handler: call the warehouse, then count the pieces and record the line atomically."""

    def __init__(self, name: str, client: Client, prefix: str) -> None:
        self._name = name
        self._client = client
        self._in_hand = keyspace.in_hand(prefix, name)
        self._reserved = keyspace.reserved(prefix)
        self._executed = keyspace.executed_lines(prefix)

    def __call__(self, message: Message) -> None:
        """Reserve the stock for one order line."""
        line = message.body
        self._client.sadd(self._in_hand, line["line"])
        time.sleep(WAREHOUSE_TAKES)
        record = {"id": line["line"], "ran": time.time(), "consumer": self._name, "deliveries": message.deliveries}
        with self._client.pipeline(transaction=True) as steps:
            steps.hincrby(self._reserved, line["sku"], line["quantity"])
            steps.rpush(self._executed, json.dumps(record))
            steps.srem(self._in_hand, line["line"])
            steps.execute()


def main() -> None:
    """Consume until SIGTERM; the argument is the name of this consumer in its records."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    client, prefix = connect(os.environ["REDIS_URL"]), os.environ["REDIS_QUEUE_PREFIX"]
    handler = Reserve(sys.argv[1], client, prefix)
    Consumer(lines_queue(client, prefix), handler, concurrency=THREADS, batch=BATCH).run()


if __name__ == "__main__":
    main()
