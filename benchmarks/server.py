"""A Redis of the benchmark's own, so that nobody else's load is measured."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import redis


@contextlib.contextmanager
def private_redis(folder: Path, *, port: int = 0) -> Iterator[str]:
    """Start redis-server on a unix socket in *folder*, yield its URL, and end it.

    With *port* it listens there as well, on 127.0.0.1, and that is the URL.
    """
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        raise SystemExit("no redis-server on PATH; install it, for example: apt-get install redis-server")
    socket = folder / "redis.sock"
    command = [binary, "--port", str(port), "--bind", "127.0.0.1", "--unixsocket", str(socket)]
    command += ["--save", "", "--appendonly", "no"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    try:
        client = redis.Redis.from_url(f"unix://{socket}")
        deadline = time.monotonic() + 10
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise SystemExit("redis-server did not start") from None
                time.sleep(0.01)
        yield f"redis://127.0.0.1:{port}/0" if port else f"unix://{socket}"
    finally:
        process.kill()
        process.wait()
