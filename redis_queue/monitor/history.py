"""RunHistory: what was executed in each minute of two days, and in each hour of ninety."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from redis_queue.basics.times import from_ms
from redis_queue.errors import InvalidValueError
from redis_queue.monitor.model import Period, Series, Tally
from redis_queue.monitor.report import OTHER, SEPARATOR
from redis_queue.monitor.rows import read_tally
from redis_queue.store.chunks import CHUNK, check_limit, chunks
from redis_queue.store.connection import Client
from redis_queue.store.keys import MonitorKeys
from redis_queue.store.scripts import Clock, Scripts, now_ms, pairs, server_clock

MAX_MINUTES: Final = 2 * 1440
MAX_HOURS: Final = 90 * 24

ALL: Final = b"0"
"""Number under which the counts of all series are added up."""

REST: Final = b"1"
"""Number of the series beyond the limit."""

SPAN_DAYS: Final = 30

MAX_BY_MINUTE: Final = 120
"""Maximum minutes that are added up minute by minute."""

_SERIES: Final = re.compile(rb"(\d{1,15}) (\d{1,7})")
_MINUTE: Final = re.compile(rb"\d{1,11}")
_PART: Final = re.compile(rb"(\d{1,2})=([^;]*)")

_EMPTY: Final = Tally()


ReadStored = Callable[[Sequence[bytes], int, int], dict[bytes, dict[int, list[bytes]]]]


class RunHistory:
    """Reads the counts of all workers under *prefix*, by minute and hour of the server's clock in UTC.

    All methods raise StoreError. Lossy by design: what a killed worker had not reported is missing, at most a second.
    """

    def __init__(self, client: Client, prefix: str, clock: Clock = server_clock) -> None:
        self._scripts = Scripts(client)
        self._keys = MonitorKeys(prefix)
        self._clock = clock

    def series(self) -> list[Series]:
        """Return the series with runs in the last 90 days, by name."""
        return sorted(self._numbers().values())

    def minutes(self, limit: int = 60, series: Collection[Series] | None = None) -> list[Period]:
        """Return the counts of the last *limit* (1 to 2,880) minutes, oldest first, including the current one.

        *series*: only the sum of these; default: the sum of all. Raises InvalidValueError.
        """
        check_limit(limit, MAX_MINUTES)
        return self._periods(limit, series, 1, self._stored_minutes)

    def hours(self, limit: int = 24, series: Collection[Series] | None = None) -> list[Period]:
        """Return the counts of the last *limit* (1 to 2,160) hours; as :meth:`minutes`."""
        check_limit(limit, MAX_HOURS)
        return self._periods(limit, series, 60, self._stored_hours)

    def totals(self, minutes: int, *, before: int = 0, times: bool = True) -> dict[Series, Tally]:
        """Return the counts of each series in the last *minutes* (1 to 129,600), without those that had no runs.

        With *before*, those that it would have returned so many minutes ago. More than two hours are rounded to full
        hours, more than two days to full days. Without *times* they have no histograms, which is faster. Raises
        InvalidValueError.
        """
        if isinstance(minutes, bool) or not isinstance(minutes, int) or not 1 <= minutes <= MAX_HOURS * 60:
            raise InvalidValueError(f"minutes={minutes!r}: must be 1 to {MAX_HOURS * 60}")
        if isinstance(before, bool) or not isinstance(before, int) or not 0 <= before <= MAX_HOURS * 60:
            raise InvalidValueError(f"before={before!r}: must be 0 to {MAX_HOURS * 60}")
        names = {**self._numbers(), REST: OTHER}
        now, open_minute, counts = self._current(list(names))
        last = now - before
        first = last - minutes + 1
        if minutes <= MAX_BY_MINUTE and now - first < MAX_MINUTES:
            found = _flat(self._stored_minutes(list(names), first, last))
        elif minutes <= MAX_MINUTES:
            found = _flat(self._stored_hours(list(names), first // 60, last // 60))
        else:
            found = self._stored_days(list(names), first // 1440, last // 1440)
        # Read before: a minute that is closed in between is counted twice for a moment, rather than not at all.
        if first <= open_minute <= last:
            for number, text in counts.items():
                found.setdefault(number, []).append(text)
        return _tallies(names, found, times=times)

    def counts(self, minutes: int = 60) -> dict[Series, list[Tally]]:
        """Return the counts, without times, of each series in each of the last *minutes* (1 to 120), oldest first.

        Series without runs in this time are left out. Raises InvalidValueError.
        """
        check_limit(minutes, MAX_BY_MINUTE, name="minutes")
        names = {**self._numbers(), REST: OTHER}
        last, open_minute, counts = self._current(list(names))
        span = range(last - minutes + 1, last + 1)
        stored = self._stored_minutes(list(names), span[0], span[-1])
        for number, text in counts.items():
            stored.setdefault(number, {}).setdefault(open_minute, [text])
        found = {
            series: [read_tally(stored.get(number, {}).get(minute, ()), times=False) for minute in span]
            for number, series in names.items()
        }
        return {series: values for series, values in found.items() if any(tally != _EMPTY for tally in values)}

    def all_time(self) -> dict[Series, Tally]:
        """Return the all-time counts of each series; they never decrease while the series is in use."""
        names = {**self._numbers(), REST: OTHER}
        _, _, counts = self._current(list(names))
        values = self._fields(self._keys.totals, list(names))
        return _tallies(names, {n: [values.get(n, b""), counts.get(n, b"")] for n in names})

    def _periods(self, limit: int, series: Collection[Series] | None, minutes: int, read: ReadStored) -> list[Period]:
        """Return the last *limit* periods of so many *minutes*, as *read* returns those that are closed."""
        names = {**self._numbers(), REST: OTHER} if series is not None else {}
        numbers = [ALL] if series is None else [number for number, found in names.items() if found in series]
        now, open_minute, counts = self._current(numbers)
        last = now // minutes
        periods = range(last - limit + 1, last + 1)
        stored = read(numbers, periods[0], last)
        found: dict[int, list[bytes]] = {}
        for number in numbers:
            rows = stored.get(number, {})
            if minutes > 1 or open_minute not in rows:
                rows.setdefault(open_minute // minutes, []).append(counts.get(number, b""))
            for period, texts in rows.items():
                found.setdefault(period, []).extend(texts)
        return [Period(from_ms(one * minutes * 60_000), read_tally(found.get(one, ()))) for one in periods]

    def _numbers(self) -> dict[bytes, Series]:
        rows = pairs(self._scripts.command("HGETALL", self._keys.series))
        found: dict[bytes, Series] = {}
        for name, value in rows:
            task, separator, queue = name.decode(errors="replace").partition(SEPARATOR)
            parts = _SERIES.fullmatch(value)
            if separator and parts is not None:
                found[parts[1]] = Series(task, queue)
        return found

    def _current(self, numbers: Sequence[bytes]) -> tuple[int, int, dict[bytes, bytes]]:
        """Return this minute, the minute whose counts are open, and the open counts of *numbers*."""
        values = self._fields(self._keys.current, [b"minute", *numbers])
        minute = now_ms(self._scripts, self._clock) // 60_000
        opened = values.pop(b"minute", b"")
        return minute, int(opened) if _MINUTE.fullmatch(opened) else minute, values

    def _stored_minutes(self, numbers: Sequence[bytes], first: int, last: int) -> dict[bytes, dict[int, list[bytes]]]:
        found: dict[bytes, dict[int, list[bytes]]] = {}
        for hour in range(first // 60, last // 60 + 1):
            day = hour // 24
            fields = {b"%b:%d" % (number, hour % 24): number for number in numbers}
            values = self._of_period(self._keys.minutes[day % len(self._keys.minutes)], b"day", day, list(fields))
            for field, text in values.items():
                _add_parts(found.setdefault(fields[field], {}), text, hour * 60, range(first, last + 1))
        return found

    def _stored_hours(self, numbers: Sequence[bytes], first: int, last: int) -> dict[bytes, dict[int, list[bytes]]]:
        found: dict[bytes, dict[int, list[bytes]]] = {}
        for number, day, text in self._of_days(numbers, first // 24, last // 24, b"%b:%d"):
            _add_parts(found.setdefault(number, {}), text, day * 24, range(first, last + 1))
        return found

    def _stored_days(self, numbers: Sequence[bytes], first: int, last: int) -> dict[bytes, list[bytes]]:
        found: dict[bytes, list[bytes]] = {}
        for number, _, text in self._of_days(numbers, first, last, b"%b:%d:sum"):
            found.setdefault(number, []).append(text)
        return found

    def _of_days(
        self, numbers: Sequence[bytes], first: int, last: int, form: bytes
    ) -> Iterator[tuple[bytes, int, bytes]]:
        for span in range(first // SPAN_DAYS, last // SPAN_DAYS + 1):
            days = range(max(first, span * SPAN_DAYS), min(last, span * SPAN_DAYS + SPAN_DAYS - 1) + 1)
            fields = {form % (number, day): (number, day) for number in numbers for day in days}
            key = self._keys.hours[span % len(self._keys.hours)]
            for field, text in self._of_period(key, b"span", span, list(fields)).items():
                yield *fields[field], text

    def _of_period(self, key: bytes, name: bytes, period: int, fields: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return *fields* of a key of a ring, if it holds this *period*."""
        values = self._fields(key, [name, *fields])
        return values if values.pop(name, None) == b"%d" % period else {}

    def _fields(self, key: bytes, fields: Sequence[bytes]) -> dict[bytes, bytes]:
        calls = [self._scripts.read_call("HMGET", key, *chunk) for chunk in chunks(fields, CHUNK)]
        values = [value for reply in self._scripts.each(calls) for value in reply()]
        return {field: value for field, value in zip(fields, values, strict=True) if value is not None}


def _add_parts(rows: dict[int, list[bytes]], text: bytes, start: int, periods: range) -> None:
    """Add the counts of each of *periods* in *text*, whose parts are numbered from *start* on."""
    for part, counts in _PART.findall(text):
        if (period := start + int(part)) in periods:
            rows.setdefault(period, []).append(counts)


def _flat(stored: Mapping[bytes, Mapping[int, Iterable[bytes]]]) -> dict[bytes, list[bytes]]:
    return {number: [text for texts in rows.values() for text in texts] for number, rows in stored.items()}


def _tallies(
    names: Mapping[bytes, Series], found: Mapping[bytes, Iterable[bytes]], *, times: bool = True
) -> dict[Series, Tally]:
    tallies = {series: read_tally(found.get(number, ()), times=times) for number, series in names.items()}
    return {series: tally for series, tally in tallies.items() if tally != _EMPTY}
