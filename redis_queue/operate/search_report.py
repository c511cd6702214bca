"""SearchReport: the text for a search without a match, with suggestions for mistyped task names."""

from __future__ import annotations

from typing import Final

from redis_queue.basics.options import nearest

MOST_NAMES: Final = 1000
"""Most names that are remembered for suggestions."""

SUGGESTED: Final = 3


class SearchReport:
    """Statistics of a search: number of entries, and their task names."""

    def __init__(self) -> None:
        self.looked = 0
        self._names: set[str] = set()

    def add(self, task: str) -> None:
        """Count an entry; *task* is "" if it is not a task."""
        self.looked += 1
        if task and len(self._names) < MOST_NAMES:
            self._names.add(task)

    def no_match(self, noun: str) -> str:
        """Return the text for a search without a match."""
        return f"no match among {self.looked:,} {noun}"

    def hint(self, task: str | None) -> str:
        """Return suggestions for *task*, to append to :meth:`no_match`; "" for none."""
        near = [] if task is None else self._near(task)
        return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""

    def _near(self, task: str) -> list[str]:
        names = sorted(self._names - {task})
        asked = task.lower()
        parts = [name for name in names if asked in name.lower()]
        # People remember the last part of a dotted name.
        known = {form: name for name in names for form in (name.lower(), name.lower().rpartition(".")[2])}
        close = [known[form] for form in nearest(asked, known, most=SUGGESTED)]
        return list(dict.fromkeys([*parts, *close]))[:SUGGESTED]
