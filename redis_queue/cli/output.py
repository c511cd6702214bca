"""Output of commands: tables, fields, JSON, with stored texts escaped; how commands end: exit codes and signals."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone, tzinfo
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final

import click

from redis_queue.basics.logs import escape
from redis_queue.errors import ConfigurationError, InvalidValueError, RedisQueueError
from redis_queue.store.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod, OverflowMethod

    from redis_queue.catalog import Catalog

MARGIN: Final = 2
WIDTH: Final = 80
"""Columns of a table outside a terminal, unless COLUMNS is set."""

UNFOLDED: Final = 36
"""Longest text of a column that is not folded: the length of a UUID."""

NUMBER: Final = (int, float)

NOTHING: Final = "-"

INDENT: Final = 4
"""Indent of texts that are printed below their row."""

NARROW: Final = 8
"""Minimum width of a text column, however narrow the screen."""

DEFAULT_PREFIX: Final = Settings().prefix

_TIME_IN_TEXT: Final = re.compile(r"(\d{4}-[01]\d-[0-3]\d [0-2]\d:[0-5]\d:[0-5]\d) UTC", re.ASCII)

UTC: Final = "redis_queue.utc"
"""Entry of a command's context: whether it shows times in UTC, not in the local time zone."""

AS_JSON: Final = "redis_queue.json"
"""Entry of a command's context: whether it prints JSON."""

FAILED: Final = 1
"""Something failed, a check found an error, or the store cannot be reached."""

UNUSABLE: Final = 2
"""Invalid arguments or settings."""

INTERRUPTED_AT_ONCE: Final = 130
"""Interrupted before there was a result."""

INTERRUPTED: Final = "interrupted: run it again to go on"


def wants_json() -> bool:
    """Return whether the command prints JSON."""
    ctx = click.get_current_context(silent=True)
    return ctx is not None and ctx.meta.get(AS_JSON, False)


def harmless(value: Any) -> str:
    """Return *value* as text; control characters, and characters the terminal cannot show, are escaped."""
    return encodable(escape(str(value)))


def encodable(text: str) -> str:
    """Return *text* with characters escaped that stdout cannot encode."""
    encoding = sys.stdout.encoding or "ascii"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def show_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object in ASCII."""
    click.echo(json.dumps(value, default=_plain, allow_nan=False))


def show_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    keep: Sequence[str] = (),
    below: Sequence[str] = (),
    err: bool = False,
) -> None:
    """Print rows under *heads*. Wide cells are folded, except short texts in the columns *keep*.

    If the table is wider than the screen, the columns *below* are printed under each row instead. The head of a column
    of times names their zone; if the zone changes within the column, each time names it. *err*: print to stderr.
    """
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise click.ClickException("tables need rich: pip install 'celery-redis-queue[cli]', or add --json") from error
    console = Console(file=sys.stdout, width=screen_width(), markup=False, highlight=False, emoji=False)
    values = list(zip(*rows, strict=True)) or [()] * len(heads)
    columns = [_Column.of(head, list(column)) for head, column in zip(heads, values, strict=True)]
    if sum(column.width + MARGIN for column in columns) - MARGIN <= console.width or not below:
        lines = _folded_lines(console, columns, keep)
    else:
        lines = _stacked_lines(console, columns, keep, below)
    for line in lines:
        click.echo(line, err=err)


@dataclass(frozen=True, slots=True)
class _Column:
    """A column as text: its *name*, its heading, its cells; *right* aligns numbers."""

    name: str
    head: str
    cells: list[str]
    right: bool
    width: int

    @classmethod
    def of(cls, name: str, values: list[Any]) -> _Column:
        from rich.cells import cell_len  # noqa: PLC0415 - as above

        zones = {zone_name(value) for value in values if isinstance(value, datetime)}
        head = f"{name} ({harmless(*zones)})" if len(zones) == 1 else name
        cells = [_cell(value, named=len(zones) > 1) for value in values]
        right = bool(values) and all(isinstance(value, NUMBER) for value in values)
        return cls(name, head, cells, right, max(map(cell_len, (head, *cells))))


def _folded_lines(console: Console, columns: Sequence[_Column], keep: Sequence[str]) -> Iterator[str]:
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, padding=(0, MARGIN, 0, 0), header_style="bold")
    for column in columns:
        # A long text that is not folded would be cut.
        unfolded = column.name in keep and all(len(cell) <= UNFOLDED for cell in column.cells)
        # A number that does not fit must not look like a smaller one.
        overflow: OverflowMethod = "ellipsis" if column.right else "fold"
        justify: JustifyMethod = "right" if column.right else "left"
        table.add_column(column.head, justify=justify, overflow=overflow, no_wrap=unfolded or column.right)
    for row in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(Text, row))
    with console.capture() as captured:
        console.print(table)
    for text in captured.get().splitlines():
        yield encodable(text.rstrip())


def _stacked_lines(
    console: Console, columns: Sequence[_Column], keep: Sequence[str], below: Sequence[str]
) -> Iterator[str]:
    beside = [column for column in columns if column.name not in below]
    under = [column for column in columns if column.name in below]
    widths = _fitting_widths(beside, console.width, keep)
    yield click.style(_beside(console, beside, widths, [column.head for column in beside]), bold=True)
    for number in range(len(beside[0].cells)):
        yield _beside(console, beside, widths, [column.cells[number] for column in beside])
        for column in under:
            if column.cells[number] != NOTHING:
                lines = _wrap(console, f"{column.head}: {column.cells[number]}", console.width - INDENT)
                yield from (f"{'':{INDENT}}{line}" for line in lines)


def _fitting_widths(columns: Sequence[_Column], room: int, keep: Sequence[str]) -> list[int]:
    """Return widths that fit into *room* if possible; the widest columns shrink."""
    widths = [column.width for column in columns]
    giving = [number for number, column in enumerate(columns) if column.name not in keep or column.width > UNFOLDED]
    while giving and sum(widths) + MARGIN * (len(widths) - 1) > room:
        widest = max(giving, key=lambda number: widths[number])
        if widths[widest] <= NARROW:
            break
        widths[widest] -= 1
    return widths


def _beside(console: Console, columns: Sequence[_Column], widths: Sequence[int], cells: Sequence[str]) -> str:
    from rich.cells import set_cell_size  # noqa: PLC0415 - as above

    folded = [_wrap(console, cell, width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for parts in zip_longest(*folded, fillvalue=""):
        filled = [
            f"{part:>{width}}" if column.right else set_cell_size(part, width)
            for part, column, width in zip(parts, columns, widths, strict=True)
        ]
        lines.append((" " * MARGIN).join(filled).rstrip())
    return "\n".join(lines)


def _wrap(console: Console, text: str, width: int) -> list[str]:
    from rich.text import Text  # noqa: PLC0415 - as above

    if text.isascii() and len(text) <= width:
        return [text]
    return [line.plain.rstrip() for line in Text(text).wrap(console, width, overflow="fold")]


def screen_width() -> int | None:
    """Return the width of output outside a terminal; None on a terminal."""
    if sys.stdout.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else WIDTH


def show_location(catalog: Catalog, before: str = "", after: str = "") -> None:
    """Print Redis and prefix between two texts."""
    click.echo(harmless(f"{before} in {location_of(catalog)}{after}".lstrip()))


def location_of(catalog: Catalog) -> str:
    """Return the URL without user and password, and the prefix unless it is the default."""
    return catalog.url if catalog.prefix == DEFAULT_PREFIX else f"{catalog.url}, prefix {catalog.prefix}"


def show_count(catalog: Catalog, shown: int, *, more: bool) -> None:
    """Print the number of rows shown, their Redis, and whether there are more."""
    show_location(catalog, f"{shown:,} shown", "; there are more: raise --limit" if more else "")


def show_fields(fields: Mapping[str, Any]) -> None:
    """Print one name and value per line."""
    width = max(map(len, fields)) + MARGIN
    for name, value in fields.items():
        click.echo(f"{name.replace('_', ' '):{width}}{text_of(value)}".rstrip())


def shown_body(body: Any) -> str:
    """Return a body as text."""
    if isinstance(body, bytes):
        return body.decode(errors="backslashreplace")
    return json.dumps(body, ensure_ascii=False, default=repr)


def text_of(value: Any) -> str:
    """Return *value* as text outside a table: a time with its zone."""
    return _cell(value, named=True)


def zone() -> tzinfo | None:
    """Return the time zone of the output; None is that of this machine."""
    ctx = click.get_current_context(silent=True)
    return timezone.utc if ctx is not None and ctx.meta.get(UTC) else None


def in_zone(at: datetime) -> datetime:
    """Return *at* in the time zone of the output."""
    try:
        return at.astimezone(zone())
    except (OverflowError, OSError, ValueError):
        # At the end of the calendar; on some systems earlier.
        return at.astimezone(timezone.utc)


def moment(at: datetime | None) -> str:
    """Return a time point to the second."""
    return "-" if at is None else in_zone(at).strftime("%Y-%m-%d %H:%M:%S")


def zone_name(at: datetime) -> str:
    """Return the name of the zone at that time: ``CET``, ``CEST``, ``UTC``."""
    return in_zone(at).tzname() or ""


def localized(text: str) -> str:
    """Return *text*, in which redis_queue wrote times in UTC, with these times in the time zone of the output."""
    return _TIME_IN_TEXT.sub(lambda found: text_of(datetime.fromisoformat(f"{found[1]}+00:00")), text)


def _cell(value: Any, *, named: bool) -> str:
    """Return *value* as text; a time has the name of its zone if *named*."""
    if isinstance(value, datetime):
        return f"{moment(value)} {harmless(zone_name(value))}" if named else moment(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}".rstrip("0").rstrip(".")
    return NOTHING if value is None else harmless(value)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else repr(value)


def code_of(error: RedisQueueError) -> int:
    """Return the exit code for *error*."""
    return UNUSABLE if isinstance(error, InvalidValueError | ConfigurationError) else FAILED


def report(result: str, count: int, *, error: str = "", more: Mapping[str, Any] | None = None) -> None:
    """Print *count* under the name *result*, and *more* counts; exits with code 1 if there is an *error*.

    What else is in *more* is printed as JSON only.
    """
    known = {result: count, **(more or {})}
    counts = {name.replace("_", " "): number for name, number in known.items() if isinstance(number, int)}
    end_with(error, known, ", ".join(f"{number:,} {name}" for name, number in counts.items()))


def end_with(error: str, document: Mapping[str, Any], text: str = "") -> None:
    """Report an *error*, if any, and print *document* as JSON, or *text*; exits with code 1 if there is an error."""
    if error:
        click.echo(f"error: {harmless(error)}", err=True)
    if wants_json():
        show_json({**document, **({"error": error} if error else {})})
    elif text:
        click.echo(text)
    if error:
        sys.exit(FAILED)


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how many of how many are done; it shows nothing outside a terminal."""
    if not sys.stderr.isatty():
        yield lambda _done, _all: None
        return
    with click.progressbar(length=0, label=label, file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield show


class Stop:
    """Signal handler: the first signal sets *requested*, to end after the current batch; the second ends at once."""

    def __init__(self) -> None:
        self.requested = False

    def __call__(self, *_: object) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


def interrupt(*_: object) -> None:
    """Signal handler that ends the command at once, as Ctrl-C does."""
    raise KeyboardInterrupt
