"""Rules of periodic tasks as plain data: read from what users write, and checked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from typing import Any, Final

from celery.schedules import crontab, schedule, solar

from redis_queue.basics.times import MAX_DELAY_MS, duration_ms, exact_span_text, read_span
from redis_queue.celery.schedules.calendar import Calendar, solar_events
from redis_queue.errors import InvalidDelayError, InvalidValueError, quoted
from redis_queue.store.codec import read_document

Rule = dict[str, Any]
"""Plain data: ``{"every": 10000}`` in ms, ``{"cron": "30 2 * * *"}``, ``{"solar": ["sunset", 51.5, -0.1]}``.

``"relative": True`` rounds an interval to its unit, as Celery does. ``"weekdays": [5]`` (0 is Sunday) restricts a cron
rule further: Celery's crontab needs the day of month *and* the weekday to match, cron one of them.
"""

MAX_RULES: Final = 10
MAX_EXCLUDED: Final = 400
MAX_TEXT: Final = 200
"""Maximum characters of one rule."""

MIN_EVERY_MS: Final = 50
WEEKDAYS: Final = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
ONLY_DATA: Final = "only data is stored: use schedule, crontab or solar of Celery, seconds, a timedelta, or text"
ROUNDED: Final = ", rounded to its unit"
FORMS: Final = "expected five cron fields, such as '30 2 * * *', six with seconds first, or 'every 10 s'"

_CRON: Final = re.compile(r"[0-9A-Za-z*,/#-]+(?: [0-9A-Za-z*,/#-]+){4,5}", re.ASCII)
_FIELDS: Final = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def read_rules(value: Any) -> list[Rule]:
    """Return the rules that a user wrote as plain JSON data.

    *value* is one rule or a list of at most 10. A rule is a ``schedule``, ``crontab`` or ``solar`` of Celery, seconds,
    a timedelta, a cron expression, text such as ``every 1d12h`` or what `rules_text` returns, or the data of a rule. An
    interval is 50 ms to ten years. ``nowfunc`` and the time zone of a crontab are ignored.

    Raises InvalidValueError for anything else, for subclasses and functions, and for rules that are never due.
    Raises ConfigurationError if cronsim or ephem is required and missing.
    """
    return check_rules([_read(one) for one in (value if isinstance(value, list | tuple) else [value])])


def check_rules(data: Any) -> list[Rule]:
    """Return rules from an untrusted JSON document as new, equal data. Raises what `read_rules` raises."""
    if not isinstance(data, list) or not 1 <= len(data) <= MAX_RULES:
        raise InvalidValueError(f"rules={quoted(data)}: must be 1 to {MAX_RULES} rules")
    return [_check(rule) for rule in data]


def rules_text(rules: Sequence[Mapping[str, Any]]) -> str:
    """Return *rules* for people: ``every 10 s; 30 2 * * *; sunset at 51.5, -0.1``."""
    return "; ".join(map(_text, rules))


def read_exclusions(value: Any) -> list[str]:
    """Return dates (dates or ISO 8601 texts; one or a collection) as sorted texts, each once.

    Raises InvalidValueError for anything but dates, and for more than 400.
    """
    several = value if isinstance(value, list | tuple | set | frozenset) else [value]
    if len(several) > MAX_EXCLUDED:
        raise InvalidValueError(f"exclude: must be at most {MAX_EXCLUDED} dates, got {len(several)}")
    return sorted(set(map(_date, several)))


def _read(value: Any) -> Any:
    kind = type(value)
    if kind is schedule:
        return _interval(value.run_every) | ({"relative": True} if value.relative else {})
    if kind is crontab:
        return _from_crontab(value)
    if kind is solar:
        return {"solar": [value.event, value.lat, value.lon]}
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, int | float | timedelta):
        return _interval(value)
    if kind is dict:
        return value
    raise InvalidValueError(f"schedule={quoted(value)}: {ONLY_DATA}")


def _interval(value: Any) -> Rule:
    return {"every": _check_every(duration_ms(value, name="every"))}


def _from_text(text: str) -> Rule:
    text = " ".join(text[: 2 * MAX_TEXT].split())
    if text.lower().startswith("every"):
        found = read_span(text[len("every") :].removesuffix(ROUNDED))
        if found is None or found < timedelta(0):
            raise InvalidDelayError(f"schedule={quoted(text)}: expected a span such as 'every 10 s' or 'every 1d12h'")
        return _interval(found) | ({"relative": True} if text.endswith(ROUNDED) else {})
    if " at " in text:
        event, _, place = text.partition(" at ")
        try:
            return {"solar": [event, *read_document(f"[{place}]")]}
        except ValueError:
            raise InvalidValueError(f"solar={quoted(text)}: latitude and longitude must be numbers") from None
    cron, _, days = text.partition(" only on ")
    weekdays = [WEEKDAYS.index(day) if day in WEEKDAYS else day for day in days.split(", ")]
    return {"cron": cron} | ({"weekdays": weekdays} if days else {})


def _from_crontab(value: Any) -> Rule:
    written = [_field(name, getattr(value, f"_orig_{name}"), getattr(value, name)) for name in _FIELDS]
    if len(value.day_of_week) == len(WEEKDAYS):
        written[4] = "*"
    if "*" in (written[2], written[4]):
        return {"cron": " ".join(written)}
    return {"cron": " ".join([*written[:4], "*"]), "weekdays": sorted(value.day_of_week)}


def _field(name: str, written: Any, numbers: Iterable[int]) -> str:
    if isinstance(written, str) and re.fullmatch(r"\*(/\d+)?", written):
        return written
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    if not runs:
        raise InvalidValueError(f"{name}={quoted(written)}: must not be empty")
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)  # noqa: PLR2004


def _check(rule: Any) -> Rule:
    keys = frozenset(rule) if isinstance(rule, dict) else frozenset()
    if keys in ({"every"}, {"every", "relative"}) and type(rule.get("relative", False)) is bool:
        return {"every": _check_every(rule["every"])} | ({"relative": True} if rule.get("relative") else {})
    if keys in ({"cron"}, {"cron", "weekdays"}):
        return _check_cron(rule)
    if keys == {"solar"}:
        return _check_solar(rule["solar"])
    raise InvalidValueError(f"rule {quoted(rule)}: expected 'every', 'cron' or 'solar', and their options")


def _check_every(ms: Any) -> int:
    if type(ms) is not int or not MIN_EVERY_MS <= ms <= MAX_DELAY_MS:
        raise InvalidDelayError(f"every={quoted(ms)} ms: must be {MIN_EVERY_MS} ms to ten years")
    return ms


def _check_cron(rule: Rule) -> Rule:
    text = rule["cron"]
    if not isinstance(text, str) or len(text) > MAX_TEXT or not _CRON.fullmatch(text):
        raise InvalidValueError(f"schedule={quoted(text)}: {FORMS}, at most {MAX_TEXT} characters; {ONLY_DATA}")
    checked: Rule = {"cron": text}
    if "weekdays" in rule:
        days = rule["weekdays"]
        known = isinstance(days, list) and 0 < len(days) <= len(WEEKDAYS)
        if not known or not all(type(day) is int and 0 <= day < len(WEEKDAYS) for day in days):
            raise InvalidValueError(f"weekdays={quoted(days)}: must be a list of numbers from 0 (Sunday) to 6")
        if text.count(" ") != len(_FIELDS) - 1 or not text.endswith(" *"):
            raise InvalidValueError(f"cron={quoted(text)}: with weekdays, must be five fields of which the last is '*'")
        checked["weekdays"] = sorted(set(days))
    if Calendar([checked], "UTC").next(0) is None:
        raise InvalidValueError(f"cron={quoted(text)}: is due on no date of 50 years; change its day or month")
    return checked


def _check_solar(data: Any) -> Rule:
    if not isinstance(data, list) or len(data) != 3 or not isinstance(data[0], str):  # noqa: PLR2004
        raise InvalidValueError(f"solar={quoted(data)}: must be an event, a latitude and a longitude")
    if not all(type(number) in (int, float) and math.isfinite(number) for number in data[1:]):
        raise InvalidValueError(f"solar={quoted(data)}: latitude and longitude must be numbers")
    solar_events(*data)
    return {"solar": list(data)}


def _text(rule: Mapping[str, Any]) -> str:
    try:
        if "solar" in rule:
            return "{} at {}, {}".format(*rule["solar"])
        if "cron" in rule:
            days = ", ".join(WEEKDAYS[day] for day in rule.get("weekdays", ()))
            return f"{rule['cron']} only on {days}" if days else str(rule["cron"])
        return f"every {exact_span_text(rule['every'])}{ROUNDED if rule.get('relative') else ''}"
    except (LookupError, TypeError, AttributeError):
        return quoted(rule)  # another program may have stored anything


def _date(value: Any) -> str:
    if type(value) is date:
        return value.isoformat()
    if isinstance(value, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", value, re.ASCII):
        with suppress(ValueError):
            return date.fromisoformat(value).isoformat()
    raise InvalidValueError(f"exclude={quoted(value)}: must be only dates, such as '2026-12-25'")
