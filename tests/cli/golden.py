"""What commands print, kept in files: set REDIS_QUEUE_WRITE_GOLDEN to write them anew, and read the difference."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SOCKET = re.compile(r"unix:///[^\s;]+")

FILES = Path(__file__).parent / "golden"


def check(name: str, text: str) -> None:
    """Compare *text*, but for where its Redis is, with what is kept under *name*; every line fits 80 columns."""
    text = _SOCKET.sub("unix:///redis.sock", text)
    path = FILES / f"{name}.txt"
    if os.environ.get("REDIS_QUEUE_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
    assert max(map(len, text.splitlines())) <= 80
