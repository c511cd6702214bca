"""Write a file atomically: the old content stays until the new one is complete."""

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
def atomic_file(path: str) -> Iterator[IO[str]]:
    """Open *path* for ASCII text, ``-`` for stdout; its old content stays until the block ends without an error.

    Anything but a plain file, such as a pipe, is written to directly.
    """
    if path == STDOUT:
        yield sys.stdout
        return
    try:
        # Replace the target of a link, not the link.
        target = Path(path).resolve()
        plain = target.is_file() or not target.exists()
        with _temporary(target) if plain else target.open("w", encoding="ascii") as file:
            yield file
    except OSError as error:
        # StoreUnavailableError is an OSError without errno; it is reported elsewhere.
        if error.errno is None:
            raise
        raise click.FileError(path, error.strerror) from error


@contextmanager
def _temporary(target: Path) -> Iterator[IO[str]]:
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
