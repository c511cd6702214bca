"""Processes that work on both queues until a newer release has written to them."""

from __future__ import annotations

import itertools
import json
import os
import sys

import redis

from redis_queue import DelayQueue, RedisQueue, SchemaError


def work(role: str, client: redis.Redis) -> None:
    """Run *role* until it fails."""
    queue, timed = RedisQueue("orders", client, poll_interval=0.1), DelayQueue("orders", client)
    mine = os.getpid() * 1_000_000
    if role == "consume":
        for message in queue.consume():
            client.rpush("consumed", json.dumps(message.body))
    for number in itertools.count(mine):
        if role == "put":
            queue.put(number)
            client.rpush("put", number)
        elif role == "push":
            timed.push(number, id=str(number))
            client.rpush("pushed", number)
        elif found := timed.pop(5):
            client.rpush("popped", *(json.dumps(entry.payload) for entry in found))


if __name__ == "__main__":
    with redis.Redis.from_url(sys.argv[2]) as own:
        try:
            work(sys.argv[1], own)
        except SchemaError as error:
            sys.stdout.write(f"{error}\n")
            sys.exit(3)
