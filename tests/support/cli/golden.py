"""Expected output of commands, in files: set REDIS_QUEUE_WRITE_GOLDEN to write them anew, and read the difference."""

from __future__ import annotations

import os
import re

from tests.support.paths import ROOT

_SOCKET = re.compile(r"unix:///[^\s;]+")

FILES = ROOT / "tests" / "cli" / "golden"


def check(name: str, text: str) -> None:
    """Compare *text* with the file *name*, except for the URL of Redis; every line fits into 80 columns."""
    text = _SOCKET.sub("unix:///redis.sock", text)
    path = FILES / f"{name}.txt"
    if os.environ.get("REDIS_QUEUE_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
    assert max(map(len, text.splitlines())) <= 80
