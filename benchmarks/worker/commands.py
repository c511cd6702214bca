"""Redis commands per task of one solo worker, as its connections send them.

MONITOR lists each command with the address of its client, and the address of commands that a script calls is ``lua``.
INFO cannot tell them apart: total_commands_processed and commandstats count the commands in scripts as well.
"""

from __future__ import annotations

import re
import socket
import time
from urllib.parse import urlsplit

from benchmarks.worker.backlog import STASH, Backlog
from benchmarks.worker.throughput import QUIET
from benchmarks.worker.workers import SOLO, worker

WITHIN = 120.0
END = "the end of the benchmark"
LINE = re.compile(rb'\+[\d.]+ \[\d+ (\S+)\] "')


def per_task(url: str, mode: str, tasks: int) -> float:
    """Return the commands that the worker sent, for each of *tasks* tasks, with a prefetch window of 64."""
    backlog = Backlog(url, tasks)
    server = urlsplit(url)
    try:
        with worker(url, mode, SOLO) as running, socket.create_connection((server.hostname, server.port or 0)) as feed:
            assert running
            time.sleep(QUIET)
            feed.settimeout(WITHIN)
            feed.sendall(b"MONITOR\r\n")
            assert feed.recv(5) == b"+OK\r\n"
            backlog.release()
            settled = backlog.wait(WITHIN)
            backlog.client.echo(END)
            if settled < tasks:
                raise RuntimeError(f"{settled} of {tasks} tasks were settled within {WITHIN:g} s")
            return _sent(_lines(feed), str(backlog.client.client_info()["addr"]).encode()) / tasks
    finally:
        backlog.close()


def _lines(feed: socket.socket) -> list[bytes]:
    """Return the commands from the release of the backlog to its end; Redis keeps them until they are read."""
    text = bytearray()
    while END.encode() not in text[-4096:]:
        if not (part := feed.recv(1 << 20)):
            raise RuntimeError("Redis closed the connection of MONITOR")
        text += part
    lines = bytes(text).split(b"\r\n")
    start = next(number for number, line in enumerate(lines) if f'"RENAME" "{STASH}"'.encode() in line)
    return lines[start:]


def _sent(lines: list[bytes], own: bytes) -> int:
    found = (match[1] for line in lines if (match := LINE.match(line)))
    return sum(address not in {b"lua", own} for address in found)
