"""Keeper: renews leases until its worker ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from typing import Final

from redis_queue.keeper.board import Board, RenewalTime
from redis_queue.keeper.lines import read_line
from redis_queue.keeper.renewal import RENEWALS, RenewalError, Renewing

RETRY: Final = 1.0
"""Seconds between two attempts while Redis is unreachable or the worker is stopped."""

PAUSE: Final = 0.1
"""Seconds between two reads from the pipe."""

READ: Final = 1 << 16


def pause(seconds: float) -> None:
    """Wait *seconds* with the call that also waits for the pipe."""
    # Not time.sleep: it raises OSError where clock_nanosleep is refused, or where libfaketime changes its argument.
    select.select([], [], [], seconds)


class Keeper:
    """Read from *pipe* which messages the worker holds, and renew their leases, until the pipe closes."""

    def __init__(self, broker: Renewing, board: Board, *, pipe: int, worker: int, lease: float) -> None:
        self._broker = broker
        self._board = board
        self._pipe = pipe
        self._worker = worker
        self._every = lease / RENEWALS
        self._held: dict[str, float] = {}
        self._rest = b""

    def run(self) -> None:
        """Renew until the worker closes the pipe."""
        due = 0.0
        while self._listen(max(0.0, due - time.monotonic())):
            if time.monotonic() >= due:
                done = not _is_stopped(self._worker) and self._renew()
                due = time.monotonic() + (self._every if done else min(RETRY, self._every))
            else:
                # Waking up for each message would cost the worker a tenth of its speed on a small machine.
                pause(min(PAUSE, self._every / 10))

    def _listen(self, timeout: float) -> bool:
        """Read all lines that the worker has written; return False at the end of the pipe."""
        data = bytes(READ)
        # A short read has emptied the pipe. After one of half a pipe, more may be waiting to get in.
        while len(data) > READ // 2 and select.select([self._pipe], [], [], timeout)[0]:
            data, timeout = os.read(self._pipe, READ), 0
            if not data:
                return False
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(line)
        return True

    def _take(self, line: bytes) -> None:
        tag, score = read_line(line)
        if score is None:
            self._held.pop(tag, None)
        else:
            self._held[tag] = score

    def _renew(self) -> bool:
        at = time.monotonic()
        # The worker relies on it that all lines written before *at* are read.
        if not self._listen(0):
            return False
        try:
            found = self._broker.renew(self._held)
        except RenewalError as error:
            self.tell(away=str(error), source=error.source)
            return False
        for tag in found.lost:
            self._held.pop(tag, None)
            self.tell(lost=tag)
        self._held = dict.fromkeys(self._held, found.score)
        self._board.write(RenewalTime(at, found.score))
        return True

    @staticmethod
    def tell(**event: object) -> None:
        """Send an event to the worker, for its log."""
        # The worker may not read the events. It does not need them: renewals are in the shared memory.
        with contextlib.suppress(OSError):
            os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


def _is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger stopped a process; False on systems without ``/proc``."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - pathlib takes half a megabyte
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False
