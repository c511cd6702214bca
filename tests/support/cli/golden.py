"""Compare output of commands with golden files: set REDIS_QUEUE_WRITE_GOLDEN to update them, then review the diff."""

from __future__ import annotations

import os
import re

from tests.support.paths import ROOT

_SOCKET = re.compile(r"unix:///[^\s;]+")

FILES = ROOT / "tests" / "cli" / "golden"


def check(name: str, text: str) -> None:
    """Compare *text* with the file *name*, without the URL of Redis; no line may exceed 80 columns."""
    text = _SOCKET.sub("unix:///redis.sock", text)
    path = FILES / f"{name}.txt"
    if os.environ.get("REDIS_QUEUE_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
    assert max(map(len, text.splitlines())) <= 80
