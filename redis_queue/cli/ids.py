"""Ids as arguments, or in a file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import click

from redis_queue.errors import InvalidNameError
from redis_queue.store.ids import check_id


@dataclass(frozen=True, slots=True)
class IdArguments:
    """Ids of the command line, each once.

    *present*: ids or a file were given, even if the file is empty. *typed*: all ids are arguments.
    """

    ids: tuple[str, ...]
    present: bool
    typed: bool

    def missing(self, noun: str) -> str:
        """Return the error if none of the ids is a *noun*; "" without ids."""
        if len(self.ids) == 1:
            return f"no {noun}: {self.ids[0]!r}"
        return f"no {noun} has any of these {len(self.ids):,} ids" if self.ids else ""


def id_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ids and ``--ids-file``, and pass them as *ids*; invalid ids are refused before anything is done."""

    @functools.wraps(function)
    def wrapper(*args: Any, ids: tuple[str, ...], ids_file: Any, **kwargs: Any) -> Any:
        if ids and ids_file is not None:
            raise click.UsageError("give ids, or --ids-file, not both")
        lines = ids if ids_file is None else _read(ids_file)
        found = tuple(dict.fromkeys(check_id(id_) for id_ in lines))
        return function(*args, ids=IdArguments(found, bool(ids) or ids_file is not None, bool(ids)), **kwargs)

    option = click.option(
        "--ids-file", type=click.File("r", encoding="utf-8-sig"), help='A file with one id per line; "-" for stdin.'
    )
    return click.argument("ids", nargs=-1)(option(wrapper))


def _read(file: Iterable[str]) -> Iterator[str]:
    number = 0
    try:
        for number, line in enumerate(file, 1):  # noqa: B007 - the error names it
            if id_ := line.strip():
                yield check_id(id_)
    except UnicodeDecodeError:
        raise InvalidNameError(f"--ids-file: not UTF-8 at or after line {number + 1}; nothing was done") from None
    except InvalidNameError as error:
        raise InvalidNameError(f"--ids-file: line {number}: {error}; nothing was done") from None
