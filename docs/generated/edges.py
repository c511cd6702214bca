"""Read the edges in the tables of states.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple

PAGE: Final = Path(__file__).parent.parent / "states.md"
ROW: Final = re.compile(r"^\| ([a-z ]+) \| ([a-z ]+) \| (\w+) \| (?:`([\w/]+)`)? ?\|", re.MULTILINE)


class Edge(NamedTuple):
    """A transition between two states; without a script it is a plain command."""

    source: str
    target: str
    verb: str
    script: str


def tables() -> list[list[Edge]]:
    """Return the edges of a message, of an entry, and of a task in a queue of Celery."""
    _, *sections = PAGE.read_text("utf-8").split("\n## ")
    return [[Edge(*found) for found in ROW.findall(section) if found[0] != "from"] for section in sections]
