"""KeeperProcess: the process that renews the leases of a worker, seen from the worker."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, Final, cast

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import monotonic
from redis_queue.basics.waits import Backoff
from redis_queue.errors import ConfigurationError
from redis_queue.keeper.protocol import RenewalTime, SharedTime
from redis_queue.keeper.renewal import RENEWALS

logger = logger_of(__name__)

MAX_UNWRITTEN: Final = 1 << 20
"""Bytes of lines, about ten thousand, that wait for a keeper that reads nothing, before it is replaced."""

RESTART_AFTER: Final = 1.0
"""Seconds between the end of a keeper and the start of the next one; more if keepers die one after the other."""

MAX_PAUSE: Final = 30.0
"""Maximum seconds before a restart, and never more than between two renewals."""

STALE: Final = 2 / RENEWALS
"""Share of a lease without a renewal after which a keeper is replaced."""

STALE_AT_LEAST: Final = 10.0
"""Minimum seconds without a renewal before that: on a busy machine a keeper may connect slowly."""

CHECKS_PER_LEASE: Final = 12
"""Checks of the last renewal per lease."""

MAX_LOOK: Final = 5.0
"""Maximum seconds between two checks."""

EXIT_TIMEOUT: Final = 2.0
"""Seconds in which a keeper has to exit by itself."""

START_TIMEOUT: Final = 60.0
"""Seconds in which a keeper has to come up."""

FIRST_ATTEMPTS: Final = 5
"""Attempts to start the first keeper if signals kill it, such as that of the system when memory is short."""

HeldLines = Callable[[RenewalTime], Iterable[bytes]]
"""Takes the last renewal; returns the lines for a new keeper about all messages that the worker holds."""


class KeeperProcess:
    """Starts a keeper, writes to it, reads its events, and replaces it if it dies or hangs.

    *greeting* is the first thing that a keeper reads. *on_lost* is called with the delivery tag of a lost lease. Safe
    for threads. Raises ConfigurationError if no keeper comes up.
    """

    def __init__(self, greeting: bytes, lease: float, *, held: HeldLines, on_lost: Callable[[str], None]) -> None:
        self._greeting = greeting
        self._held_lines = held
        self._on_lost = on_lost
        self._file = _file_in_memory()
        self._board = SharedTime(self._file.fileno())
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._unwritten = bytearray()
        # Bytes since the keeper last read any.
        self._unread = 0
        longest = min(MAX_PAUSE, lease / RENEWALS)
        self._backoff = Backoff(first=RESTART_AFTER, cap=max(RESTART_AFTER, longest))
        self._stale = max(lease * STALE, STALE_AT_LEAST)
        self._look = min(lease / CHECKS_PER_LEASE, MAX_LOOK)
        self._first_ended = threading.Event()
        self._was_up = False
        self._is_up = False
        self._closed = threading.Event()
        # On the monotonic clock.
        self._heard_at = monotonic()
        self._warned_at = -math.inf
        self._start_first()
        threading.Thread(target=self._watch, name="redis-queue-leases-watch", daemon=True).start()

    @property
    def renewed(self) -> RenewalTime:
        """The last renewal."""
        return self._board.read()

    @property
    def is_up(self) -> bool:
        """Whether a keeper runs and has connected."""
        process = self._process
        return self._is_up and process is not None and process.poll() is None

    def write(self, lines: bytes) -> bool:
        """Write any number of *lines*, after those that did not fit before; return whether all were written."""
        with self._lock:
            return self._write(lines)

    def _write(self, lines: bytes) -> bool:
        process = self._process
        if process is None or process.stdin is None:
            # The next keeper gets lines about all held messages.
            return False
        self._unwritten += lines
        self._unread += len(lines)
        try:
            while self._unwritten:
                # A pipe takes a part of many lines.
                del self._unwritten[: os.write(process.stdin.fileno(), self._unwritten)]
                self._unread = 0
        except OSError:
            # The pipe is full, or the keeper has just died, which the thread that reads its events notices.
            if self._unread > MAX_UNWRITTEN:
                process.kill()
            return False
        return True

    def close(self) -> None:
        """End the keeper within a few seconds, even if it hangs."""
        self._closed.set()
        with self._lock:
            process, self._process = self._process, None
            if process is not None and process.stdin is not None:
                process.stdin.close()
            self._file.close()
        if process is not None:
            try:
                process.wait(EXIT_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()

    def _start_first(self) -> None:
        for left in reversed(range(FIRST_ATTEMPTS)):
            try:
                process = self._start()
            except OSError as error:
                self.close()
                raise ConfigurationError(f"cannot start {sys.executable} to renew leases: {error}") from error
            in_time = self._first_ended.wait(START_TIMEOUT)
            if self._was_up:
                return
            if not (in_time and left and process.returncode < 0):
                break
            self._first_ended.clear()
            text = "the process that renews leases ended with %d before it was up; starting another one"
            logger.error(text, process.returncode, extra={"action": "keeper_died"})
        process.kill()
        # A child of the keeper may hold its output open for longer.
        self._first_ended.wait(EXIT_TIMEOUT)
        self.close()
        raise ConfigurationError(
            f"the process that renews leases ended with {process.poll()} before it was up: "
            f"{sys.executable} -m redis_queue.keeper must be able to import what this worker imports"
        )

    def _start(self) -> subprocess.Popen[bytes]:
        file = self._file.fileno()
        command = [sys.executable, "-m", "redis_queue.keeper", str(os.getpid()), str(file)]
        process = subprocess.Popen(  # noqa: S603 - no argument comes from outside
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(file,), bufsize=0, env=_environment()
        )
        pipe = cast("IO[bytes]", process.stdin)
        # It may be dead by now, which the thread that reads its events notices.
        with contextlib.suppress(BrokenPipeError):
            pipe.write(self._greeting)
        os.set_blocking(pipe.fileno(), False)
        self._process = process
        self._heard_at, self._is_up = monotonic(), False
        threading.Thread(target=self._read_events, args=(process,), name="redis-queue-leases", daemon=True).start()
        return process

    def _read_events(self, process: subprocess.Popen[bytes]) -> None:
        with cast("IO[bytes]", process.stdout) as events:
            for line in events:
                self._take(json.loads(line))
        process.wait()
        with self._lock:
            if self._process is process:
                self._process = None
            cast("IO[bytes]", process.stdin).close()
        if self._was_up and not self._closed.is_set():
            self._replace(process.returncode)
        self._first_ended.set()

    def _take(self, event: dict[str, Any]) -> None:
        self._heard_at = monotonic()
        if "up" in event:
            self._was_up = self._is_up = True
            self._backoff.reset()
            self._first_ended.set()
        elif "away" in event:
            # A keeper repeats it at each attempt.
            if self.renewed.at > self._warned_at:
                self._warned_at = self._heard_at
                logger.warning("cannot renew leases: %s", event["away"], extra={"action": "leases_away"})
        else:
            self._on_lost(event["lost"])

    def _replace(self, code: int) -> None:
        """Start another keeper after one that ended with *code*, until one starts."""
        why, exc_info = f"the process that renews leases ended with {code}", False
        pause = self._backoff.next()
        while True:
            extra = {"action": "keeper_died", "retry_in": round(pause, 2)}
            logger.error("%s; starting another one in %.1f s", why, pause, exc_info=exc_info, extra=extra)
            if self._closed.wait(pause):
                return None
            try:
                return self._restart()
            except OSError:
                why, exc_info = "cannot start the process that renews leases", True
                pause = self._backoff.next()

    def _restart(self) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            self._unwritten.clear()
            self._start()
            self._write(b"".join(self._held_lines(self.renewed)))

    def _watch(self) -> None:
        """Kill a keeper that neither renews nor reports why, so that it is replaced."""
        looked_at = monotonic()
        while not self._closed.wait(self._look):
            # Lines that did not fit into the pipe must not wait for the next message.
            self.write(b"")
            now = monotonic()
            if now - looked_at > 2 * self._look:
                # This process was stopped, and a keeper does not renew for a stopped worker.
                self._heard_at = now
            looked_at = now
            process, silent = self._process, now - max(self._heard_at, self.renewed.at)
            if process is not None and silent > (self._stale if self._is_up else START_TIMEOUT):
                logger.warning(
                    "the process that renews leases has renewed nothing for %.0f s and is replaced",
                    silent,
                    extra={"action": "keeper_stale"},
                )
                self._heard_at = now
                process.kill()


def _file_in_memory() -> IO[bytes]:
    """Return a file that two processes can map. A container may have no folder that can be written."""
    if not hasattr(os, "memfd_create"):
        return tempfile.TemporaryFile()
    return open(os.memfd_create("redis_queue_keeper"), "r+b")  # noqa: PTH123 - a descriptor has no path


def _environment() -> dict[str, str]:
    """Return the environment of a keeper, in which it can import all that its worker can import."""
    # pex, shiv and Bazel add paths that a new interpreter does not have.
    paths = [path or str(Path.cwd()) for path in sys.path if isinstance(path, str) and os.pathsep not in path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
