"""Keep a server in its loading phase for as long as a test needs."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from .servers import RedisServer
from .settle import wait_until_settled

HEADER = len(b"REDIS0009")
# Unknown to all servers and therefore ignored. Servers answer clients once in two megabytes while they load.
FILLER = b"\xfa\x01x\x80" + (2 << 20).to_bytes(4, "big") + b"x" * (2 << 20)
PACE = 0.002


@contextlib.contextmanager
def loading(server: RedisServer) -> Iterator[None]:
    """Restart `server` and keep it loading its data until the end of `with`; needs `--rdbchecksum no`.

    The dump is replaced by a pipe with a slow writer; every version reads it like a file.
    """
    dump = server.directory / "dump.rdb"
    with server.client() as client:
        client.save()
    server.kill()
    data = dump.read_bytes()
    dump.unlink()
    os.mkfifo(dump)
    enough = threading.Event()
    threads = [
        threading.Thread(target=_feed, args=(dump, data, enough)),
        threading.Thread(target=server.restart),
    ]
    for thread in threads:
        thread.start()
    try:
        wait_until_settled(lambda: _loads(server), "the server to load")
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def _feed(dump: Path, data: bytes, enough: threading.Event) -> None:
    with dump.open("wb", buffering=0) as pipe:
        # Some servers open their dump a second time because of the page cache.
        dump.unlink()
        dump.write_bytes(data)
        pipe.write(data[:HEADER])
        while not enough.wait(PACE):
            pipe.write(FILLER)
        pipe.write(data[HEADER:])


def _loads(server: RedisServer) -> bool:
    with server.client() as client:
        return bool(client.info("persistence")["loading"])
