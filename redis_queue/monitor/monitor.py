"""Monitor: readers of what the workers under one prefix report."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Final

from redis_queue.basics.times import from_ms, to_ms
from redis_queue.monitor.failures import Failures, ids_by_time, time_cursor
from redis_queue.monitor.history import RunHistory
from redis_queue.monitor.model import ReleaseRow, Run, RunningTask, WorkerRow
from redis_queue.monitor.report import MAX_RUNNING, SEPARATOR
from redis_queue.monitor.rows import MAX_TEXT, read_run, read_running, read_worker, release_text
from redis_queue.store.chunks import CHUNK, check_limit, chunks
from redis_queue.store.connection import Client
from redis_queue.store.keys import MonitorKeys
from redis_queue.store.scripts import Clock, Scripts, now_ms, pairs, server_clock

SEEN_MS: Final = 60_000
"""Milliseconds after which a worker that did not report is lost."""

LOST_MS: Final = 3_600_000
"""Milliseconds after which a lost worker is forgotten, as in the script that stores reports."""

MAX_WORKERS: Final = 10_000

MAX_BYTES: Final = 32 * 1024 * 1024
"""Maximum bytes of reports that one search reads."""

_ROW: Final = re.compile(rb"(\d{1,15}) (.*)", re.DOTALL)

_RELEASE: Final = re.compile(rb"(\d{1,15}) (\d{1,15})")

MAX_RELEASES: Final = 100

MAX_OF_TREE: Final = 200
"""Maximum number of tasks of one canvas."""


class Workers:
    """Reads the reports of workers under *prefix*. All methods raise StoreError."""

    def __init__(self, client: Client, prefix: str, clock: Clock = server_clock) -> None:
        self._scripts = Scripts(client)
        self._keys = MonitorKeys(prefix)
        self._clock = clock

    def now(self) -> datetime:
        """Return the time of the server, by which workers are seen."""
        return from_ms(now_ms(self._scripts, self._clock))

    def rows(self, limit: int = MAX_WORKERS, *, part: str = "", lost: bool = False) -> list[WorkerRow]:
        """Return up to *limit* workers whose names contain *part*, by name; unreadable rows are left out.

        They were seen within the last 60 s; with *lost*, within the last hour. It reads at most :data:`MAX_BYTES` of
        reports.
        """
        names: list[bytes] = self._scripts.command("HKEYS", self._keys.workers)
        chosen = sorted(name for name in names if part in name.decode(errors="replace"))
        return list(itertools.islice(self._read(chosen, LOST_MS if lost else SEEN_MS), limit))

    def row(self, name: str, *, lost: bool = False) -> WorkerRow | None:
        """Return one worker; None if it is unknown, or was not seen within the last 60 s, with *lost* the last hour."""
        return next(self._read([name.encode(errors="replace")], LOST_MS if lost else SEEN_MS), None)

    def running(self, limit: int = 1000) -> list[RunningTask]:
        """Return up to *limit* running tasks, worker by worker; each worker reports at most :data:`MAX_RUNNING`.

        It reads at most :data:`MAX_BYTES` of reports.
        """
        return list(itertools.islice(self._search(b""), limit))

    def running_of(self, name: str) -> list[RunningTask]:
        """Return the running tasks of one worker."""
        text = self._scripts.command("HGET", self._keys.running, name.encode(errors="replace"))
        return [] if text is None else read_running(name, text, MAX_RUNNING)

    def find_running(self, id_: str) -> RunningTask | None:
        """Return a running task by its id; None if :data:`MAX_BYTES` of reports do not have it."""
        # An id begins the array of its task: tasks that it is the root of have it elsewhere, and are not parsed.
        part = b"[" + json.dumps(id_[:MAX_TEXT]).encode()
        return next((task for task in self._search(part) if task.id == id_), None)

    def related(self, id_: str, limit: int = 1000) -> list[RunningTask]:
        """Return up to *limit* running tasks whose id, parent, root or group is *id_*.

        It searches the reports without parsing all of them, and at most :data:`MAX_BYTES` of them.
        """
        tasks = self._search(json.dumps(id_[:MAX_TEXT]).encode())
        found = (task for task in tasks if id_ in (task.id, task.parent, task.root, task.group))
        return list(itertools.islice(found, limit))

    def _search(self, part: bytes) -> Iterator[RunningTask]:
        """Yield the tasks of living workers whose reports have *part*, from up to :data:`MAX_BYTES` of reports."""
        names: list[bytes] = sorted(self._scripts.command("HKEYS", self._keys.running))[:MAX_WORKERS]
        left = MAX_BYTES
        for chunk in chunks(names):
            texts: list[bytes | None] = self._scripts.command("HMGET", self._keys.running, *chunk)
            hits = {name: text for name, text in zip(chunk, texts, strict=True) if text is not None and part in text}
            alive = {row.name for row in self._read(list(hits))}
            for name, text in hits.items():
                worker = name.decode(errors="replace")
                if worker in alive:
                    yield from read_running(worker, text, MAX_RUNNING)
            left -= sum(len(text or b"") for text in texts)
            if left <= 0:
                return

    def _read(self, names: Sequence[bytes], within: int = SEEN_MS) -> Iterator[WorkerRow]:
        """Yield those of *names* that were seen within so many ms, from up to :data:`MAX_BYTES` of reports."""
        now = now_ms(self._scripts, self._clock) if names else 0
        left = MAX_BYTES
        for chunk in chunks(names):
            values: list[bytes | None] = self._scripts.command("HMGET", self._keys.workers, *chunk)
            for name, value in zip(chunk, values, strict=True):
                parts = _ROW.fullmatch(value or b"")
                if parts is not None and now - int(parts[1]) <= within:
                    row = read_worker(name.decode(errors="replace"), from_ms(int(parts[1])), parts[2])
                    yield from [row] if row is not None else []
            left -= sum(len(value or b"") for value in values)
            if left <= 0:
                return


class Runs:
    """Reads the latest 20,000 tasks that ended in the last two days under *prefix*; all methods raise StoreError.

    A worker writes up to 20 runs in a second: those that did not succeed first, then of each task that it runs the
    first and the three slowest ones. Up to ten runs of each task are kept.
    """

    def __init__(self, client: Client, prefix: str) -> None:
        self._scripts = Scripts(client)
        self._keys = MonitorKeys(prefix)

    def get(self, id_: str) -> list[Run]:
        """Return the runs of a task, the last one first; unreadable ones are left out."""
        return self._read([id_])

    def latest(self, limit: int = 50) -> list[Run]:
        """Return the last run of each of the *limit* (1 to 500) tasks that ended last, latest first."""
        check_limit(limit, CHUNK)
        ids: list[bytes] = self._scripts.command("ZREVRANGE", self._keys.runs_order, 0, limit - 1)
        return self._read((id_.decode(errors="replace") for id_ in ids), last=True)

    def near(self, at: datetime, limit: int = 50) -> list[Run]:
        """Return the last run of each of *limit* (1 to 500) tasks that ended next to *at*: half before, half after."""
        check_limit(limit, CHUNK)
        half, score = (limit + 1) // 2, to_ms(at)
        # A dashboard with restricted permissions may not use ZRANGEBYSCORE.
        ranges = (score, "-inf", "BYSCORE", "REV"), (f"({score}", "+inf", "BYSCORE")
        ids = [
            id_
            for part in ranges
            for id_ in self._scripts.command("ZRANGE", self._keys.runs_order, *part, "LIMIT", 0, half)
        ]
        return self._read((id_.decode(errors="replace") for id_ in ids), last=True)

    def page(
        self,
        *,
        after: str | None = None,
        limit: int = 100,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> tuple[Sequence[tuple[Run, str]], str | None]:
        """Return the last runs of up to *limit* (1 to 500) tasks, the last one first, each with the cursor behind it.

        Also return the cursor of the next page, or None. They ended at *since* or later, and before *until*; unreadable
        ones are left out, so that a page may be short. Raises InvalidValueError for an invalid cursor.
        """
        check_limit(limit, CHUNK)
        low = 0 if since is None else to_ms(since)
        times, following = ids_by_time(self._scripts, self._keys.runs_order, after, limit, low=low, until=until)
        cursors = {id_.decode(errors="replace"): time_cursor(id_, at) for id_, at in times}
        return [(run, cursors[run.id]) for run in self._read(cursors, last=True)], following

    def count(self) -> int:
        """Return the number of tasks with kept runs."""
        return int(self._scripts.command("ZCARD", self._keys.runs_order))

    def tree(self, root: str) -> list[Run]:
        """Return the last runs of up to :data:`MAX_OF_TREE` tasks that a task *root* has led to, itself among them."""
        start = f"{root}{SEPARATOR}".encode(errors="replace")
        members: list[bytes] = self._scripts.command(
            "ZRANGE", self._keys.trees, b"[" + start, b"(" + start + b"\xff", "BYLEX", "LIMIT", 0, MAX_OF_TREE
        )
        return self._read((member[len(start) :].decode(errors="replace") for member in members), last=True)

    def _read(self, ids: Iterable[str], *, last: bool = False) -> list[Run]:
        wanted = list(ids)
        if not wanted:
            return []
        values: list[bytes | None] = self._scripts.command(
            "HMGET", self._keys.runs, *(id_.encode(errors="replace") for id_ in wanted)
        )
        found: list[Run] = []
        for id_, value in zip(wanted, values, strict=True):
            lines = (value or b"").partition(SEPARATOR.encode())[2].split(b"\n")
            runs = [run for run in (read_run(id_, line) for line in lines) if run is not None]
            # A retry that is sent at once may end before the run that sent it.
            runs.sort(key=lambda run: (run.started_at or run.ended_at, run.ended_at), reverse=True)
            found += runs[:1] if last else runs
        return found


class Monitor:
    """Readers of workers, kept runs, history and failures under *prefix*. Creating it does no I/O."""

    def __init__(self, client: Client, prefix: str, clock: Clock = server_clock) -> None:
        self.workers = Workers(client, prefix, clock)
        self.runs = Runs(client, prefix)
        self.history = RunHistory(client, prefix, clock)
        self.failures = Failures(client, prefix, clock)
        self._scripts = Scripts(client)
        self._keys = MonitorKeys(prefix)

    def releases(self) -> list[ReleaseRow]:
        """Return the releases that workers have reported, at most 100, the latest first report first.

        Unreadable ones are left out. Raises StoreError.
        """
        rows = pairs(self._scripts.command("HGETALL", self._keys.releases))
        found: dict[str, ReleaseRow] = {}
        for name, times in rows:
            if parts := _RELEASE.fullmatch(times):
                release = release_text(name.decode(errors="replace"))
                found[release] = ReleaseRow(release, from_ms(int(parts[1])), from_ms(int(parts[2])))
        return sorted(found.values(), key=lambda row: (row.first_at, row.last_at), reverse=True)[:MAX_RELEASES]
