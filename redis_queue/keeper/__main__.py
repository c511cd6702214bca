"""The keeper's process. It imports only what it needs: each worker has one."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from typing import cast

from redis_queue.keeper.board import Board
from redis_queue.keeper.broker import Broker
from redis_queue.keeper.lines import LENGTH
from redis_queue.keeper.loop import RETRY, Keeper, pause
from redis_queue.keeper.renewal import Renewing


def main(arguments: Iterable[str]) -> None:
    """Run a keeper. *arguments*: process id of the worker, file descriptor of the board. Read the rest from stdin."""
    worker, board = map(int, arguments)
    # Ctrl-C and signals of a service manager reach all processes of the worker, which still finishes its tasks.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(sys.stdout.fileno(), False)
    threading.Thread(target=_end_with, args=(worker,), daemon=True).start()
    greeting = json.loads(_read_exactly(*LENGTH.unpack(_read_exactly(LENGTH.size))))
    broker = _unpickled(greeting["pickle"]) if "pickle" in greeting else Broker(greeting)
    Keeper.tell(up=True)
    Keeper(
        broker,
        Board(board),
        pipe=sys.stdin.fileno(),
        worker=worker,
        lease=greeting["lease"],
    ).run()


def _unpickled(pickled: str) -> Renewing:
    # With redis-py, a keeper takes 20 MB more.
    module = importlib.import_module("redis_queue.keeper.redis_py")
    return cast("Renewing", module.KombuBroker(bytes.fromhex(pickled)))


def _end_with(worker: int) -> None:
    """Exit soon after *worker*, even during a call."""
    # The pipe may stay open after the worker ended: its children may have it.
    while os.getppid() == worker:
        pause(RETRY)
    os._exit(0)


def _read_exactly(size: int) -> bytes:
    # Unbuffered: the lines that follow must stay in the pipe.
    data = b""
    while len(data) < size:
        part = os.read(sys.stdin.fileno(), size - len(data))
        if not part:
            raise SystemExit
        data += part
    return data


if __name__ == "__main__":
    main(sys.argv[1:])
