"""Keeper: renews leases until its worker ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from redis_queue.basics.logs import hide_secrets
from redis_queue.basics.times import monotonic
from redis_queue.errors import RedisQueueError
from redis_queue.keeper.protocol import RenewalTime, SharedTime, read_line, unpack
from redis_queue.keeper.renewal import RENEWALS, Renewer

RETRY: Final = 1.0
"""Seconds between two attempts while Redis is unreachable or the worker is stopped."""

PAUSE: Final = 0.1
"""Seconds between two reads from the pipe."""

READ: Final = 1 << 16


def pause(seconds: float) -> None:
    """Wait *seconds* with the call that also waits for the pipe."""
    # Not time.sleep: it raises OSError where clock_nanosleep is refused, or where libfaketime changes its argument.
    select.select([], [], [], seconds)


def run(worker: int, board: int) -> None:
    """Renew for the process *worker*, which writes into the standard input, until it ends; *board*: file descriptor."""
    options, index = unpack(sys.stdin.fileno())
    Keeper.tell(up=True)
    keeper = Keeper(
        lambda: Renewer(options.client(), index),
        SharedTime(board),
        pipe=sys.stdin.fileno(),
        worker=worker,
        lease=index.lease,
    )
    keeper.run()


class Keeper:
    """Read from *pipe* which messages the worker holds, and renew their leases, until the pipe closes.

    *connect* returns a new renewer, which has connections of its own.
    """

    def __init__(
        self, connect: Callable[[], Renewer], board: SharedTime, *, pipe: int, worker: int, lease: float
    ) -> None:
        self._connect = connect
        self._renewer: Renewer | None = None
        self._board = board
        self._pipe = pipe
        self._worker = worker
        self._every = lease / RENEWALS
        self._held: dict[str, float] = {}
        self._rest = b""

    def run(self) -> None:
        """Renew until the worker closes the pipe."""
        due = 0.0
        while self._listen(max(0.0, due - monotonic())):
            if monotonic() >= due:
                done = not _is_stopped(self._worker) and self._renew()
                due = monotonic() + (self._every if done else min(RETRY, self._every))
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
        at = monotonic()
        # The worker relies on all lines written before *at* having been read.
        if not self._listen(0):
            return False
        try:
            self._renewer = self._renewer or self._connect()
            found = self._renewer.renew(self._held)
        except Exception as error:  # noqa: BLE001 - a credential provider may raise anything
            reason = str(error) if isinstance(error, RedisQueueError) else f"{type(error).__name__}: {error}"
            self.tell(away=hide_secrets(reason))
            # A new connection logs in again, and finds the new primary behind a name.
            self._renewer = None
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
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False
