"""Mutants: faults as edits of the code."""

from __future__ import annotations

from typing import Final, NamedTuple

PACKAGE: Final = "redis_queue"
MESSAGES: Final = 600


class Edit(NamedTuple):
    """Replace *old*, which must occur once in *file* of the package, by *new*."""

    file: str
    old: str
    new: str


class Mutant(NamedTuple):
    """One fault, and the tests that find it; without tests, a run of *scenario* must find it."""

    name: str
    edits: tuple[Edit, ...]
    tests: str = ""
    messages: int = MESSAGES
    scenario: str = "kill"


def lua(name: str, old: str, new: str) -> Edit:
    """Return an edit of a script."""
    return Edit(f"lua/{name}.lua", old, new)
