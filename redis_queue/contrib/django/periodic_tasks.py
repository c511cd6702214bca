"""Read the periodic tasks of django-celery-beat from its tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final

import django
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError
from django.utils.timezone import is_naive, make_aware

from redis_queue.basics.times import to_ms
from redis_queue.celery.schedules.rules import Rule, read_rules
from redis_queue.celery.schedules.runs import calendar_of
from redis_queue.celery.schedules.transfer import CRONTAB_FIELDS, SourceSchedule, crontab_rules, read_each
from redis_queue.errors import ConfigurationError, InvalidValueError
from redis_queue.schedules.definition import Definition, Dst
from redis_queue.store.chunks import CHUNK
from redis_queue.store.codec import read_document

if TYPE_CHECKING:
    from redis_queue.celery.schedules.schedules import Schedules

KINDS: Final = ("interval", "crontab", "solar", "clocked")
PERIODS: Final = ("days", "hours", "minutes", "seconds", "microseconds")
OPTIONS: Final = ("queue", "exchange", "routing_key", "priority")
YEAR_MS: Final = 365 * 86_400_000


def periodic_tasks(schedules: Schedules, dst: Dst = "wall") -> Iterator[SourceSchedule]:
    """Yield the rows of PeriodicTask in this project's database, by name. Raises ConfigurationError."""
    try:
        if not apps.ready:
            django.setup()
        rows = apps.get_model("django_celery_beat", "PeriodicTask")._default_manager
        yield from read_each(
            ((row.name, row) for row in rows.select_related(*KINDS).order_by("name").iterator(chunk_size=CHUNK)),
            lambda name, row: _Row(schedules, row, dst).read(name),
        )
    except (DatabaseError, LookupError, ImproperlyConfigured) as error:
        raise ConfigurationError(f"the periodic tasks of django-celery-beat cannot be read: {error}") from error


class _Row:
    """A row of PeriodicTask."""

    def __init__(self, schedules: Schedules, row: Any, dst: Dst) -> None:
        self._schedules = schedules
        self._row = row
        self._dst = dst
        self._now = schedules.store.now()

    def read(self, name: str) -> SourceSchedule:
        """Return it as a schedule. Raises InvalidValueError if it cannot be one."""
        row = self._row
        kinds = [kind for kind in KINDS if getattr(row, f"{kind}_id") is not None]
        if len(kinds) != 1:
            raise InvalidValueError(f"it must have one schedule, got {' and '.join(kinds) or 'none'}")
        ends = _ms(row.expires)
        if ends is not None and ends <= self._now:
            raise InvalidValueError(f"it expired at {row.expires.isoformat()}")
        if row.one_off and row.enabled and row.total_run_count:
            raise InvalidValueError("it is a one-off task, which has run")
        is_clocked = kinds == ["clocked"]
        definition = self._schedules.definition(
            name,
            row.task,
            args=read_document(row.args or "[]"),
            kwargs=read_document(row.kwargs or "{}"),
            options=self._options(),
            rules=self._rules(kinds[0]),
            timezone="UTC" if is_clocked else self._timezone(),
            dst=self._dst,
            until=None if ends is None else ends - 1,
            max_runs=1 if row.one_off or is_clocked else None,
        )
        if is_clocked:
            return SourceSchedule(name, definition, due=self._clocked(), since=self._now, paused=not row.enabled)
        return self._continued(definition)

    def _continued(self, definition: Definition) -> SourceSchedule:
        row, name = self._row, definition.name
        start, last = _ms(row.start_time), _ms(row.last_run_at or row.date_changed, naive=timezone.utc)
        times = calendar_of(definition)
        if start is not None and (not row.last_run_at or (times.next(last or 0, last) or start) < start):
            due = times.next(start - 1, start)
            return SourceSchedule(name, definition, since=start, due=due, paused=not row.enabled)
        # The row of a disabled task has no last run; enabled again, its intervals begin then.
        return SourceSchedule(name, definition, since=last if row.enabled else None, paused=not row.enabled)

    def _options(self) -> dict[str, Any]:
        row = self._row
        options = {name: value for name in OPTIONS if (value := getattr(row, name)) is not None}
        expires = row.expires.isoformat() if row.expires else row.expire_seconds
        # The scheduler adds this header, and results are stored with it.
        headers = {**read_document(row.headers or "{}"), "periodic_task_name": row.name}
        return {**options, "headers": headers, **({"expires": expires} if expires else {})}

    def _rules(self, kind: str) -> list[Rule]:
        found = getattr(self._row, kind)
        if kind == "crontab":
            return crontab_rules({name: getattr(found, name) for name in CRONTAB_FIELDS})
        if kind == "solar":
            return read_rules({"solar": [found.event, float(found.latitude), float(found.longitude)]})
        if kind == "interval":
            if found.period not in PERIODS:
                raise InvalidValueError(f"period={found.period!r}: must be one of {', '.join(PERIODS)}")
            return read_rules(timedelta(**{found.period: found.every}))
        at = datetime.fromtimestamp(self._clocked() / 1000, timezone.utc)
        return read_rules(f"{at.second} {at.minute} {at.hour} {at.day} {at.month} *")

    def _clocked(self) -> int:
        due = -(-(_ms(self._row.clocked.clocked_time) or 0) // 1000) * 1000
        if due > self._now + YEAR_MS:
            raise InvalidValueError("its time is more than a year away: call the task with an eta instead")
        if due <= self._now and not self._row.enabled:
            raise InvalidValueError("its time has passed, and it is disabled")
        return due

    def _timezone(self) -> str | None:
        aware = getattr(settings, "DJANGO_CELERY_BEAT_TZ_AWARE", True)
        return str(self._row.crontab.timezone) if self._row.crontab_id and aware else None


def _ms(at: datetime | None, naive: Any = None) -> int | None:
    if at is None:
        return None
    return to_ms(make_aware(at, naive) if is_naive(at) else at)
