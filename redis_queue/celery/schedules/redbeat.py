"""Read the schedules of redbeat from its Redis, as plain JSON: nothing in them becomes an object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo

from redis_queue.basics.times import to_ms
from redis_queue.celery.schedules.calendar import check_timezone
from redis_queue.celery.schedules.rules import Rule, read_rules
from redis_queue.celery.schedules.transfer import SourceSchedule, crontab_rules, read_each
from redis_queue.errors import InvalidValueError, quoted
from redis_queue.schedules.definition import MAX_BYTES, Dst
from redis_queue.schedules.store import MAX_SCHEDULES
from redis_queue.store.chunks import CHUNK
from redis_queue.store.codec import read_document
from redis_queue.store.connection import connect
from redis_queue.store.ids import id_text
from redis_queue.store.scripts import Scripts

if TYPE_CHECKING:
    from redis_queue.celery.schedules.schedules import Schedules

TYPES: Final = frozenset({"datetime", "interval", "crontab", "rrule", "weekday"})
"""Tags of values that redbeat turns into objects."""

_PARTS: Final = ("year", "month", "day", "hour", "minute", "second", "microsecond")


class RedBeat:
    """The schedules of redbeat for an app: in its ``redbeat_redis_url`` under its ``redbeat_key_prefix``, or as given.

    Crontabs are in the time zone of the app, as in redbeat. Raises StoreError, and ConfigurationError for the URL.
    """

    def __init__(self, schedules: Schedules, url: str = "", prefix: str = "", dst: Dst = "wall") -> None:
        conf = schedules.app.conf
        self._schedules = schedules
        self._prefix = prefix or conf.first("redbeat_key_prefix", "REDBEAT_KEY_PREFIX") or "redbeat:"
        found = url or conf.first("redbeat_redis_url", "REDBEAT_REDIS_URL") or conf.broker_url
        self._redis = Scripts(connect(str(found), check=False))
        self._dst = dst

    def is_running(self) -> bool:
        """Return whether a beat holds the lock, or held it when it was killed."""
        return bool(self._redis.command("EXISTS", f"{self._prefix}:lock".encode()))

    def __iter__(self) -> Iterator[SourceSchedule]:
        """Yield all entries, by key."""
        keys: list[bytes] = []
        for page in self._redis.scan("ZSCAN", f"{self._prefix}:schedule".encode(), count=CHUNK):
            keys += [key for key, _ in page]
            if len(keys) > MAX_SCHEDULES:
                raise InvalidValueError(f"redbeat has more than {MAX_SCHEDULES:,} entries: delete some first")
        names = ((id_text(key).removeprefix(self._prefix), key) for key in sorted(set(keys)))
        return read_each(names, self._read)

    def _read(self, _: str, key: bytes) -> SourceSchedule:
        if self._redis.command("HSTRLEN", key, "definition") > MAX_BYTES:
            raise InvalidValueError(f"its definition must be at most {MAX_BYTES} bytes")
        definition, meta = self._redis.command("HMGET", key, "definition", "meta")
        if definition is None:
            raise InvalidValueError("its key has no definition: redbeat does not send it, either")
        found = read_document(definition)
        call: dict[str, Any] = {"args": found.get("args") or (), "kwargs": found.get("kwargs") or {}}
        options = found.get("options") or {}
        _check_plain([call["args"], call["kwargs"], options])
        known = self._schedules.definition(
            found["name"], found["task"], **call, options=options, rules=_rules(found["schedule"]), dst=self._dst
        )
        if not found.get("enabled", True):
            return SourceSchedule(known.name, known, paused=True)
        last = _last_run(read_document(meta or b"{}").get("last_run_at"))
        # redbeat sends an entry without a last run at once.
        return SourceSchedule(known.name, known, since=last, due=self._schedules.store.now() if last is None else None)


def _rules(data: Mapping[str, Any]) -> list[Rule]:
    kind, fields = data.get("__type__"), {name: value for name, value in data.items() if name != "__type__"}
    if kind == "crontab":
        return crontab_rules(fields)
    if kind == "interval" and type(fields["every"]) in (int, float):
        (rule,) = read_rules(fields["every"])
        return [{**rule, "relative": True}] if fields.get("relative") else [rule]
    if kind == "rrule":
        raise InvalidValueError("its schedule is a recurrence rule (rrule): write it as cron rules")
    raise InvalidValueError(f"its schedule {quoted(data)} is not a crontab or an interval: put it in code")


def _check_plain(value: Any) -> None:
    if isinstance(value, dict) and value.get("__type__") in TYPES:
        raise InvalidValueError(f"its arguments have a {value['__type__']} in redbeat's form: put it in code")
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        _check_plain(part)


def _last_run(data: Any) -> int | None:
    if data is None:
        return None
    zone = data.get("timezone", "UTC")
    offset = timezone(timedelta(seconds=zone)) if type(zone) in (int, float) else ZoneInfo(check_timezone(zone))
    return to_ms(datetime(*(data[name] for name in _PARTS)).replace(tzinfo=offset))
