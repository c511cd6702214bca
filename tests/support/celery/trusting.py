"""WorkerLeases without a keeper, for tests in one process."""

from __future__ import annotations

from collections import Counter


class Counted:
    """Counters that only remember."""

    def __init__(self) -> None:
        self.amounts: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        """Count."""
        self.amounts[name] += amount


class Trusting:
    """WorkerLeases that renews nothing and trusts every lease."""

    def __init__(self) -> None:
        self.held: dict[str, float] = {}
        self.aside: list[bytes] = []
        self.counters = Counted()

    def hold(self, tag: str, since: float, score: float) -> None:
        """Remember *tag*."""
        assert since > 0
        self.held[tag] = score

    def drop(self, tag: str) -> None:
        """Forget *tag*."""
        self.held.pop(tag, None)

    def holds(self, tag: str) -> bool:
        """Tell whether *tag* was held and not dropped."""
        return tag in self.held

    def is_ours(self, tag: str) -> bool:
        """Trust it."""
        return bool(tag)

    def put_aside(self, tag: str, item: bytes) -> None:
        """Remember an unreadable item."""
        self.aside.append(item)
        self.drop(tag)
