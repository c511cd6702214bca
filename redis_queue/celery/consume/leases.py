"""Keeping: what a worker holds, and the keeper process that renews it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

import redis

from redis_queue.backoff import Backoff
from redis_queue.celery.consume.counters import Counters
from redis_queue.celery.consume.in_flight import Records
from redis_queue.celery.kombu_keys import InFlightKeys
from redis_queue.errors import ConfigurationError, RedisQueueError
from redis_queue.keeper import RENEWALS, Board, Place, Renewer, client_of, packed, write_line
from redis_queue.logs import logger_of
from redis_queue.store.keys import unreadable, visibility_timeouts

logger = logger_of(__name__)

TRUSTED: Final = 0.9
"""Share of the visibility timeout for which a lease is trusted after it was renewed."""

MOST_UNTOLD: Final = 10_000
"""Lines that wait for a keeper which reads nothing, before another one takes its place."""

RESTART_AFTER: Final = 1.0
"""Seconds between the end of a keeper and the start of the next one; more where one after the other dies."""

LONGEST_PAUSE: Final = 30.0
"""Seconds between two of them at most, and never more than between two renewals."""

STALE: Final = 2 / RENEWALS
"""Share of the visibility timeout without a renewal after which a hanging keeper is replaced."""

STALE_AT_LEAST: Final = 10.0
"""Least seconds without a renewal before that: on a busy machine a keeper may connect slowly."""

LOOKS: Final = 12
"""Checks of the last renewal per visibility timeout."""

LONGEST_LOOK: Final = 5.0
"""Most seconds between two checks."""

GRACE: Final = 2.0
"""Seconds that a keeper has to end by itself."""

START: Final = 60.0
"""Seconds that a keeper may take until it is up."""


@dataclass(slots=True)
class Held:
    """One message: when its lease began, by both clocks, and when the keeper was told."""

    since: float
    score: float
    told_at: float
    lost: bool = False


class Keeping:
    """Renews the leases of one worker's messages while the process lives, whatever its threads do.

    *on_lost* is called with the delivery tag of a lease that was lost while its message was still held. Safe for
    threads. Raises ConfigurationError if the connection cannot be handed to another process, and if that does not come
    up: a worker without one would take tasks that others take again.
    """

    def __init__(self, connection: Any, on_lost: Callable[[str, float], None]) -> None:
        channel = connection.default_channel
        prefix = channel.global_keyprefix or ""
        self._in_flight = InFlightKeys.of(channel)
        place = Place(
            index=self._in_flight.index.encode(),
            timeouts=visibility_timeouts(prefix),
            visibility_timeout=float(channel.visibility_timeout),
            signature=random.SystemRandom().randint(1, 999_999),
        )
        try:
            self._greeting = packed(connection, place)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise ConfigurationError(
                f"the broker's connection cannot be handed to another process ({error}): give plain values in "
                "broker_transport_options and broker_use_ssl"
            ) from error
        self._on_lost = on_lost
        self._trusted = place.visibility_timeout * TRUSTED
        self._client = client_of(channel)
        self.counters = Counters(self._client, prefix)
        self._unreadable = unreadable(prefix)
        self._renewer = Renewer(self._client, place)
        self._records = Records(self._client, self._in_flight)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._board = Board(self._file.fileno())
        self._held: dict[str, Held] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._untold: list[bytes] = []
        longest = min(LONGEST_PAUSE, place.visibility_timeout / RENEWALS)
        self._backoff = Backoff(first=RESTART_AFTER, cap=max(RESTART_AFTER, longest))
        self._settled = threading.Event()
        self._was_up = False
        self._closed = threading.Event()
        self._stale = max(place.visibility_timeout * STALE, STALE_AT_LEAST)
        self._look = min(place.visibility_timeout / LOOKS, LONGEST_LOOK)
        # On the monotonic clock.
        self._heard_at = time.monotonic()
        self._is_up = False
        self._warned_at = -math.inf
        self.lost = 0
        self._begin()
        threading.Thread(target=self._watch, name="redis-queue-leases-watch", daemon=True).start()

    def hold(self, tag: str, since: float, score: float) -> None:
        """Renew the lease of *tag* from now on; it began at *since* (monotonic), which is *score* on the wall clock."""
        self._held[tag] = Held(since, score, float("inf"))
        if self._tell(write_line(tag, score)):
            self._held[tag].told_at = time.monotonic()

    def drop(self, tag: str) -> None:
        """Renew the lease of *tag* no more."""
        if self._held.pop(tag, None) is not None:
            self._tell(write_line(tag))

    def holds(self, tag: str) -> bool:
        """Tell whether this worker holds *tag*, as far as it knows."""
        held = self._held.get(tag)
        return held is not None and not held.lost

    def is_ours(self, tag: str) -> bool:
        """Tell whether the lease of *tag* still is this worker's; where that is not certain, ask Redis and renew it.

        A Redis that is full or cannot save cannot have given it to anybody else.
        """
        held = self._held.get(tag)
        if held is None:
            return True
        if held.lost:
            return False
        renewed = self._board.read()
        kept = held.told_at < renewed.at
        if time.monotonic() - (renewed.at if kept else held.since) < self._trusted:
            return True
        try:
            lost = self._renewer.renew({tag: renewed.score if kept else held.score}).lost
        except RedisQueueError as error:
            refused = isinstance(error.__cause__, redis.ResponseError)
            if refused and not isinstance(error.__cause__, redis.ReadOnlyError):
                return True
            # What kombu and Celery expect of a broker that is away.
            raise (error.__cause__ or error) from None
        if lost:
            self._note_loss(tag, held)
        return not lost

    def put_aside(self, tag: str, item: bytes) -> None:
        """Take the record of *tag* out and keep its message where nobody looks for work."""
        with self._client.pipeline() as pipe:
            pipe.rpush(self._unreadable, item)
            pipe.zrem(self._in_flight.index, tag)
            pipe.hdel(self._in_flight.records, tag)
            pipe.execute()
        self.drop(tag)

    def settle(self, tag: str) -> None:
        """Take the record of *tag* out, by a connection of its own; a lost lease leaves it to its new holder."""
        if self.is_ours(tag):
            self._records.settle(tag)

    def close(self) -> None:
        """End the keeper within a few seconds, even if it hangs."""
        self._closed.set()
        with self._lock:
            process, self._process = self._process, None
            if process is not None and process.stdin is not None:
                process.stdin.close()
            self._file.close()
        self._records.close()
        if process is not None:
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                process.kill()

    def _begin(self) -> None:
        """Return once the first keeper is up; raises ConfigurationError if it never is."""
        try:
            process = self._start()
        except OSError as error:
            self.close()
            raise ConfigurationError(f"cannot start {sys.executable} to renew leases: {error}") from error
        if not self._settled.wait(START):
            process.kill()
            self._settled.wait()
        if not self._was_up:
            self.close()
            raise ConfigurationError(
                f"the process that renews leases ended with {process.returncode} before it was up: "
                f"{sys.executable} -m redis_queue.keeper must be able to import what this worker imports"
            )

    def _start(self) -> subprocess.Popen[bytes]:
        file = self._file.fileno()
        command = [sys.executable, "-m", "redis_queue.keeper", str(os.getpid()), str(file)]
        process = subprocess.Popen(  # noqa: S603 - nothing in it comes from outside
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(file,), bufsize=0, env=_environment()
        )
        pipe = cast("IO[bytes]", process.stdin)
        # It may be dead by now, which the thread that listens to it sees.
        with contextlib.suppress(BrokenPipeError):
            pipe.write(self._greeting)
        os.set_blocking(pipe.fileno(), False)
        self._process = process
        self._heard_at, self._is_up = time.monotonic(), False
        threading.Thread(target=self._hear, args=(process,), name="redis-queue-leases", daemon=True).start()
        return process

    def _tell(self, line: bytes) -> bool:
        """Write to the keeper; what does not fit now goes before the next line. Returns whether all was written."""
        with self._lock:
            process = self._process
            if process is None or process.stdin is None:
                # The next one is told of all that is held.
                return False
            self._untold.append(line)
            try:
                while self._untold:
                    written = os.write(process.stdin.fileno(), self._untold[0])
                    # A line longer than what a pipe takes at once goes in parts.
                    self._untold[:1] = [rest] if (rest := self._untold[0][written:]) else []
            except OSError:
                # Full, or the keeper has just died, which the thread that listens to it sees.
                if len(self._untold) > MOST_UNTOLD:
                    process.kill()
                return False
            return True

    def _hear(self, process: subprocess.Popen[bytes]) -> None:
        with cast("IO[bytes]", process.stdout) as events:
            for line in events:
                self._take(json.loads(line))
        process.wait()
        with self._lock:
            if self._process is process:
                self._process = None
            cast("IO[bytes]", process.stdin).close()
        if self._was_up and not self._closed.is_set():
            self._insist_on_another(process.returncode)
        self._settled.set()

    def _insist_on_another(self, code: int) -> None:
        pause = self._backoff.next()
        logger.error(
            "the process that renews leases ended with %s; starting another one in %.1f s",
            code,
            pause,
            extra={"action": "keeper_died", "retry_in": round(pause, 2)},
        )
        while not self._closed.wait(pause):
            try:
                return self._restart()
            except OSError:
                pause = self._backoff.next()
                logger.exception(
                    "cannot start the process that renews leases; trying again in %.1f s",
                    pause,
                    extra={"action": "keeper_died", "retry_in": round(pause, 2)},
                )
        return None

    def _restart(self) -> None:
        with self._lock:
            if self._closed.is_set():
                return
            self._untold = []
            self._start()
            renewed = self._board.read()
            open_tags = dict(self._held)
        for tag, held in open_tags.items():
            self._tell(write_line(tag, renewed.score if held.told_at < renewed.at else held.score))

    def _watch(self) -> None:
        """Kill a keeper that neither renews nor reports why, so that it is replaced."""
        looked_at = time.monotonic()
        while not self._closed.wait(self._look):
            now = time.monotonic()
            if now - looked_at > 2 * self._look:
                # This process was stopped, and a keeper does not renew for a stopped worker.
                self._heard_at = now
            looked_at = now
            process, silent = self._process, now - max(self._heard_at, self._board.read().at)
            if process is not None and silent > (self._stale if self._is_up else START):
                logger.warning(
                    "the process that renews leases has renewed nothing for %.0f s and is replaced",
                    silent,
                    extra={"action": "keeper_stale"},
                )
                self._heard_at = now
                process.kill()

    def _take(self, event: dict[str, Any]) -> None:
        self._heard_at = time.monotonic()
        if "up" in event:
            self._was_up = self._is_up = True
            self._backoff.reset()
            self._settled.set()
        elif "away" in event:
            # It says so at each attempt.
            if self._board.read().at > self._warned_at:
                self._warned_at = self._heard_at
                logger.warning("cannot renew leases: %s", event["away"], extra={"action": "leases_away"})
        elif "lowest" in event:
            logger.warning(
                "another app on this broker has visibility_timeout=%g: it takes tasks from workers that renew less "
                "often, or not at all; give all apps the same",
                event["lowest"],
                extra={"action": "visibility_timeout_differs"},
            )
        else:
            held = self._held.get(event["lost"])
            if held is not None:
                self._note_loss(event["lost"], held)

    def _note_loss(self, tag: str, held: Held) -> None:
        if not held.lost:
            held.lost = True
            self.lost += 1
            self._on_lost(tag, time.monotonic() - held.since)
            self.counters.add("lost")


def _environment() -> dict[str, str]:
    """Return the environment of a keeper, which imports what its worker imports, wherever that found it."""
    # Not every place of a path is one that the interpreter looks at by itself: pex, shiv and Bazel add theirs later.
    paths = [path or str(Path.cwd()) for path in sys.path if isinstance(path, str) and os.pathsep not in path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
