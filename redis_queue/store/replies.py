"""Replies of Redis as text and pairs."""

from __future__ import annotations

from typing import Any


def pairs(reply: Any) -> list[tuple[Any, Any]]:
    """Return a reply of RESP2 or RESP3 as pairs."""
    if isinstance(reply, dict):
        return list(reply.items())
    if reply and isinstance(reply[0], list | tuple):
        return [(one, other) for one, other in reply]
    return list(zip(reply[::2], reply[1::2], strict=True))


def text(value: Any) -> str:
    """Return a reply as text; invalid UTF-8 is replaced."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
