"""A WorkerLeases without a keeper process, for tests in one process."""

from __future__ import annotations

from collections import Counter


class MemoryCounters:
    """In-memory counters."""

    def __init__(self) -> None:
        self.amounts: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        self.amounts[name] += amount


class FakeLeases:
    """A WorkerLeases that renews nothing and never loses a lease."""

    def __init__(self) -> None:
        self.held: dict[str, float] = {}
        self.aside: list[bytes] = []
        self.counters = MemoryCounters()

    def hold(self, tag: str, since: float, score: float) -> None:
        assert since > 0
        self.held[tag] = score

    def drop(self, tag: str) -> None:
        self.held.pop(tag, None)

    def holds(self, tag: str) -> bool:
        """Return whether *tag* was held and not dropped."""
        return tag in self.held

    def is_ours(self, tag: str) -> bool:
        """Return True: no lease is ever lost."""
        return bool(tag)

    def put_aside(self, tag: str, item: bytes) -> None:
        """Record an unreadable item."""
        self.aside.append(item)
        self.drop(tag)
