"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; cells are Markdown on one line."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(_cell(cell) for cell in line)} |\n" for line in lines)


def code(text: str) -> str:
    """Return *text* as code in a line, or nothing for none."""
    return f"`{text}`" if text else ""


def prose(text: str) -> str:
    """Return a docstring as Markdown: its ``code`` and its roles become code."""
    return re_roles(" ".join(text.split())).replace("``", "`")


def re_roles(text: str) -> str:
    """Replace ``:class:`redis_queue.model.Entry``` by the name at its end."""
    parts = text.split(":`")
    for index in range(1, len(parts)):
        name, _, rest = parts[index].partition("`")
        head, _, _ = parts[index - 1].rpartition(":")
        parts[index - 1] = head
        parts[index] = f"`{name.rpartition('.')[2]}`{rest}"
    return "".join(parts)


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")
