"""What a request asks for, checked before anything is read: one clear refusal for what cannot be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from flask import abort, request
from werkzeug.datastructures import MultiDict

from redis_queue.errors import InvalidValueError
from redis_queue.operate.relative_time import When, read

MAX_TEXT: Final = 300


def only(*names: str) -> None:
    """Refuse parameters that came twice or that are not among *names*."""
    for name in request.args:
        if name not in names:
            abort(400, f"There is no parameter {_short(name)}.")
    once(request.args)


def once(values: MultiDict[str, str], *many: str) -> None:
    """Refuse values that came twice, unless they are among *many*."""
    for name, given in values.lists():
        if len(given) > 1 and name not in many:
            abort(400, f"The parameter {_short(name)} came {len(given)} times: give it once.")


def number(name: str, default: int, low: int, high: int, values: MultiDict[str, str] | None = None) -> int:
    """Return a whole number within its range."""
    given = (request.args if values is None else values).get(name, "")
    if given == "":
        return default
    if not (given.isascii() and given.isdecimal() and len(given) < len(str(high)) + 1) or not low <= int(given) <= high:
        abort(400, f"{name}={_short(given)}: give a whole number from {low:,} to {high:,}.")
    return int(given)


def text(
    name: str, values: MultiDict[str, str] | None = None, *, exact: bool = False, most: int = MAX_TEXT
) -> str | None:
    """Return what was asked for under *name*, or None for nothing; *exact*: white space around it counts."""
    given = (request.args if values is None else values).get(name, "")
    given = given if exact else given.strip()
    if len(given) > most:
        abort(400, f"{name}={_short(given)}: give at most {most} characters.")
    if not given.isprintable():
        abort(400, f"{name}={_short(given)}: give printable characters.")
    return given or None


def choice(name: str, choices: Iterable[str], default: str, values: MultiDict[str, str] | None = None) -> str:
    """Return one of *choices*."""
    given = text(name, values) or default
    if given not in choices:
        abort(400, f"{name}={_short(given)}: give one of {', '.join(choices)}.")
    return given


def when(name: str, values: MultiDict[str, str] | None = None) -> When | None:
    """Return a time point or a span, as ``2030-01-01T00:00Z`` or ``2h``."""
    given = text(name, values)
    if given is None:
        return None
    try:
        return read(given)
    except InvalidValueError as error:
        abort(400, f"{name}: {error}.")


def flag(name: str, values: MultiDict[str, str] | None = None) -> bool:
    """Tell whether a box was ticked."""
    return choice(name, ("0", "1"), "0", values) == "1"


def _short(given: str) -> str:
    shown = ascii(given)
    return shown if len(shown) <= 60 else f"{shown[:57]}...'"  # noqa: PLR2004
