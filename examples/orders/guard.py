"""Clean up after a killed run: end its processes, delete its keys and its folder.

Each line of stdin is a JSON object with everything to clean up; it replaces the line before. The end of stdin is the
end of the run: the last line counts. A run that cleaned up by itself ends with ``{}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from typing import Any

from examples.orders import keyspace

PATIENCE = 2.0


def main() -> None:
    """Wait for the end of stdin, then clean up."""
    left: dict[str, Any] = {}
    for line in sys.stdin:
        left = json.loads(line)
    groups = left.get("groups", [])
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    # A command of a dying process may still arrive and write after the deletion.
    give_up = time.monotonic() + PATIENCE
    while any(_lives(group) for group in groups) and time.monotonic() < give_up:
        time.sleep(0.02)
    if "url" in left:
        _delete_keys(left["url"], left["prefix"])
    if "folder" in left:
        shutil.rmtree(left["folder"], ignore_errors=True)


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _delete_keys(url: str, prefix: str) -> None:
    import redis  # noqa: PLC0415 - a guard without work stays small

    with redis.Redis.from_url(url) as client:
        keyspace.delete(client, prefix)


if __name__ == "__main__":
    main()
