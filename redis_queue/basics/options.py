"""Options and names that a user wrote: a dataclass of a mapping, suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

from redis_queue.errors import InvalidValueError

NEAR: Final = 0.5
"""Minimum similarity of a suggestion, from 0 to 1."""

MAX_NAMES: Final = 20
"""Maximum number of known names in one text."""

Kind = TypeVar("Kind")


def nearest(name: str, known: Iterable[str], *, most: int = 1, similarity: float = NEAR) -> list[str]:
    """Return up to *most* of *known* that resemble *name*, the nearest first."""
    return difflib.get_close_matches(name, list(known), n=most, cutoff=similarity)


def did_you_mean(name: str, known: Iterable[str], *, show: Callable[[str], str] = repr) -> str:
    """Return ``did you mean 'this'?``, or ``known are …`` if none of *known* resembles *name*."""
    names = list(known)
    if near := nearest(name, names):
        return f"did you mean {show(near[0])}?"
    return f"known are {', '.join(map(show, names[:MAX_NAMES]))}"


def some_of(names: Sequence[str], most: int, noun: str = "") -> str:
    """Return the first *most* names in one line, and how many more there are: ``a, b and 7 more``, *noun* after it."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more{noun}" if more > 0 else "")


def from_options(
    kind: type[Kind], value: Any, *, example: str = "", what: str = "option", error: type[Exception] = InvalidValueError
) -> Kind:
    """Return *value* if it is a *kind*, a dataclass, else a *kind* with the arguments in the mapping *value*.

    Raises *error*.
    """
    if isinstance(value, kind):
        return value
    if not isinstance(value, Mapping):
        raise error(f"{value!r}: must be a mapping such as {example}, or a {kind.__name__}")
    known = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    for name in value:
        if name not in known:
            raise error(f"unknown {what} {name!r}: {did_you_mean(str(name), known)}")
    return kind(**value)
