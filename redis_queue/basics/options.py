"""What a user wrote: options as a dataclass, names with suggestions, conditions that choose tasks and messages."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from heapq import nlargest
from itertools import islice
from typing import Any, Final, TypedDict, TypeVar

from redis_queue.errors import InvalidValueError

NEAR: Final = 0.5
"""Minimum similarity of a suggestion, from 0 to 1."""

MAX_NAMES: Final = 20
"""Maximum number of known names in one text, and of unknown names that are compared with all known ones."""

MAX_COMPARED: Final = 60
"""Maximum length of a text that is compared: the time grows with the product of two lengths, or more."""

MAX_LOOKS: Final = 1000
"""Maximum number of known names that are looked at for one unknown name."""

MAX_LIKELY: Final = 10
"""Maximum number of them, those with the most letters in common, whose order of letters is compared, too."""

Kind = TypeVar("Kind")


def nearest(name: str, known: Iterable[str], *, most: int = 1, similarity: float = NEAR) -> list[str]:
    """Return up to *most* of *known* that resemble *name*, the nearest first.

    The time is bounded, whatever others have stored as names: the last 60 characters count, of the first 1000 names.
    """
    # The last part of a dotted name tells most.
    names = {text[-MAX_COMPARED:]: text for text in islice(known, MAX_LOOKS)}
    compared = name[-MAX_COMPARED:]
    matcher = difflib.SequenceMatcher(b=compared)

    def letters(text: str) -> float:
        matcher.set_seq1(text)
        return matcher.quick_ratio()

    likely = nlargest(max(MAX_LIKELY, most), names, key=letters)
    return [names[text] for text in difflib.get_close_matches(compared, likely, n=most, cutoff=similarity)]


def did_you_mean(
    name: str, known: Iterable[str], *, show: Callable[[str], str] = repr, most: int = 1, otherwise: str = ""
) -> str:
    """Return ``did you mean 'this'?`` for up to *most* names, or *otherwise*, by default ``known are …``."""
    names = list(known)
    if near := nearest(name, names, most=most):
        return f"did you mean {' or '.join(map(show, near))}?"
    return otherwise or f"known are {', '.join(map(show, names[:MAX_NAMES]))}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return ``1 entry`` or ``2,000 entries``; without *plural*, it is the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


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


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions on tasks and messages in any place, all of which must hold; None: any.

    *task* is the whole name of the task, *task_part* a part of it, *text* a part of its arguments, or of the text of
    its exception. *stamp* maps each name of a stamp to a value, or to several values of which one must match. *reason*
    is a part of why a message died, *exception* the name of a class, with or without its module. *due_before* and
    *due_after* (inclusive) limit its time: when it is due, or failed. They may be spans from now.
    """

    task: str | None = None
    task_part: str | None = None
    queue: str | None = None
    id_prefix: str | None = None
    stamp: Mapping[str, Any] | None = None
    text: str | None = None
    due_before: datetime | timedelta | None = None
    due_after: datetime | timedelta | None = None
    reason: str | None = None
    exception: str | None = None
    worker: str | None = None
    release: str | None = None

    def __bool__(self) -> bool:
        return self.has(*(item.name for item in fields(self)))

    def has(self, *names: str) -> bool:
        """Return whether there is a condition of one of these *names*."""
        return any(getattr(self, name) is not None for name in names)

    @property
    def needs_payloads(self) -> bool:
        """Whether payloads must be read to know which entries match."""
        return self.has("task", "task_part", "queue", "stamp", "text")

    @property
    def needs_entries(self) -> bool:
        """Whether entries must be read to know which match; else their due times tell."""
        return self.needs_payloads or self.id_prefix is not None

    def window(self, now: Callable[[], datetime]) -> tuple[datetime | None, datetime | None]:
        """Return *due_before* and *due_after* as times; *now* is called only for spans."""
        before, after = (
            now() + value if isinstance(value, timedelta) else value for value in (self.due_before, self.due_after)
        )
        return before, after

    def match(self, found: Any) -> bool:
        """Return whether *found* meets all conditions but those on its time; it has the attributes that they name."""
        return all(meets(found, value) for name, meets in _MEETS.items() if (value := getattr(self, name)) is not None)


_MEETS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "id_prefix": lambda found, prefix: found.id.startswith(prefix),
    "reason": lambda found, part: part in found.reason,
    "worker": lambda found, name: found.worker == name,
    "release": lambda found, name: found.release == name,
    "exception": lambda found, name: name in (found.exception, found.exception.rpartition(".")[2]),
    "queue": lambda found, name: found.queue == name,
    "task": lambda found, name: found.task == name,
    "task_part": lambda found, part: part in found.task,
    "stamp": lambda found, stamps: _has_stamps(found.stamps, stamps),
    "text": lambda found, part: any(part in text for text in (found.args, found.kwargs, getattr(found, "message", ""))),
}
"""How each condition is met, those first that need no body."""


class TaskConditions(TypedDict, total=False):
    """Conditions as keyword arguments, for type checkers."""

    task: str | None
    task_part: str | None
    queue: str | None
    id_prefix: str | None
    stamp: Mapping[str, Any] | None
    text: str | None
    due_before: datetime | None
    due_after: datetime | None


def _has_stamps(stamps: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return all(_texts(stamps.get(name)) & _texts(values) for name, values in expected.items())


def _texts(value: Any) -> set[str]:
    several = value if isinstance(value, list | tuple | set | frozenset) else [] if value is None else [value]
    return set(map(str, several))
