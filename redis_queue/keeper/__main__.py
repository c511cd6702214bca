"""The keeper's process. It imports only what it needs: each worker has one."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Final

CHECK: Final = 1.0
"""Seconds between two checks whether the worker is there."""


def main(arguments: Iterable[str]) -> None:
    """Run a keeper. *arguments*: process id of the worker, file descriptor of the board. Read the rest from stdin."""
    worker, board = map(int, arguments)
    # Ctrl-C and signals of a service manager reach all processes of the worker, which still finishes its tasks.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(sys.stdout.fileno(), False)
    threading.Thread(target=_end_with, args=(worker,), daemon=True).start()
    from redis_queue.keeper.loop import run  # noqa: PLC0415 - redis-py takes long, and a signal would end the process

    run(worker, board)


def _end_with(worker: int) -> None:
    """Exit soon after *worker*, even during a call."""
    # The pipe may stay open after the worker ended: its children may have it.
    while os.getppid() == worker:
        # Not time.sleep, see redis_queue.keeper.loop.pause.
        select.select([], [], [], CHECK)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
