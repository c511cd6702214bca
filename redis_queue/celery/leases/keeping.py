"""Keeping: what a worker holds, and the keeper process that renews it."""

from __future__ import annotations

import json
import logging
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
from typing import IO, Any, Final, cast

from redis_queue.errors import ConfigurationError, RedisQueueError
from redis_queue.keeper import Board, Place, Renewer, client_of, packed
from redis_queue.keys import unreadable, visibility_timeouts

logger = logging.getLogger(__name__)

TRUSTED: Final = 0.9
"""Share of the visibility timeout for which a lease is trusted after it was renewed."""

MOST_UNTOLD: Final = 10_000
"""Lines that wait for a keeper which reads nothing, before another one takes its place."""

RESTART_AFTER: Final = 1.0
"""Seconds between two starts of a keeper that dies."""


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
    threads. Raises ConfigurationError if the connection cannot be handed to another process.
    """

    def __init__(self, connection: Any, on_lost: Callable[[str, float], None]) -> None:
        channel = connection.default_channel
        prefix = getattr(channel, "global_keyprefix", "") or ""
        place = Place(
            index=f"{prefix}{channel.unacked_index_key}".encode(),
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
        self._client, self._index = client_of(channel), place.index
        self._records = f"{prefix}{channel.unacked_key}".encode()
        self._unreadable = unreadable(prefix)
        self._renewer = Renewer(self._client, place)
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the worker
        self._board = Board(self._file.fileno())
        self._held: dict[str, Held] = {}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._untold: list[str] = []
        self._closed = False
        self.lost = 0
        self._start()

    @property
    def pid(self) -> int | None:
        """The process id of the keeper."""
        return self._process.pid if self._process else None

    def hold(self, tag: str, since: float, score: float) -> None:
        """Renew the lease of *tag* from now on; it began at *since* (monotonic), which is *score* on the wall clock."""
        self._held[tag] = Held(since, score, float("inf"))
        if self._tell(f"+{tag} {score:.6f}\n"):
            self._held[tag].told_at = time.monotonic()

    def drop(self, tag: str) -> None:
        """Renew the lease of *tag* no more."""
        if self._held.pop(tag, None) is not None:
            self._tell(f"-{tag}\n")

    def is_ours(self, tag: str) -> bool:
        """Tell whether the lease of *tag* still is this worker's; where that is not certain, ask Redis and renew it."""
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
            # What kombu and Celery expect of a broker that is away.
            raise (error.__cause__ or error) from None
        if lost:
            self._note_loss(tag, held)
        return not lost

    def put_aside(self, tag: str, item: bytes) -> None:
        """Take the record of *tag* out and keep its message where nobody looks for work."""
        with self._client.pipeline() as pipe:
            pipe.rpush(self._unreadable, item)
            pipe.zrem(self._index, tag)
            pipe.hdel(self._records, tag)
            pipe.execute()
        self.drop(tag)

    def settle(self, tag: str) -> None:
        """Take the record of *tag* out, by a connection of its own; a lost lease leaves it to its new holder."""
        if self.is_ours(tag):
            with self._client.pipeline() as pipe:
                pipe.zrem(self._index, tag)
                pipe.hdel(self._records, tag)
                pipe.execute()

    def close(self) -> None:
        """End the keeper."""
        with self._lock:
            self._closed = True
            process, self._process = self._process, None
            if process is not None and process.stdin is not None:
                process.stdin.close()
        if process is not None:
            process.wait()

    def _start(self) -> None:
        file = self._file.fileno()
        command = [sys.executable, "-m", "redis_queue.keeper", str(os.getpid()), str(file)]
        process = subprocess.Popen(  # noqa: S603 - nothing in it comes from outside
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=(file,), bufsize=0
        )
        pipe = cast("IO[bytes]", process.stdin)
        pipe.write(self._greeting)
        os.set_blocking(pipe.fileno(), False)
        self._process = process
        threading.Thread(target=self._hear, args=(process,), name="redis-queue-leases", daemon=True).start()

    def _tell(self, line: str) -> bool:
        """Write to the keeper; what does not fit now goes before the next line. Returns whether all was written."""
        with self._lock:
            self._untold.append(line)
            process = self._process
            if process is None or process.stdin is None:
                return False
            try:
                while self._untold:
                    os.write(process.stdin.fileno(), self._untold[0].encode())
                    del self._untold[0]
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
        if not self._closed:
            logger.error(
                "the process that renews leases ended with %s; starting another one",
                process.returncode,
                extra={"action": "keeper_died"},
            )
            time.sleep(RESTART_AFTER)
            self._restart()

    def _restart(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._untold = []
            self._start()
            renewed = self._board.read()
            open_tags = dict(self._held)
        for tag, held in open_tags.items():
            self._tell(f"+{tag} {renewed.score if held.told_at < renewed.at else held.score:.6f}\n")

    def _take(self, event: dict[str, Any]) -> None:
        if "away" in event:
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
