"""Write tables and docstrings as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown on one line."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def code(text: str) -> str:
    """Return *text* as inline code, "" for an empty one."""
    return f"`{text}`" if text else ""


def markdown(text: str) -> str:
    """Return a docstring as Markdown: paragraphs and lists."""
    return "".join(f"{_paragraph(part)}\n\n" for part in text.split("\n\n") if part.strip()).removesuffix("\n")


def _paragraph(text: str) -> str:
    items = re.split(r"\n(?=- )", text)
    return "\n".join(map(prose, items))


def prose(text: str) -> str:
    """Return a paragraph of a docstring as Markdown: ``code`` and roles become code, ``<`` is escaped."""
    parts = re_roles(" ".join(text.split())).replace("``", "`").split("`")
    return "`".join(part.replace("<", "\\<") if number % 2 == 0 else part for number, part in enumerate(parts))


def re_roles(text: str) -> str:
    """Replace ``:class:`redis_queue.model.Entry``` by its last name."""
    parts = text.split(":`")
    for index in range(1, len(parts)):
        name, _, rest = parts[index].partition("`")
        head, _, _ = parts[index - 1].rpartition(":")
        parts[index - 1] = head
        parts[index] = f"`{name.rpartition('.')[2]}`{rest}"
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")
