"""Keeper: a process beside a Celery worker that renews the leases of the worker's messages.

A thread of the worker is not enough: a task that holds the interpreter would stop it. The worker writes each message
that it fetches or settles into a pipe, before anything else can run. The keeper renews the open leases every third of
the visibility timeout, in one call, and writes the time into memory that both processes share. It exits with the
worker, even during a call, and renews nothing while the worker is stopped, so that the leases of a dead worker expire.
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
"""Socket timeouts per lease: the lease must not expire before a renewal times out and is tried again."""

LONGEST_TIMEOUT: Final = 10.0
"""Longest socket timeout in seconds, for leases of any length."""

RETRY: Final = 1.0
"""Seconds between two attempts while Redis is unreachable or the worker is stopped."""

PAUSE: Final = 0.1
"""Seconds between two reads from the pipe."""

REMEMBER: Final = 7 * 86400
"""Seconds for which the broker remembers a visibility timeout in use."""

TAGS: Final = 2000
"""Most tags in one call."""

READ: Final = 1 << 16

LOOKS: Final = 1000
"""Most attempts to read the time of a renewal while it is being written."""


@dataclass(frozen=True, slots=True)
class LeaseIndex:
    """The keys of the leases in a broker, and the visibility timeout of this worker in seconds.

    *index* is the key ``unacked_index`` of kombu, *timeouts* the key of the visibility timeouts in use. *signature*, a
    number from 1 to 999999, marks the renewals of this worker.
    """

    index: bytes
    timeouts: bytes
    visibility_timeout: float
    signature: int


class RenewalTime(NamedTuple):
    """Start of a renewal: *at* by the monotonic clock, *score* by the clock of Redis, as in ``unacked_index``."""

    at: float
    score: float


class Board:
    """Memory that keeper and worker share: a mapped file with the time of the last renewal."""

    # The counts at both ends differ during a write.
    _RECORD: Final = struct.Struct("<QddQ")

    def __init__(self, file: int) -> None:
        if os.fstat(file).st_size < self._RECORD.size:
            os.ftruncate(file, self._RECORD.size)
        self._memory = mmap.mmap(file, self._RECORD.size)
        self._last = RenewalTime(0.0, 0.0)

    def write(self, time: RenewalTime) -> None:
        """Store the time of a renewal."""
        count = self._RECORD.unpack_from(self._memory)[0] + 1
        struct.pack_into("<Q", self._memory, 0, count)
        struct.pack_into("<ddQ", self._memory, 8, *time, count)

    def read(self) -> RenewalTime:
        """Return the time of the last complete renewal; zeros if there was none."""
        for _ in range(LOOKS):
            # Read in the opposite order of writing: if the time changed meanwhile, the two counts differ.
            (after,) = struct.unpack_from("<Q", self._memory, 24)
            at, score = struct.unpack_from("<dd", self._memory, 8)
            (before,) = struct.unpack_from("<Q", self._memory)
            if before == after:
                self._last = RenewalTime(at, score)
                break
        return self._last


class Renewal(NamedTuple):
    """Result of one call: the new time, the lowest visibility timeout of other workers, and the lost tags."""

    score: float
    lowest: float | None
    lost: list[str]


class Renewer:
    """Renew leases of *index* in the Redis of *client*."""

    def __init__(self, client: redis.Redis, index: LeaseIndex) -> None:
        self._timeout = index.visibility_timeout
        self._signature = index.signature
        self._script: BoundScript = Scripts(client).bind("held/renew", index)

    def renew(self, held: Mapping[str, float]) -> Renewal:
        """Renew the leases of *held*, delivery tag -> last known time. Raises RedisQueueError.

        A lease is lost if its time has changed (another worker has the message) or is gone (the message was settled).
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
    """Return the line for a message that the worker fetched at *score*; None: it settled the message."""
    # A tag comes from the message and may contain line breaks.
    text = json.dumps(tag)
    return f"-{text}\n".encode() if score is None else f"+{text} {score:.6f}\n".encode()


def read_line(line: bytes) -> tuple[str, float | None]:
    """Return the tag and the score of a line without its line break. Raises InvalidValueError."""
    try:
        text = line.decode()
        tag, _, score = text[1:].rpartition(" ") if text.startswith("+") else (text[1:], "", "")
        found = json.loads(tag)
        if text[:1] in ("+", "-") and isinstance(found, str):
            return found, float(score) if text.startswith("+") else None
    except (ValueError, RecursionError):
        pass
    raise InvalidValueError(f"line={line[:80]!r}: must be a tag as JSON after + or -")


class Keeper:
    """Read from *pipe* which messages the worker holds, and renew their leases, until the pipe closes."""

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
                # Waking up for each message would cost the worker a tenth of its speed on a small machine.
                time.sleep(min(PAUSE, self._every / 10))

    def _listen(self, timeout: float) -> bool:
        """Read lines of the worker; return False at the end of the pipe."""
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
        # Read all lines written before *at*: the worker relies on it.
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
        self._board.write(RenewalTime(at, found.score))
        self._adapt(found.lowest)
        return True

    def _adapt(self, lowest: float | None) -> None:
        if lowest is not None and lowest != self._lowest:
            self._every = min(self._every, lowest / RENEWALS)
            self.tell(lowest=lowest)
        self._lowest = lowest

    @staticmethod
    def tell(**event: object) -> None:
        """Send an event to the worker, for its log."""
        # The worker may not read the events. It does not need them: renewals are in the shared memory.
        with contextlib.suppress(OSError):
            os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


def socket_timeout(lease: float) -> float:
    """Return the socket timeout for leases of *lease* seconds: a sixth, at most 10."""
    return min(lease / TIMEOUTS, LONGEST_TIMEOUT)


def client_of(channel: Any) -> redis.Redis:
    """Return a client for the Redis of kombu's *channel*; kombu's own client adds its prefix to some keys only."""
    with channel.conn_or_acquire() as client:
        return redis.Redis(connection_pool=client.connection_pool)


def _bound(connection: Any, lease: float) -> None:
    """Limit the timeouts of kombu's *connection* to those for *lease*, whatever its options say."""
    longest = socket_timeout(lease)
    for name in ("socket_timeout", "socket_connect_timeout"):
        connection.transport_options[name] = min(connection.transport_options.get(name) or longest, longest)


def _end_with(worker: int) -> None:
    """Exit soon after *worker*, even during a call."""
    # The pipe may stay open after the worker ended: its children may have it.
    while os.getppid() == worker:
        time.sleep(RETRY)
    os._exit(0)


def _is_stopped(pid: int) -> bool:
    """Return whether a signal or a debugger stopped a process; False on systems without ``/proc``."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def _connect(connection: Any) -> redis.Redis:
    """Wait until the Redis of kombu's *connection* can be reached; return a client for it."""
    while True:
        try:
            return client_of(connection.channel())
        except (*connection.connection_errors, OSError) as error:
            Keeper.tell(away=str(error))
            time.sleep(RETRY)


def pack(connection: Any, index: LeaseIndex) -> bytes:
    """Return the first input of a keeper: kombu's connection and the index of the leases."""
    data = pickle.dumps((connection, index))
    return _LENGTH.pack(len(data)) + data


def _read_exactly(size: int) -> bytes:
    # Unbuffered: the lines that follow must stay in the pipe.
    data = b""
    while len(data) < size:
        part = os.read(sys.stdin.fileno(), size - len(data))
        if not part:
            raise SystemExit
        data += part
    return data


_LENGTH: Final = struct.Struct("<Q")


def main(arguments: Iterable[str]) -> None:
    """Run a keeper. *arguments*: process id of the worker, file descriptor of the board. Read the rest from stdin."""
    worker, board = map(int, arguments)
    # Ctrl-C and signals of a service manager reach all processes of the worker, which still finishes its tasks.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    os.set_blocking(sys.stdout.fileno(), False)
    threading.Thread(target=_end_with, args=(worker,), daemon=True).start()
    # Only the parent process can write to this pipe.
    connection, index = pickle.loads(_read_exactly(*_LENGTH.unpack(_read_exactly(_LENGTH.size))))  # noqa: S301
    Keeper.tell(up=True)
    _bound(connection, index.visibility_timeout)
    Keeper(
        Renewer(_connect(connection), index),
        Board(board),
        pipe=sys.stdin.fileno(),
        worker=worker,
        visibility_timeout=index.visibility_timeout,
    ).run()


if __name__ == "__main__":
    main(sys.argv[1:])
