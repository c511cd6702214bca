"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

import click

STDOUT: Final = "-"


@contextmanager
def whole(path: str) -> Iterator[IO[str]]:
    """Open *path* for ASCII text, ``-`` for stdout; whatever stood there stays until all is written.

    What ends early leaves it as it was. What is no plain file, such as a pipe, is written to as it is.
    """
    if path == STDOUT:
        yield sys.stdout
        return
    try:
        # The file that a link leads to, so that the link stays one.
        target = Path(path).resolve()
        plain = target.is_file() or not target.exists()
        with _beside(target) if plain else target.open("w", encoding="ascii") as file:
            yield file
    except OSError as error:
        # That of a Redis that is away is one, too, and is told elsewhere.
        if error.errno is None:
            raise
        raise click.FileError(path, error.strerror) from error


@contextmanager
def _beside(target: Path) -> Iterator[IO[str]]:
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}")
    try:
        # Bodies and arguments are private: only the owner may read the file.
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - Path has no mode
            if target.exists():
                part.chmod(target.stat().st_mode & 0o7777)
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
