"""Reference of errors, as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from docs.generated.tables import code, table
from redis_queue.errors import RedisQueueError, Verdict


def page() -> str:
    """Return a table of all errors, each followed by its subclasses."""
    rows = [row for root in (RedisQueueError, Verdict) for row in _rows(root, 0)]
    return table(("class", "also a", "when"), rows)


def _rows(error: type[Exception], depth: int) -> Iterator[tuple[str, str, str]]:
    others = [base.__name__ for base in error.__bases__ if base.__module__ == "builtins" and base is not Exception]
    yield "&nbsp;&nbsp;" * 2 * depth + code(error.__name__), code(", ".join(others)), (error.__doc__ or "").strip()
    for inner in error.__subclasses__():
        if inner.__module__.startswith("redis_queue.errors"):
            yield from _rows(inner, depth + 1)


MAKERS: Final = {"errors": page}
