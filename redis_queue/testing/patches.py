"""Patches: temporary changes of objects, and their undo."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, Final

_MISSING: Final = object()


class Patches:
    """Set attributes and items; :meth:`undo` restores the former values, last change first."""

    def __init__(self) -> None:
        self._undoing: list[Callable[[], None]] = []

    def put(self, mapping: MutableMapping[Any, Any], key: Any, value: Any) -> None:
        """Set an item; ``vars(object)`` is a mapping too."""
        self._remember(mapping, key)
        mapping[key] = value

    def drop(self, mapping: MutableMapping[Any, Any], key: Any) -> None:
        """Remove an item if it exists; :meth:`undo` also removes one that was set later."""
        self._remember(mapping, key)
        mapping.pop(key, None)

    def keep(self, items: set[Any]) -> None:
        """Remember the members of a set."""
        before = set(items)

        def undo() -> None:
            items.clear()
            items.update(before)

        self._undoing.append(undo)

    def undo(self) -> None:
        """Restore all former values."""
        while self._undoing:
            self._undoing.pop()()

    def _remember(self, mapping: MutableMapping[Any, Any], key: Any) -> None:
        before = mapping.get(key, _MISSING)

        def undo() -> None:
            if before is _MISSING:
                mapping.pop(key, None)
            else:
                mapping[key] = before

        self._undoing.append(undo)
