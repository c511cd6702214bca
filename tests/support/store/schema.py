"""The stored data of the first release, byte for byte: every later release must read it."""

from __future__ import annotations

import json
from pathlib import Path

import redis

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
