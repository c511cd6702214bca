"""Commands with which one worker reports, idle and busy."""

from __future__ import annotations

import contextlib
import socket
import time
from urllib.parse import urlsplit

from benchmarks.modes import FETCH
from benchmarks.worker.backlog import Backlog
from benchmarks.worker.workers import SOLO, worker
from redis_queue.store.script_files import load

SECONDS = 10.0
TASKS = 60_000


def per_second(url: str, *, busy: bool) -> float:
    """Return the script calls per second with which one worker reports."""
    backlog = Backlog(url, TASKS if busy else 1)
    server = urlsplit(url)
    try:
        with worker(url, FETCH, SOLO) as running, socket.create_connection((server.hostname, server.port or 0)) as feed:
            assert running
            backlog.release()
            feed.sendall(b"MONITOR\r\n")
            began, text = time.monotonic(), bytearray()
            feed.settimeout(1.0)
            while time.monotonic() < began + SECONDS:
                # Nothing arrives within the timeout if the worker is idle.
                with contextlib.suppress(TimeoutError):
                    text += feed.recv(1 << 20)
            elapsed = time.monotonic() - began
            if busy and not backlog.client.llen("bench"):
                raise RuntimeError("the worker was not busy all the time: it needs a longer backlog")
    finally:
        backlog.close()
    calls = sum(text.count(f'"EVALSHA" "{load(name).sha}"'.encode()) for name in ("monitor/report", "monitor/count"))
    return calls / elapsed
