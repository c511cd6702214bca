"""Runs of `python -m redis_queue.chaos`, in a process without threads, for it forks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.servers import RedisServer

ROOT = Path(__file__).parents[2]
SEEDS = (1, 2, 3)


def run(server: RedisServer, *options: str) -> dict[str, Any]:
    """Run once in *server*, emptied before, and return the figures."""
    with server.client() as client:
        client.flushall()
    command = [sys.executable, "-m", "redis_queue.chaos", server.url, "--json", *options]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.stdout, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures
