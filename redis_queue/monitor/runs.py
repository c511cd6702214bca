"""Runs: the latest runs of tasks that have ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from redis_queue.monitor.model import Run
from redis_queue.monitor.report import SEPARATOR
from redis_queue.monitor.rows import read_run
from redis_queue.store.chunks import CHUNK, check_limit
from redis_queue.store.connection import Client
from redis_queue.store.keys import MonitorKeys
from redis_queue.store.scripts import Scripts

MOST_OF_TREE: Final = 200
"""Most tasks of one canvas."""


class Runs:
    """Reads the latest 20,000 tasks that ended in the last two days under *prefix*; all methods raise StoreError.

    A worker writes up to 20 runs in a second: those that did not succeed first, then the slowest ones. Up to ten runs
    of each task are kept.
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

    def tree(self, root: str) -> list[Run]:
        """Return the last runs of up to :data:`MOST_OF_TREE` tasks that a task *root* has led to, itself among them."""
        start = f"{root}{SEPARATOR}".encode(errors="replace")
        members: list[bytes] = self._scripts.command(
            "ZRANGE", self._keys.trees, b"[" + start, b"(" + start + b"\xff", "BYLEX", "LIMIT", 0, MOST_OF_TREE
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
