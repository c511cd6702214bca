"""Report: what a worker writes each second, in one script call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Final

from redis_queue.basics.times import monotonic
from redis_queue.errors import StoreUnavailableError
from redis_queue.monitor.model import Run, RunningTask, Series, Tally, WorkerRow
from redis_queue.monitor.rows import MAX_TEXT, write_run, write_running, write_tally, write_worker
from redis_queue.store.chunks import by_size, chunks
from redis_queue.store.connection import Client
from redis_queue.store.keys import MonitorKeys
from redis_queue.store.scripts import Clock, NumberedCalls, Scripts, server_clock

MAX_SERIES: Final = 100
"""Maximum number of series in one call. In all, 200 are counted apart; the runs of others are counted as "(other)"."""

MAX_RUNNING: Final = 100
"""Maximum number of running tasks that a worker reports."""

MAX_ENDED: Final = 20
"""Maximum number of ended runs in one report."""

MAX_CLOSES: Final = 100
"""Maximum number of calls that close the series of the minute before, five at a time."""

AGAIN: Final = -1
"""Reply of a call that has closed some, and must be repeated."""

SEPARATOR: Final = "\0"

OTHER: Final = Series("(other)", "(other)")

NOTE_RELEASE: Final = 60.0
"""Seconds after which a worker notes its release again."""


class Reports:
    """Writes the reports of workers under *prefix*. Raises StoreError."""

    def __init__(self, client: Client, prefix: str, clock: Clock = server_clock) -> None:
        self._clock = clock
        self._calls = NumberedCalls(Scripts(client), MonitorKeys(prefix))
        # Their own slot: the state can be written while counts wait for their repetition.
        self._counting = NumberedCalls(Scripts(client), MonitorKeys(prefix))
        self._release, self._release_until = "", 0.0

    def write(
        self,
        worker: WorkerRow | None = None,
        running: Sequence[RunningTask] = (),
        tallies: Mapping[Series, Tally] | None = None,
        ended: Sequence[Run] = (),
        *,
        leaving: bool = False,
    ) -> int:
        """Store the state of *worker*, the tasks that it runs, and what ended since its last report.

        Return the time of the server in ms. It takes one round trip, and another one for every :data:`MAX_SERIES` of
        the *tallies*, or 128 KiB; the first call of a minute takes up to 41. With *leaving* the worker is removed; its
        *seen_at* is ignored. At most :data:`MAX_RUNNING` running tasks and :data:`MAX_ENDED` runs are written.
        """
        for count in self.count_calls(tallies or {}):
            count()
        release = "" if worker is None or leaving else worker.release
        due = release != self._release or monotonic() >= self._release_until
        now: int = self._calls.prepare(
            "monitor/report",
            now=self._clock(),
            release=release if due else "",
            worker="" if worker is None else worker.name[:MAX_TEXT],
            row="" if worker is None or leaving else write_worker(worker),
            tasks="" if leaving else write_running(running[:MAX_RUNNING]),
            more=_encoded(part for run in ended[:MAX_ENDED] for part in (run.id, _root(run), write_run(run))),
        )()
        if due:
            self._release, self._release_until = release, monotonic() + NOTE_RELEASE
        return now

    def count_calls(self, tallies: Mapping[Series, Tally]) -> list[Callable[[], None]]:
        """Return calls that add *tallies* to the history; make them in this order.

        Each one adds its part once, however often it is made: after a StoreError, make the same call again before the
        next one. That holds for a day after its last attempt.
        """
        rows = (_encoded((f"{key.task}{SEPARATOR}{key.queue}", write_tally(tally))) for key, tally in tallies.items())
        parts = (by_size(chunk, lambda row: sum(map(len, row)), 1 << 17) for chunk in chunks(rows, MAX_SERIES))
        return [self._count_call(part) for part in chain.from_iterable(parts)]

    def _count_call(self, rows: Iterable[Iterable[bytes]]) -> Callable[[], None]:
        call = self._counting.prepare("monitor/count", now=self._clock(), more=[*chain.from_iterable(rows)])

        def count() -> None:
            if all(call() == AGAIN for _ in range(MAX_CLOSES)):
                raise StoreUnavailableError("the counts of the last minute have too many series; try again")

        return count


def _root(run: Run) -> str:
    # The script ends a root at the separator.
    return (run.root or run.id)[:MAX_TEXT].replace(SEPARATOR, "")


def _encoded(parts: Iterable[str]) -> tuple[bytes, ...]:
    return tuple(part.encode(errors="replace") for part in parts)
