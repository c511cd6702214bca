"""What a command prints of things that others have named."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from rich.console import OverflowMethod

MARGIN: Final = 2
WIDTH: Final = 80
"""Columns of a table that goes into no terminal, unless COLUMNS says otherwise."""

WHOLE: Final = 36
"""Longest text of a column that is not folded: that of a UUID."""

NUMBER: Final = (int, float)


def harmless(value: Any) -> str:
    """Return *value* as text that moves no cursor and that this terminal can show; the rest is escaped."""
    text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in str(value))
    return encodable(text)


def encodable(text: str) -> str:
    """Return *text* with what stdout cannot show escaped."""
    encoding = sys.stdout.encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def show_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object, in ASCII and so without control characters."""
    click.echo(json.dumps(value, default=_plain, allow_nan=False))


def show_table(heads: Sequence[str], rows: Iterable[Sequence[Any]], *, keep: Sequence[str] = ()) -> None:
    """Print rows under *heads*, folded where they are too wide; short texts in the columns *keep* are not."""
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra that not every command needs
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ImportError as error:
        raise click.ClickException("tables need rich: pip install 'celery-redis-queue[cli]', or add --json") from error
    table = Table(box=None, pad_edge=False, padding=(0, MARGIN, 0, 0), header_style="bold")
    lines = [list(row) for row in rows]
    for number, head in enumerate(heads):
        right = bool(lines) and all(isinstance(line[number], NUMBER) for line in lines)
        # What is not folded is cut off where it is too long, so only short texts stay whole.
        whole = head in keep and all(len(_cell(line[number])) <= WHOLE for line in lines)
        # A number that does not fit must not look like a smaller one.
        overflow: OverflowMethod = "ellipsis" if right else "fold"
        table.add_column(head, justify="right" if right else "left", overflow=overflow, no_wrap=whole or right)
    for line in lines:
        table.add_row(*(Text(_cell(value)) for value in line))
    console = Console(file=sys.stdout, width=screen_width(), markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(table)
    for text in captured.get().splitlines():
        click.echo(encodable(text.rstrip()))


def screen_width() -> int | None:
    """Return the columns of what goes into no terminal; None: the terminal knows."""
    if sys.stdout.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else WIDTH


def show_count(shown: int, *, more: bool) -> None:
    """Print how many rows stand above, and whether there are more."""
    click.echo(f"{shown:,} shown{', there are more: raise --limit' if more else ''}")


def show_fields(fields: Mapping[str, Any]) -> None:
    """Print one name and value in a line."""
    width = max(map(len, fields)) + MARGIN
    for name, value in fields.items():
        zone = " UTC" if isinstance(value, datetime) else ""
        click.echo(f"{name.replace('_', ' '):{width}}{_cell(value)}{zone}".rstrip())


def moment(at: datetime | None) -> str:
    """Return a time point in UTC, to the second."""
    return "-" if at is None else at.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def age(span: timedelta) -> str:
    """Return a length of time in its largest unit."""
    seconds = max(0, int(span.total_seconds()))
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def shown_body(body: Any) -> str:
    """Return a body as text."""
    if isinstance(body, bytes):
        return body.decode(errors="backslashreplace")
    return json.dumps(body, ensure_ascii=False, default=repr)


def _cell(value: Any) -> str:
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else harmless(value)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else repr(value)
