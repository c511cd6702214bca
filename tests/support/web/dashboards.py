"""Dashboards for tests: the shared secret key, and a dashboard in a process of its own."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.web.browser import Browser

KEY = "a key for tests only"

Open = Callable[..., Browser]
"""Return a browser on a dashboard with these settings."""


@dataclass
class Served:
    """A dashboard in its own process."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def output(self) -> str:
        """The log so far."""
        return self.log.read_text(errors="replace")


Serve = Callable[..., Served]
"""Start ``redis-queue web`` with these arguments."""


def read_all(connection: Any, timeout: float = 5.0) -> bytes:
    """Return all bytes until the other side closes, or sends nothing for *timeout* seconds."""
    found = b""
    while select.select([connection], [], [], timeout)[0] and (part := connection.recv(65536)):
        found += part
    return found
