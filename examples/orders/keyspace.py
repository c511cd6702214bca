"""The keys of a run: a common prefix is used to find and delete them."""

from __future__ import annotations

import string
from collections.abc import Iterator

import redis

from examples.orders.errors import UnusableError

PLAIN = frozenset(string.ascii_letters + string.digits + "_-.")


def executed_lines(prefix: str) -> str:
    """Return the Redis list with one JSON object per order line that was handled."""
    return f"{prefix}:orders:lines"


def in_hand(prefix: str, consumer: str) -> str:
    """Return the Redis set of the order lines that a consumer is handling."""
    return f"{prefix}:orders:in_hand:{consumer}"


def reserved(prefix: str) -> str:
    """Return the Redis hash of the reserved pieces by sku."""
    return f"{prefix}:orders:reserved"


def celery(prefix: str) -> str:
    """Return the prefix of the broker's keys."""
    return f"{prefix}:celery:"


def check_prefix(prefix: str) -> str:
    """Return *prefix* if it contains no pattern. Raises UnusableError."""
    if not prefix or not set(prefix) <= PLAIN:
        raise UnusableError(f"prefix {prefix!r}: give letters, digits, '_', '-' or '.'")
    return prefix


def check_unused(client: redis.Redis, prefix: str) -> None:
    """Raise UnusableError if a key with *prefix* exists."""
    if key := next(_keys(client, prefix), None):
        raise UnusableError(f"prefix {prefix!r} is in use (key {key.decode(errors='replace')!r}): give another one")


def delete(client: redis.Redis, prefix: str) -> None:
    """Delete every key with *prefix*."""
    for key in list(_keys(client, prefix)):
        client.unlink(key)


def _keys(client: redis.Redis, prefix: str) -> Iterator[bytes]:
    for pattern in (f"{{{prefix}:*", f"{prefix}:*"):
        yield from client.scan_iter(match=pattern, count=1000)
