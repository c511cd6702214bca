"""Suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Final

NEAR: Final = 0.5
"""Least similarity of a suggestion, from 0 to 1."""

MOST_NAMES: Final = 20
"""Most known names in one text."""


def nearest(name: str, known: Iterable[str], *, most: int = 1, similarity: float = NEAR) -> list[str]:
    """Return up to *most* of *known* that resemble *name*, the nearest first."""
    return difflib.get_close_matches(name, list(known), n=most, cutoff=similarity)


def did_you_mean(name: str, known: Iterable[str], *, show: Callable[[str], str] = repr) -> str:
    """Return ``did you mean 'this'?``, or ``known are …`` if none of *known* resembles *name*."""
    names = list(known)
    if near := nearest(name, names):
        return f"did you mean {show(near[0])}?"
    return f"known are {', '.join(map(show, names[:MOST_NAMES]))}"
