"""The calendar of periodic tasks: when their rules are due by the wall clock of a time zone."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from functools import cached_property, lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal
from zoneinfo import ZoneInfo

from celery.exceptions import ImproperlyConfigured
from celery.schedules import ParseException, crontab, solar
from celery.utils.time import delta_resolution

from redis_queue.basics.options import did_you_mean
from redis_queue.basics.times import EPOCH, to_ms
from redis_queue.errors import ConfigurationError, InvalidValueError, quoted
from redis_queue.schedules.state import LAST_MS

MAX_ZONE: Final = 64
DAY: Final = timedelta(days=1)
DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000

YEAR_MS: Final = 366 * DAY_MS

HORIZON_MS: Final = 50 * YEAR_MS
"""A rule without a due time in about 50 years has none: cronsim stops there too, and 29 February is a given weekday
every 40 years or more often."""


def check_timezone(name: Any) -> str:
    """Return *name* if this host has a time zone of that name. Raises InvalidValueError."""
    expected = "must be a name such as 'Europe/Berlin'"
    if not isinstance(name, str) or len(name) > MAX_ZONE:
        raise InvalidValueError(f"timezone={quoted(name)}: {expected}")
    if name not in _zones():
        hint = did_you_mean(name, sorted(_zones()), most=3, otherwise=expected)
        raise InvalidValueError(f"timezone={quoted(name)}: unknown, {hint}")
    return name


def tzdata_version() -> str:
    """Return the IANA version of the time zone data that this host uses, such as ``2026a``; "" if unknown.

    As in zoneinfo, data of the system has precedence over the package tzdata.
    """
    for folder in map(Path, zoneinfo.TZPATH):
        if (folder / "UTC").is_file():
            for name in ("tzdata.zi", "+VERSION", "version"):
                with suppress(OSError), (folder / name).open(encoding="ascii", errors="replace") as file:
                    return file.readline(80).removeprefix("# version").strip()
            return ""
    try:
        return str(import_module("tzdata").IANA_VERSION)
    except ImportError:
        return ""


@dataclass(frozen=True)
class Calendar:
    """Due times of *rules*, which `read_rules` or `check_rules` returned, without the local dates *exclude*.

    *timezone* is for cron rules, relative intervals and dates. When clocks change, cron rules with a wildcard as
    minute or hour are due at each real minute that matches, others once per day. With *dst* ``celery``, rules that a
    crontab of Celery can express are due when Celery says, which passes over a repeated hour.

    Raises InvalidValueError for an unknown time zone or *dst*.
    """

    rules: Sequence[Mapping[str, Any]]
    timezone: str
    exclude: Sequence[str] = ()
    dst: Literal["wall", "celery"] = "wall"

    def __post_init__(self) -> None:
        check_timezone(self.timezone)
        if self.dst not in ("wall", "celery"):
            raise InvalidValueError(f"dst={quoted(self.dst)}: must be 'wall' or 'celery'")

    def next(self, after_ms: int, anchor_ms: int | None = None) -> int | None:
        """Return the first due time after *after_ms* (ms since the epoch); None if there is none in 50 years.

        Intervals are due whole multiples of their length before and after *anchor_ms*, by default *after_ms*.
        """
        after = max(after_ms, 0)
        if after > LAST_MS:
            return None
        anchor = after if anchor_ms is None else anchor_ms
        found = (self._next_known(number, after, anchor) for number in range(len(self.rules)))
        return min((due for due in found if due is not None), default=None)

    def occurrences(self, after_ms: int, until_ms: int, limit: int, anchor_ms: int | None = None) -> list[int]:
        """Return up to *limit* due times after *after_ms*, until *until_ms* inclusive; *anchor_ms* as in `next`."""
        anchor = after_ms if anchor_ms is None else anchor_ms
        found: list[int] = []
        due = self.next(after_ms, anchor)
        while due is not None and due <= until_ms and len(found) < limit:
            found.append(due)
            due = self.next(due, anchor)
        return found

    @cached_property
    def _zone(self) -> tzinfo:
        return timezone.utc if self.timezone == "UTC" else ZoneInfo(self.timezone)

    @cached_property
    def _excluded(self) -> Mapping[date, date]:
        """The first day after each excluded one that is not excluded."""
        found: dict[date, date] = {}
        for day in sorted(map(date.fromisoformat, self.exclude), reverse=True):
            found[day] = found.get(day + DAY, day + DAY)
        return found

    @cached_property
    def _found(self) -> dict[int, tuple[int, int, int, int | None]]:
        """What was found last of each rule: its anchor, the times from which and until which it holds, the due time."""
        return {}

    def _next_known(self, number: int, after: int, anchor: int) -> int | None:
        rule = self.rules[number]
        by = anchor if "every" in rule else 0
        known = self._found.get(number)
        if known is None or known[0] != by or not known[1] <= after < known[2]:
            due = self._next_of(rule, after, anchor)
            known = self._found[number] = by, after, after + YEAR_MS if due is None else due, due
        return known[3]

    def _next_of(self, rule: Mapping[str, Any], after: int, anchor: int) -> int | None:
        due = self._step(rule, after, anchor)
        while due is not None and due <= after + HORIZON_MS:
            day = self._local(due).date()
            if self._allows(rule, day):
                return due
            later = self._day_after(rule, day)
            due = None if later is None else self._step(rule, max(due, self._midnight(later) - 1), anchor)
        return None

    def _allows(self, rule: Mapping[str, Any], day: date) -> bool:
        return day not in self._excluded and day.isoweekday() % 7 in rule.get("weekdays", range(7))

    def _day_after(self, rule: Mapping[str, Any], day: date) -> date | None:
        """Return the first day after *day* on which *rule* may be due."""
        if "cron" not in rule:
            return self._excluded.get(day, day + DAY)
        of_days = " ".join(["0 0", *rule["cron"].split(" ")[-3:]])
        found = _next_cron(of_days, datetime.combine(day, time(), timezone.utc), partial(self._allows, rule))
        return None if found is None else (EPOCH + timedelta(milliseconds=found)).date()

    def _midnight(self, day: date) -> int:
        return to_ms(datetime.combine(day, time(), self._zone))

    def _step(self, rule: Mapping[str, Any], after: int, anchor: int) -> int | None:
        if "solar" in rule:
            return _next_solar(rule["solar"], after)
        if "cron" in rule:
            due = self._as_celery(rule, after) if self.dst == "celery" else None
            return due or _next_cron(rule["cron"], self._local(after), partial(self._allows, rule))
        if rule.get("relative"):
            return self._next_relative(rule["every"], after, anchor)
        every: int = rule["every"]
        return after + every - (after - anchor) % every

    def _local(self, ms: int) -> datetime:
        return (EPOCH + timedelta(milliseconds=ms)).astimezone(self._zone)

    def _next_relative(self, every: int, after: int, anchor: int) -> int:
        length = timedelta(milliseconds=every)
        count = (after - anchor) // every
        while True:
            # As in Celery, days are of the calendar, and shorter intervals of real time.
            whole = self._local(anchor) + length * count if length >= DAY else self._local(anchor + every * count)
            due = to_ms(delta_resolution(whole, length))
            if due > after:
                return due
            count += 1

    def _as_celery(self, rule: Mapping[str, Any], after: int) -> int | None:
        found = []
        for one in _crontabs(rule["cron"], self._zone):
            # In a repeated hour Celery answers with times of its first pass: follow these until they are past.
            due, before = 0, after
            while due <= after:
                at = self._local(before)
                one.nowfun = lambda at=at: at
                try:
                    last, delta, _ = one.remaining_delta(at)
                except (RuntimeError, ValueError):  # Celery found no date in the calendar
                    break
                due = to_ms(last + delta)
                if due <= before and before != after:
                    break
                before = due
            if due > after:
                found.append(due)
        return min(found, default=None)


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    # "localtime" differs between hosts.
    return frozenset(zoneinfo.available_timezones()) - {"localtime"}


@lru_cache(maxsize=1)
def _cronsim() -> tuple[Any, type[Exception]]:
    try:
        from cronsim import CronSim, CronSimError  # noqa: PLC0415 - an extra
    except ImportError:
        raise ConfigurationError("cron rules need cronsim: pip install 'celery-redis-queue[schedules]'") from None

    class WholeHours(CronSim):
        """A simulation of the days that *allows* returns True for.

        It sees the first half of an hour after clocks changed by half an hour: the original goes on in steps of an
        hour, and so stays at the half hour.
        """

        allows: Callable[[date], bool]

        def match_day(self, d: date) -> bool:
            return super().match_day(d) and self.allows(d)

        def advance_hour(self) -> bool:
            before = self.dt
            moved = super().advance_hour()
            whole = self.dt.replace(minute=0)
            if moved and self.dt.minute and whole.tzinfo is not None:
                real = whole.astimezone(timezone.utc)
                is_real = real.astimezone(whole.tzinfo).replace(tzinfo=None) == whole.replace(tzinfo=None)
                if is_real and real > before.astimezone(timezone.utc):
                    self.dt = whole
            return moved

    return WholeHours, CronSimError


def _next_cron(expression: str, local: datetime, allows: Callable[[date], bool]) -> int | None:
    simulation, error = _cronsim()
    after = to_ms(local)
    try:
        times = simulation(expression, local)
        times.allows = allows
    except error as reason:
        raise InvalidValueError(f"cron={quoted(expression)}: {reason}; correct this field") from None
    # In the second pass of a repeated hour, cronsim returns times of the first: they are over.
    return next((due for found in times if (due := to_ms(found)) > after), None)


def _crontabs(expression: str, zone: tzinfo) -> list[Any]:
    """Return crontabs of Celery that together mean *expression*; none if Celery cannot express it."""
    minute, hour, day, month, weekday, *more = expression.split(" ")
    days = [(day, weekday)] if day.startswith("*") or weekday.startswith("*") else [(day, "*"), ("*", weekday)]
    if more:
        return []
    try:
        found = [crontab(minute, hour, weekday, day, month) for day, weekday in days]
    except (ParseException, ValueError):
        return []
    for one in found:
        one.tz, one.utc_enabled = zone, True  # else Celery reads them from the current app
    return found


def solar_events(event: str, latitude: float, longitude: float) -> Any:
    """Return Celery's object for a solar rule.

    Raises InvalidValueError for invalid arguments, ConfigurationError if ephem is missing.
    """
    try:
        return solar(event, latitude, longitude, nowfun=lambda: EPOCH)
    except (ImportError, ImproperlyConfigured):
        raise ConfigurationError("solar rules need ephem: pip install ephem") from None
    except ValueError as reason:
        raise InvalidValueError(f"solar={quoted([event, latitude, longitude])}: {reason}") from None


def _next_solar(place: Sequence[Any], after: int) -> int | None:
    rule = solar_events(*place)
    sun, options = rule.ephem.Sun(), {"use_center": True} if rule.use_center else {}
    # Results for one event differ by up to a second with the start of the search: always start at midnight.
    start = after - after % DAY_MS
    while start <= after + YEAR_MS:
        day = start - start % DAY_MS
        try:
            begin = rule.ephem.Date((EPOCH + timedelta(milliseconds=start)).replace(tzinfo=None))
            found = getattr(rule.cal, rule.method)(sun, start=begin, **options).datetime()
        except rule.ephem.CircumpolarError:
            start = day + DAY_MS
            continue
        due = to_ms(found.replace(tzinfo=timezone.utc))
        if due >= day + DAY_MS:
            start = due - due % DAY_MS
        elif due > after:
            return due
        else:
            start = min(due + HOUR_MS, day + DAY_MS)
    return None
