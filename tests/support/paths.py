"""Paths of the checkout."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

VENDOR: Final = ROOT / "redis_queue" / "web" / "static" / "vendor"
VENDORED: Final = re.compile(r"^\| (\S+) \| (\S+) \| (\d\S*) \| (\S+) \| ([0-9a-f]{64}) \|$", re.MULTILINE)
"""A row of the README in VENDOR: file, library, version, licence, digest."""


def copy_parts(names: Iterable[str], folder: Path) -> Path:
    """Copy the files and folders *names* of the checkout, without compiled modules, into *folder*; return *folder*."""
    for name in names:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    return folder
