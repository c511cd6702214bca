"""The form of a schedule in Django's admin."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar, Final, get_args

from django import forms

from redis_queue.basics.times import duration_ms, from_ms, point_ms
from redis_queue.celery.schedules.calendar import check_timezone
from redis_queue.celery.schedules.rules import read_exclusions, read_rules, rules_text
from redis_queue.celery.schedules.schedules import Schedules
from redis_queue.contrib.django import celery_app
from redis_queue.contrib.django.models import Schedule
from redis_queue.errors import InvalidValueError, RedisQueueError
from redis_queue.schedules.definition import Definition, Dst, Missed, Overlap

DURATIONS: Final = ("window", "overlap_timeout", "jitter")
"""Fields in seconds."""

_AREA: Final = forms.Textarea(attrs={"rows": 3, "cols": 60})


def _choice(kind: Any, text: str) -> forms.ChoiceField:
    return forms.ChoiceField(choices=[(value, value) for value in get_args(kind)], help_text=text)


def _number(**options: Any) -> forms.IntegerField:
    return forms.IntegerField(min_value=1, required=False, **options)


class ScheduleForm(forms.ModelForm):
    """Shows all fields of a definition; its errors are those of ``Schedules.put``."""

    task = forms.CharField(max_length=500)
    rules = forms.CharField(
        widget=_AREA, help_text="One in a line: a cron expression, 'every 10 s', or a rule as JSON."
    )
    timezone = forms.CharField(required=False, help_text="Such as Europe/Berlin; empty: that of the Celery app.")
    args = forms.JSONField(initial=list, required=False, widget=_AREA)
    kwargs = forms.JSONField(initial=dict, required=False, widget=_AREA)
    options = forms.JSONField(initial=dict, required=False, widget=_AREA, help_text="Of apply_async, such as queue.")
    excluded = forms.CharField(required=False, widget=_AREA, help_text="Dates without runs, one in a line.")
    missed = _choice(Missed, "What is sent after an outage.")
    window = forms.FloatField(required=False, help_text="Seconds that a missed run may be late; empty: any time.")
    overlap = _choice(Overlap, "What happens while the run before has not ended.")
    overlap_timeout = forms.FloatField(help_text="Seconds after which a run does not count that no worker reports.")
    jitter = forms.FloatField(help_text="Seconds by which runs are delayed, at most.")
    expires = forms.CharField(required=False, help_text="Seconds after which workers discard a run, or 'next'.")
    until = forms.DateTimeField(required=False)
    max_runs = _number()
    pause_after_failures = _number(help_text="Failures in a row.")
    dst = _choice(Dst, "How crontabs are due where clocks change.")

    class Meta:
        """The name; the other fields are not of the model."""

        model = Schedule
        fields: ClassVar = ["name"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.schedules = Schedules(celery_app())
        known = self.instance.stored.definition if self.instance.stored is not None else None
        for name, value in values_of(known or Definition("new", "new", [])).items():
            if known is not None or name not in ("task", "rules", "timezone"):
                self.initial.setdefault(name, value)

    def clean(self) -> dict[str, Any]:
        """Check the definition as ``put`` does, without storing it."""
        found: dict[str, Any] = super().clean() or {}
        name = found.get("name", self.instance.name)
        if self.errors:
            return found
        try:
            self.definition = definition_of(self.schedules, name, found)
            (stored,) = self.schedules.store.get([name])
            if stored is not None and "name" in self.fields:
                raise InvalidValueError(f"there is a schedule {name!r}: change that one, or choose another name")
            self.schedules.putting(self.definition)(stored)
        except RedisQueueError as error:
            raise forms.ValidationError(str(error)) from error
        return found

    def validate_unique(self) -> None:
        """Do nothing: there is no table."""


def values_of(definition: Definition) -> dict[str, Any]:
    """Return the values of the form for *definition*."""
    found: dict[str, Any] = {name: getattr(definition, name, None) for name in ScheduleForm.declared_fields}
    for name in DURATIONS:
        found[name] = None if found[name] is None else found[name] / 1000
    if isinstance(definition.expires, int):
        found["expires"] = definition.expires / 1000
    found["until"] = None if definition.until is None else from_ms(definition.until)
    found["rules"] = "\n".join(map(_line, definition.rules))
    found["excluded"] = "\n".join(definition.exclude)
    return found


def definition_of(schedules: Schedules, name: str, values: Mapping[str, Any]) -> Definition:
    """Return the definition that the form's *values* say. Raises InvalidValueError."""
    known: dict[str, Any] = {field: values[field] for field in ScheduleForm.declared_fields}
    known["rules"] = read_rules([_rule(line) for line in known["rules"].splitlines() if line.strip()])
    known["timezone"] = check_timezone(known["timezone"]) if known["timezone"] else schedules.timezone()
    known["exclude"] = read_exclusions(known.pop("excluded").split())
    for field in DURATIONS:
        known[field] = None if known[field] is None else duration_ms(known[field], name=field)
    if known["expires"] != "next":
        known["expires"] = duration_ms(_seconds(known["expires"]), name="expires") if known["expires"] else None
    known["until"] = point_ms(known["until"], name="until") if isinstance(known["until"], datetime) else None
    for field, empty in (("args", []), ("kwargs", {}), ("options", {})):
        known[field] = empty if known[field] is None else known[field]
    return schedules.definition(name, **known)


def _line(rule: Mapping[str, Any]) -> str:
    return rules_text([rule]) if len(rule) == 1 and "solar" not in rule else json.dumps(rule)


def _rule(line: str) -> Any:
    try:
        return json.loads(line) if line.lstrip().startswith("{") else line
    except ValueError as error:
        raise InvalidValueError(f"rules: {line[:80]!r} is not JSON: {error}") from error


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidValueError(f"expires={text[:80]!r}: must be seconds, or 'next'") from None
