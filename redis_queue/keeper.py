"""Keeper: a process beside a Celery worker that renews the leases of the messages which the worker holds.

A thread of the worker would stand still with a task that holds the interpreter, and take a lease for lost that is not.
The worker writes each message that it takes or settles into a pipe, before anything else can run; the keeper renews
what is open every third of the visibility timeout, in one call, and notes when it did in memory that both share. It
ends with the worker, even in the middle of a call, and renews nothing while the worker is stopped, so that a dead
worker's leases expire.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import pickle
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import redis

from redis_queue.errors import InvalidValueError, RedisQueueError
from redis_queue.store.chunks import chunks
from redis_queue.store.scripts import BoundScript, Scripts

RENEWALS: Final = 3
"""Renewals per visibility timeout."""

TIMEOUTS: Final = 6
"""Socket timeouts per lease: a due renewal, its timeout and a second attempt fit into one lease."""

LONGEST_TIMEOUT: Final = 10.0
"""Most seconds after which a connection counts as dead, however long the lease."""

RETRY: Final = 1.0
"""Seconds between two attempts while Redis is away or the worker is stopped."""

PAUSE: Final = 0.1
"""Seconds between two looks at what the worker wrote."""

REMEMBER: Final = 7 * 86400
"""Seconds for which a visibility timeout that was seen is kept."""

TAGS: Final = 2000
"""Most tags in one call."""

READ: Final = 1 << 16

LOOKS: Final = 1000
"""So often a renewal that is being written is looked at again."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the leases are: *index* is kombu's unacked index, *timeouts* what visibility timeouts are in use.

    *signature*, 1 to 999999, tells the renewals of this worker from those of others.
    """

    index: bytes
    timeouts: bytes
    visibility_timeout: float
    signature: int


class Renewed(NamedTuple):
    """The last renewal: when it began on the monotonic clock, and the time that it gave to each lease."""

    at: float
    score: float


class Board:
    """What keeper and worker share: the last renewal, in a file that both have mapped."""

    # The counts at both ends differ while somebody writes.
    _RECORD: Final = struct.Struct("<QddQ")

    def __init__(self, file: int) -> None:
        if os.fstat(file).st_size < self._RECORD.size:
            os.ftruncate(file, self._RECORD.size)
        self._memory = mmap.mmap(file, self._RECORD.size)
        self._last = Renewed(0.0, 0.0)

    def write(self, renewed: Renewed) -> None:
        """Note a renewal."""
        count = self._RECORD.unpack_from(self._memory)[0] + 1
        struct.pack_into("<Q", self._memory, 0, count)
        struct.pack_into("<ddQ", self._memory, 8, *renewed, count)

    def read(self) -> Renewed:
        """Return the last renewal; zeros if there was none, the one before where the keeper died while it wrote."""
        for _ in range(LOOKS):
            # In the opposite order to that of writing: whatever changes meanwhile shows in the first count.
            (after,) = struct.unpack_from("<Q", self._memory, 24)
            at, score = struct.unpack_from("<dd", self._memory, 8)
            (before,) = struct.unpack_from("<Q", self._memory)
            if before == after:
                self._last = Renewed(at, score)
                break
        return self._last


class Renewal(NamedTuple):
    """What one call found."""

    score: float
    lowest: float | None
    lost: list[str]


class Renewer:
    """Renews leases in *place*, in the Redis of *client*."""

    def __init__(self, client: redis.Redis, place: Place) -> None:
        self._timeout = place.visibility_timeout
        self._signature = place.signature
        self._script: BoundScript = Scripts(client).bind("held/renew", place)

    def renew(self, held: Mapping[str, float]) -> Renewal:
        """Renew the leases of *held*, tag -> its time as seen last. Raises RedisQueueError.

        The lost ones of the answer have another time now, or none: another worker has them, or they were settled.
        """
        score, lowest, lost = 0.0, None, []
        for part in chunks(held.items(), TAGS) if held else [[]]:
            more = [item for tag, seen in part for item in (tag, f"{seen:.6f}")]
            now, other, *tags = self._script(
                now=0, timeout=f"{self._timeout:.6g}", signature=self._signature, keep=REMEMBER, more=more
            )
            score, lowest = float(now), float(other) if other else None
            lost += [tag.decode() for tag in tags]
        return Renewal(score, lowest, lost)


def write_line(tag: str, score: float | None = None) -> bytes:
    """Return what a worker writes of a message that it took at *score*, or settled."""
    # A tag stands in the message, and whatever is in it must not end the line.
    text = json.dumps(tag)
    return f"-{text}\n".encode() if score is None else f"+{text} {score:.6f}\n".encode()


def read_line(line: bytes) -> tuple[str, float | None]:
    """Return the tag and the score of a line without its end. Raises InvalidValueError."""
    try:
        text = line.decode()
        tag, _, score = text[1:].rpartition(" ") if text.startswith("+") else (text[1:], "", "")
        found = json.loads(tag)
        if text[:1] in ("+", "-") and isinstance(found, str):
            return found, float(score) if text.startswith("+") else None
    except (ValueError, RecursionError):
        pass
    raise InvalidValueError(f"the worker wrote {line[:80]!r}")


class Keeper:
    """Reads what the worker holds from *pipe* until it ends, and renews it."""

    def __init__(self, renewer: Renewer, board: Board, *, pipe: int, worker: int, visibility_timeout: float) -> None:
        self._renewer = renewer
        self._board = board
        self._pipe = pipe
        self._worker = worker
        self._every = visibility_timeout / RENEWALS
        self._held: dict[str, float] = {}
        self._rest = b""
        self._lowest: float | None = None

    def run(self) -> None:
        """Renew until the worker closes the pipe."""
        due = 0.0
        while self._listen(max(0.0, due - time.monotonic())):
            if time.monotonic() >= due:
                done = not _is_stopped(self._worker) and self._renew()
                due = time.monotonic() + (self._every if done else min(RETRY, self._every))
            else:
                # To wake up for each message would cost the worker a tenth of its speed on a small machine.
                time.sleep(min(PAUSE, self._every / 10))

    def _listen(self, timeout: float) -> bool:
        """Take in what the worker wrote; False at the end."""
        if select.select([self._pipe], [], [], timeout)[0]:
            data = os.read(self._pipe, READ)
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
        # All that was written before this moment is read: the worker relies on it.
        while select.select([self._pipe], [], [], 0)[0]:
            if not self._listen(0):
                return False
        try:
            found = self._renewer.renew(self._held)
        except (RedisQueueError, OSError) as error:
            self.tell(away=str(error))
            return False
        for tag in found.lost:
            del self._held[tag]
            self.tell(lost=tag)
        self._held = dict.fromkeys(self._held, found.score)
        self._board.write(Renewed(at, found.score))
        self._adapt(found.lowest)
        return True

    def _adapt(self, lowest: float | None) -> None:
        if lowest is not None and lowest != self._lowest:
            self._every = min(self._every, lowest / RENEWALS)
            self.tell(lowest=lowest)
        self._lowest = lowest

    @staticmethod
    def tell(**event: object) -> None:
        """Write to the worker what it may log."""
        # Nobody may be reading; the worker sees what matters in the shared memory.
        with contextlib.suppress(OSError):
            os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


def socket_timeout(lease: float) -> float:
    """Return the timeout of a connection that keeps leases of *lease* seconds: a sixth, at most 10."""
    return min(lease / TIMEOUTS, LONGEST_TIMEOUT)


def client_of(channel: Any) -> redis.Redis:
    """Return a client for the Redis of kombu's *channel*; its own would put a prefix before some keys, not all."""
    with channel.conn_or_acquire() as client:
        return redis.Redis(connection_pool=client.connection_pool)


def _bound(connection: Any, lease: float) -> None:
    """Limit the timeouts of kombu's *connection* to what fits into *lease*, whatever its options say."""
    longest = socket_timeout(lease)
    for name in ("socket_timeout", "socket_connect_timeout"):
        connection.transport_options[name] = min(connection.transport_options.get(name) or longest, longest)


def _end_with(worker: int) -> None:
    """End this process soon after *worker*, even in the middle of a call."""
    # The end of the pipe is not enough: children of the worker may hold it open.
    while os.getppid() == worker:
        time.sleep(RETRY)
    os._exit(0)


def _is_stopped(pid: int) -> bool:
    """Tell whether a process was stopped by a signal or a debugger, where the system tells that."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _connect(connection: Any) -> redis.Redis:
    """Return a client for the Redis of kombu's *connection*, as soon as that can be reached."""
    while True:
        try:
            return client_of(connection.channel())
        except (*connection.connection_errors, OSError) as error:
            Keeper.tell(away=str(error))
            time.sleep(RETRY)


def packed(connection: Any, place: Place) -> bytes:
    """Return what a keeper reads first: kombu's connection, and where the leases are."""
    data = pickle.dumps((connection, place))
    return _LENGTH.pack(len(data)) + data


def _read_exactly(size: int) -> bytes:
    # Nothing of the lines that follow may end in a buffer of Python's.
    data = b""
    while len(data) < size:
        part = os.read(sys.stdin.fileno(), size - len(data))
        if not part:
            raise SystemExit
        data += part
    return data


_LENGTH: Final = struct.Struct("<Q")


def main(arguments: Iterable[str]) -> None:
    """Run beside the worker with this process id, on a board with this file number; the rest comes by the pipe."""
    worker, board = map(int, arguments)
    # Ctrl-C and a service manager's signal reach the whole group: the worker still finishes its tasks then.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(sys.stdout.fileno(), False)
    threading.Thread(target=_end_with, args=(worker,), daemon=True).start()
    # From the parent alone, over a pipe that nobody else can write to.
    connection, place = pickle.loads(_read_exactly(*_LENGTH.unpack(_read_exactly(_LENGTH.size))))  # noqa: S301
    Keeper.tell(up=True)
    _bound(connection, place.visibility_timeout)
    Keeper(
        Renewer(_connect(connection), place),
        Board(board),
        pipe=sys.stdin.fileno(),
        worker=worker,
        visibility_timeout=place.visibility_timeout,
    ).run()


if __name__ == "__main__":
    main(sys.argv[1:])
