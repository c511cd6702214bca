"""Fields of forms, or else parameters of addresses, checked before anything is read; invalid ones get status 400."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from flask import abort, request
from werkzeug.datastructures import MultiDict

from redis_queue.basics.options import Conditions
from redis_queue.basics.times import When, read_time, with_zone
from redis_queue.errors import InvalidNameError, InvalidValueError
from redis_queue.operate.listing import Cursor, Listing, T
from redis_queue.operate.tasks import TaskSearch
from redis_queue.web.context import context

MAX_TEXT: Final = 300

ROWS: Final = 50
"""Rows of a page."""

MAX_ROWS: Final = 100
MAX_OFFSET: Final = 10_000_000

_PLACE: Final = re.compile(r"(\d{1,6})\.(\d{1,9})", re.ASCII)


def allow(*names: str) -> None:
    """Refuse unknown and repeated parameters of the address."""
    for name in request.args:
        if name not in names:
            abort(400, f"Unknown parameter {_short(name)}.")
    reject_repeated(request.args)


def reject_repeated(values: MultiDict[str, str], *lists: str) -> None:
    """Refuse values that are given more than once, except *lists*."""
    for name, found in values.lists():
        if len(found) > 1 and name not in lists:
            abort(400, f"Parameter {_short(name)} is given {len(found)} times: must be given once.")


def number(name: str, default: int, low: int, high: int) -> int:
    """Return an integer from *low* to *high*."""
    found = _value(name)
    if found == "":
        return default
    if not (found.isascii() and found.isdecimal() and len(found) < len(str(high)) + 1) or not low <= int(found) <= high:
        abort(400, f"{name}={_short(found)}: must be an integer from {low:,} to {high:,}.")
    return int(found)


def offset() -> int:
    """Return the number of rows before the page."""
    return number("offset", 0, 0, MAX_OFFSET)


def text(name: str, *, exact: bool = False, most: int = MAX_TEXT) -> str | None:
    """Return a text without surrounding white space, or None if empty; *exact* keeps the white space."""
    found = _value(name)
    found = found if exact else found.strip()
    if len(found) > most:
        abort(400, f"{name}={_short(found)}: must have at most {most} characters.")
    if not found.isprintable():
        abort(400, f"{name}={_short(found)}: must be printable.")
    return found or None


def required(name: str, choose: str) -> str:
    """Return a text with its white space. Raises InvalidNameError, with what to *choose*, if it is missing."""
    found = text(name, exact=True)
    if found is None:
        raise InvalidNameError(f"{name} is missing: choose {choose}")
    return found


def choice(name: str, choices: Iterable[str], default: str) -> str:
    """Return one of *choices*."""
    found = text(name) or default
    if found not in choices:
        abort(400, f"{name}={_short(found)}: must be one of {', '.join(choices)}.")
    return found


def when(name: str) -> When | None:
    """Return a time point (``2030-01-01T00:00Z``, or one copied from a page) or a time from now (``2h``)."""
    found = text(name)
    if found is None:
        return None
    try:
        return read_time(with_zone(found, context().zone))
    except InvalidValueError as error:
        abort(400, f"{name}: {error}.")


def stamp(name: str) -> dict[str, str] | None:
    """Return a stamp of a task and its value."""
    found = text(name)
    if found is None:
        return None
    key, equals, value = found.partition("=")
    if not key or not equals:
        abort(400, f"{name}={_short(found)}: must be NAME=VALUE.")
    return {key: value}


def flag(name: str) -> bool:
    """Return the state of a check box."""
    return choice(name, ("0", "1"), "0") == "1"


def conditions(fields: Mapping[str, str]) -> Conditions:
    """Return the conditions that *fields* (name, condition) set; times are fields whose condition begins with "due"."""
    found: dict[str, Any] = {
        condition: (when if condition.startswith("due") else stamp if condition == "stamp" else text)(name)
        for name, condition in fields.items()
    }
    return Conditions(**found)


def searched(
    listing: Listing[T, Cursor] | TaskSearch,
    fields: Iterable[str],
    start: Any,
    nothing: str,
    mark: Callable[[Any], str] = str,
) -> dict[str, Any]:
    """Return what a page shows of a search in *listing*, from *start* on; *nothing* stands for no items.

    These are the texts of the *fields*, a *link* to the page, whether it is the *first* one, its items, and the *mark*
    of the place *after* it, if there are more.
    """
    found = listing.page(start, number("limit", ROWS, 1, MAX_ROWS))
    return {
        "search": {name: request.args.get(name, "").strip() for name in fields},
        "link": {name: value for name, value in request.args.items() if name != "after" and value},
        "first": request.args.get("after", "") == "",
        "with_body": flag("body"),
        "page": found,
        "nothing": "".join(listing.nothing(nothing)),
        "after": None if found.next is None else mark(found.next),
    }


def cursor() -> tuple[int, int] | None:
    """Return the place at which a page begins, ``list.offset``; None for the first one."""
    found = text("after")
    if found is None:
        return None
    parts = _PLACE.fullmatch(found)
    if parts is None:
        abort(400, "after: invalid place; use the link at the end of a page.")
    return int(parts[1]), int(parts[2])


def cursor_text(found: tuple[int, int]) -> str:
    """Return the text of a place."""
    return "{}.{}".format(*found)


def _value(name: str) -> str:
    return (request.form if request.method == "POST" else request.args).get(name, "")


def _short(value: str) -> str:
    quoted = ascii(value)
    return quoted if len(quoted) <= 60 else f"{quoted[:57]}...'"  # noqa: PLR2004
