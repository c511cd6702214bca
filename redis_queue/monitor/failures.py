"""Failures: tasks that failed for good, and messages that Celery discarded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from redis_queue.basics.times import END_OF_CALENDAR_MS, from_ms, to_ms
from redis_queue.errors import InvalidValueError
from redis_queue.monitor.failure_rows import read_failure, read_group, with_traceback, write_failure
from redis_queue.monitor.model import Failure, GroupRow, Kept
from redis_queue.monitor.rows import ms_of
from redis_queue.store.chunks import CHUNK, by_size, check_limit, chunks
from redis_queue.store.connection import Client
from redis_queue.store.ids import id_bytes, id_text
from redis_queue.store.keys import MonitorKeys
from redis_queue.store.scripts import Clock, NumberedCalls, Scripts, now_ms, pairs, server_clock

MAX_KEPT: Final = 100_000
"""Maximum number of failures that can be kept."""

MAX_DAYS: Final = 90

MAX_AT_ONCE: Final = 100
"""Maximum number of failures of one call that keeps some."""

MAX_GROUPS: Final = 500
"""Maximum number of groups; failures of further ones are counted as "(other)"."""

ROWS: Final = 100
"""Failures per read: a row may have 20,000 bytes."""

LEASE_MS: Final = 60_000
"""How long failures are claimed for a retry."""

_CURSOR: Final = re.compile(r"(\d{1,15})\.(.{1,255})", re.DOTALL)
_LIMITS: Final = re.compile(rb"(\d{1,6}) (\d{1,2}(?:\.\d{1,20})?(?:e-\d{1,2})?)")
_MISSED: Final = re.compile(rb"(\d{1,15}) (\d{1,15})")


class Failures:
    """The failures that workers keep under *prefix*, the latest ones for some days. All methods raise StoreError."""

    def __init__(self, client: Client, prefix: str, clock: Clock = server_clock) -> None:
        self._scripts = Scripts(client)
        self._keys = MonitorKeys(prefix)
        self._calls = NumberedCalls(self._scripts, self._keys)
        self._clock = clock

    def keep(self, failures: Sequence[Failure], most: int, days: float, missed: int = 0) -> None:
        """Store up to 100 *failures*; each replaces an earlier one with its id.

        The oldest ones beyond *most* (1 to 100,000), and those older than *days* (up to 90), are removed, some in each
        call. *missed* is the number of failures that the caller could not keep. Raises InvalidValueError.
        """
        check_limit(most, MAX_KEPT, name="most")
        if isinstance(days, bool) or not isinstance(days, int | float) or not 0 < days <= MAX_DAYS:
            raise InvalidValueError(f"days={days!r}: must be > 0 and at most {MAX_DAYS}")
        if len(failures) > MAX_AT_ONCE:
            raise InvalidValueError(f"failures: must be at most {MAX_AT_ONCE}, got {len(failures)}")
        # The last field is the longest one.
        rows = [(id_bytes(f.id), ms_of(f.failed_at), *write_failure(f)) for f in failures]
        for part in list(by_size(rows)) or [[]]:
            more = [
                field.encode(errors="replace") if isinstance(field, str) else field for row in part for field in row
            ]
            self._calls.prepare(
                "monitor/failure_keep", now=self._clock(), most=most, days=repr(float(days)), missed=missed, more=more
            )()
            missed = 0

    def count(self) -> int:
        """Return the number of failures, without those that are too old."""
        return int(self._scripts.command("ZCOUNT", self._keys.failed_at, self._oldest(), "+inf"))

    def kept(self) -> Kept | None:
        """Return how many failures are kept and for how long; None before the first one."""
        limits, missed = self._scripts.command("HMGET", self._keys.groups, "limits", "not_kept")
        found, lost = _LIMITS.fullmatch(limits or b""), _MISSED.fullmatch(missed or b"")
        if found is None:
            return None
        missed_before = (int(lost[1]), from_ms(int(lost[2]))) if lost else ()
        return Kept(int(found[1]), float(found[2]), *missed_before)

    def groups(self) -> list[GroupRow]:
        """Return the failures by task and exception, the group with the last failure first; at most 500 groups."""
        rows = self._scripts.command("HGETALL", self._keys.groups)
        oldest = from_ms(self._oldest())
        groups = [group for group in (read_group(*pair) for pair in pairs(rows)) if group and group.last_at >= oldest]
        return sorted(groups, key=lambda row: row.last_at, reverse=True)[: MAX_GROUPS + 1]

    @staticmethod
    def cursor(failure: Failure) -> str:
        """Return the cursor that continues after *failure*: *after* of :meth:`list`."""
        return f"{ms_of(failure.failed_at)}.{failure.id}"

    def list(
        self,
        *,
        after: str | None = None,
        limit: int = 100,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> tuple[Sequence[Failure], str | None]:
        """Return up to *limit* (1 to 500) failures, the last one first, and the cursor of the next page, or None.

        They failed at *since* or later, and before *until*. Tracebacks and messages are left out. Unreadable rows are
        left out, so that a page may be short. Raises InvalidValueError for an invalid cursor.
        """
        check_limit(limit, CHUNK)
        low = max(self._oldest(), 0 if since is None else to_ms(since))
        times, following = ids_by_time(self._scripts, self._keys.failed_at, after, limit, low=low, until=until)
        return self._rows(times), following

    def get(self, id_: str) -> Failure | None:
        """Return a failure with its traceback and message, or None."""
        found = self.full([id_])
        return found[0] if found else None

    def full(self, ids: Iterable[str]) -> Sequence[Failure]:
        """Return those of *ids* that are kept, with their tracebacks and messages."""
        found: list[Failure] = []
        for chunk in chunks(map(id_bytes, ids), ROWS // 10):
            scores, rows, details = (
                reply()
                for reply in self._scripts.each(
                    [
                        self._scripts.read_call("ZMSCORE", self._keys.failed_at, *chunk),
                        self._scripts.read_call("HMGET", self._keys.failures, *chunk),
                        self._scripts.read_call("HMGET", self._keys.tracebacks, *chunk),
                    ]
                )
            )
            for id_, at, row, detail in zip(chunk, scores, rows, details, strict=True):
                failure = None if at is None else read_failure(id_, _score(at), row)
                found += [with_traceback(failure, detail)] if failure is not None else []
        return found

    def summaries(self, ids: Iterable[str]) -> Sequence[Failure]:
        """Return those of *ids* that are kept, without their tracebacks and messages."""
        found: list[Failure] = []
        for chunk in chunks(map(id_bytes, ids)):
            scores = self._scripts.command("ZMSCORE", self._keys.failed_at, *chunk)
            known = zip(chunk, scores, strict=True)
            found += self._rows([(id_, _score(at)) for id_, at in known if at is not None])
        return found

    def claim(self, failures: Sequence[Failure], token: str) -> Sequence[Failure]:
        """Claim *failures* for a minute, so that no other retry takes them; return those that were claimed.

        The others are gone, failed again, or are claimed by another retry.
        """
        return self._chosen("monitor/failure_claim", failures, token=token, lease=LEASE_MS)

    def give_back(self, failures: Sequence[Failure], token: str) -> None:
        """End the claim of *failures* that could not be retried."""
        self._chosen("monitor/failure_claim", failures, token=token, lease=0)

    def delete(self, failures: Sequence[Failure], token: str = "") -> Sequence[Failure]:
        """Delete *failures*; return those that were deleted.

        The others are gone, failed again since they were read, or are being retried (unless with this *token*).
        """
        return self._chosen("monitor/failure_delete", failures, token=token)

    def _chosen(self, script: str, failures: Sequence[Failure], **arguments: Any) -> Sequence[Failure]:
        """Return those of *failures* that *script* has changed."""
        found: list[Failure] = []
        for chunk in chunks(failures):
            more = [field for failure in chunk for field in (id_bytes(failure.id), ms_of(failure.failed_at))]
            flags = self._calls.prepare(script, now=self._clock(), more=more, **arguments)()
            found += (failure for failure, flag in zip(chunk, flags, strict=True) if flag == ord("1"))
        return found

    def _rows(self, times: Sequence[tuple[bytes, int]]) -> Sequence[Failure]:
        parts = list(chunks(times, ROWS))
        calls = [self._scripts.read_call("HMGET", self._keys.failures, *(id_ for id_, _ in part)) for part in parts]
        replies = self._scripts.each(calls)
        rows = [
            read_failure(id_, at, row)
            for part, reply in zip(parts, replies, strict=True)
            for (id_, at), row in zip(part, reply(), strict=True)
        ]
        return [row for row in rows if row is not None]

    def _oldest(self) -> int:
        """Return the time in ms before which failures are too old: a worker may not have removed them yet."""
        kept = self.kept()
        return 0 if kept is None else max(0, now_ms(self._scripts, self._clock) - round(kept.days * 86_400_000))


def ids_by_time(
    scripts: Scripts, key: bytes, after: str | None, limit: int, *, low: int, until: datetime | None
) -> tuple[list[tuple[bytes, int]], str | None]:
    """Return up to *limit* ids in the sorted set *key* with their times, the last one first, and the next cursor.

    They are not before *low*, in ms, and before *until*. Raises InvalidValueError for an invalid cursor.
    """
    start = 0 if until is None else int(scripts.command("ZCOUNT", key, to_ms(until), "+inf"))
    if after is not None:
        parts = _CURSOR.fullmatch(after)
        if parts is None:
            raise InvalidValueError(f"after={after[:60]!r}: must be the cursor of a page")
        rank = scripts.command("ZREVRANK", key, id_bytes(parts[2]))
        if rank is None:
            # It is gone: continue with those of its millisecond.
            rank = int(scripts.command("ZCOUNT", key, f"({parts[1]}", "+inf")) - 1
        start = max(start, int(rank) + 1)
    reply = scripts.command("ZREVRANGE", key, start, start + limit - 1, "WITHSCORES")
    times = [(id_, at) for id_, score in pairs(reply) if (at := _score(score)) >= low]
    return times, time_cursor(*times[-1]) if len(times) == limit else None


def time_cursor(id_: bytes, at: int) -> str:
    """Return the cursor that continues after an id of :func:`ids_by_time`."""
    return f"{at}.{id_text(id_)}"


def _score(at: Any) -> int:
    return int(min(max(0.0, float(at)), END_OF_CALENDAR_MS))
