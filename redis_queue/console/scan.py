"""Names of tasks as people type them: parts of names, and suggestions where nothing matches."""

from __future__ import annotations

import difflib
from typing import Final

MOST_NAMES: Final = 1000
"""Names that are remembered for suggestions."""

SUGGESTED: Final = 3

NEAR: Final = 0.5


class Scan:
    """What a search went over: how many entries, and which tasks they call."""

    def __init__(self) -> None:
        self.looked = 0
        self._names: set[str] = set()

    def add(self, task: str) -> None:
        """Count an entry; *task* is "" for what is no task."""
        self.looked += 1
        if task and len(self._names) < MOST_NAMES:
            self._names.add(task)

    def no_match(self, noun: str) -> str:
        """Return what to say where nothing matched."""
        return f"no match among {self.looked:,} {noun}"

    def hint(self, task: str | None) -> str:
        """Return which names may have been meant by *task*, to go behind :meth:`no_match`; "" for none."""
        near = [] if task is None else self._near(task)
        return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""

    def _near(self, task: str) -> list[str]:
        names = sorted(self._names - {task})
        asked = task.lower()
        parts = [name for name in names if asked in name.lower()]
        # The last part is what people remember of a dotted name.
        known = {form: name for name in names for form in (name.lower(), name.lower().rpartition(".")[2])}
        close = [known[form] for form in difflib.get_close_matches(asked, known, n=SUGGESTED, cutoff=NEAR)]
        return list(dict.fromkeys([*parts, *close]))[:SUGGESTED]
