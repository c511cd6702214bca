"""What dispatchers did: counts, lateness, and the dispatchers that run; kept beside the first shard of a queue."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from redis_queue.basics.histogram import read_histograms
from redis_queue.basics.logs import hide_secrets
from redis_queue.basics.times import END_OF_CALENDAR_MS, from_ms
from redis_queue.delay.model import Dispatched
from redis_queue.store.chunks import CHUNK, check_limit, chunks
from redis_queue.store.codec import read_document, small_integer
from redis_queue.store.records import Records
from redis_queue.store.scripts import Scripts

MAX_MINUTES: Final = 1440
"""Minutes that are stored: a day."""

SEEN_MS: Final = 60_000
"""Milliseconds after which a dispatcher that was not seen is left out."""

MAX_DISPATCHERS: Final = 5000
MAX_ERROR: Final = 500

_MINUTE: Final = re.compile(rb"(\d{1,15}) (\d{1,15}) (\d{1,15}) (\d{1,18}) (\d{1,18})")
_ROW: Final = re.compile(rb"(\d{1,15}) (.*)", re.DOTALL)
_COUNT: Final = re.compile(rb"\d{1,19}")


@dataclass(frozen=True, slots=True)
class Minute:
    """Dispatches in the minute that began *at*: counts, and the sum and the maximum of lateness in seconds."""

    at: datetime
    sent: int = 0
    failed: int = 0
    late_seconds: float = 0.0
    worst_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class DispatcherRow:
    """A dispatcher that was seen at *seen_at* by the server's clock.

    *sent* and *failed* count since its start; *error* is the error of its last turn, "" without one.
    """

    name: str
    seen_at: datetime
    leads: bool
    version: str
    sent: int
    failed: int
    error: str


class DispatchLog:
    """Counts and lateness of dispatched entries, and the running dispatchers: ``queue.dispatch_log``.

    Lossy by design: counts that a dispatcher had not written yet when it died are missing, at most a second of them. An
    entry that came back when a lease ended, or that was given back, is late by the time since then.
    """

    def __init__(self, scripts: Scripts, shard: Records) -> None:
        self._scripts = scripts
        self._shard = shard

    def note(self, done: Dispatched, *, dispatcher: DispatcherRow | None = None, leaving: bool = False) -> None:
        """Add *done* to :meth:`totals` and :meth:`minutes`; one round trip.

        *dispatcher*, whose *seen_at* is ignored, is seen now and stays in :meth:`dispatchers` for a minute. With
        *leaving* it is removed.
        """
        row = "" if dispatcher is None or leaving else _row(dispatcher)
        self._shard.call(
            "delay/note",
            now=self._shard.clock(),
            sent=done.sent,
            failed=done.failed,
            sum=_ms(done.lateness.seconds),
            worst=_ms(done.lateness.most),
            member=b"" if dispatcher is None else dispatcher.name.encode(errors="replace"),
            row=row,
            times=done.lateness.text(),
        )

    def totals(self) -> Dispatched:
        """Return the all-time totals; O(1)."""
        sent, failed, times = self._scripts.command("HMGET", self._shard.keys.lateness, "sent", "failed", "times")
        return Dispatched(_count(sent), _count(failed), read_histograms([times or b""])[0])

    def minutes(self, limit: int = 60) -> list[Minute]:
        """Return the counts of the last *limit* (1 to 1,440) minutes, oldest first, including the current one."""
        check_limit(limit, MAX_MINUTES)
        current, *fields = self._shard.run("delay/minutes", now=self._shard.clock(), limit=limit)
        return [_minute(current - limit + 1 + number, field) for number, field in enumerate(fields)]

    def dispatchers(self) -> list[DispatcherRow]:
        """Return the dispatchers that were seen within the last 60 s, by name; unreadable rows are left out."""
        names: list[bytes] = sorted(self._scripts.command("HKEYS", self._shard.keys.dispatchers))
        rows: list[DispatcherRow] = []
        for chunk in chunks(names[:MAX_DISPATCHERS], CHUNK):
            now, *values = self._shard.run("delay/dispatchers", now=self._shard.clock(), more=chunk)
            found = (_dispatcher(name, value, now) for name, value in zip(chunk, values, strict=True))
            rows += [row for row in found if row is not None]
        return rows


def _ms(seconds: float) -> int:
    return min(max(0, round(seconds * 1000)), END_OF_CALENDAR_MS)


def _count(raw: bytes | None) -> int:
    return int(raw) if raw is not None and _COUNT.fullmatch(raw) else 0


def _minute(number: int, field: bytes | None) -> Minute:
    at = from_ms(number * 60_000)
    found = _MINUTE.fullmatch(field or b"")
    if found is None or int(found[1]) != number:
        return Minute(at)
    sent, failed, late_ms, worst_ms = (int(text) for text in found.groups()[1:])
    return Minute(at, sent, failed, late_ms / 1000, worst_ms / 1000)


def _row(dispatcher: DispatcherRow) -> str:
    row = {name: getattr(dispatcher, name) for name in ("leads", "version", "sent", "failed", "error")}
    return json.dumps({**row, "error": hide_secrets(dispatcher.error)[:MAX_ERROR]})


def _dispatcher(name: bytes, value: bytes | None, now: int) -> DispatcherRow | None:
    found = _ROW.fullmatch(value or b"")
    if found is None or now - int(found[1]) > SEEN_MS:
        return None
    try:
        row: Any = read_document(found[2])
        known: dict[str, Any] = {field: small_integer(row[field]) for field in ("sent", "failed")}
        known |= {field: str(row[field])[:MAX_ERROR] for field in ("version", "error")}
        seen_at = from_ms(int(found[1]))
        return DispatcherRow(name.decode(errors="replace"), seen_at, leads=bool(row["leads"]), **known)
    except (ValueError, KeyError, TypeError):
        return None
