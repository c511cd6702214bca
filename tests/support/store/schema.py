"""The stored data of the first release, byte for byte: every later release must read it."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path

import redis

from redis_queue import DelayQueue, RedisQueue, SchemaError

FILE = Path(__file__).with_name("schema_1.json")

MOMENT = 1_700_000_000_000
"""When the data was written, in ms."""


def write_schema_1(client: redis.Redis) -> None:
    """Write this data into an empty Redis."""
    for name, found in json.loads(FILE.read_text()).items():
        key, value = name.encode("latin-1"), found["value"]
        if found["type"] == "hash":
            client.hset(key, mapping={raw(field): raw(text) for field, text in value.items()})
        elif found["type"] == "list":
            client.rpush(key, *map(raw, value))
        else:
            client.zadd(key, {raw(member): score for member, score in value.items()})


def raw(text: str) -> bytes:
    """Return the bytes of *text*: JSON cannot hold bytes."""
    return text.encode("latin-1")


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
