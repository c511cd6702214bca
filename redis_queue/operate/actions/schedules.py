"""Actions on schedules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, Final, get_args

from redis_queue.basics.options import counted, did_you_mean
from redis_queue.basics.times import duration_ms, exact_span_text, from_ms, point_ms, read_span, read_time, span_text
from redis_queue.celery.schedules.calendar import check_timezone
from redis_queue.celery.schedules.rules import (
    MAX_EXCLUDED,
    MAX_RULES,
    MAX_TEXT,
    read_exclusions,
    read_rules,
    rules_text,
)
from redis_queue.celery.schedules.runs import next_runs
from redis_queue.celery.schedules.schedules import MAX_REASON, Schedule, check_deletable
from redis_queue.errors import ConfigurationError, InvalidDelayError, InvalidValueError
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Action, Argument, Choice, Plan, Result, flag, number
from redis_queue.operate.actions.failures import given_json, json_argument
from redis_queue.operate.actions.queues import One, one_step
from redis_queue.operate.schedules import changes, definition_fields
from redis_queue.schedules.definition import MAX_FAILURES, MAX_RUNS, MAX_TASK, Definition, Dst, Missed, Overlap

NEXT: Final = 3
"""Next runs that a plan shows."""


def put(access: Access, choice: Choice) -> Plan:
    """Store the schedule NAME, which sends a task again and again; it replaces a schedule with this name.

    RULES is a cron expression, "every 10 s", or several of them with ";" between. Options that are not given have their
    defaults, also if the schedule exists. An equal schedule stays as it is; another one begins from now.

    Example: redis-queue -A shop schedules put nightly --rules "30 2 * * *" --task shop.report --timezone Europe/Berlin

    Example: redis-queue -A shop schedules put poll --rules "every 10 s" --task shop.poll --overlap skip --dry-run
    """
    app, schedules, given, name = app_of(access), access.schedules, choice.arguments, choice.scope["name"]
    until, queue, options = given.get("until"), given.get("queue"), given_json(choice, "options") or {}
    known = {field: given[field] for field in _FIELDS if given.get(field) is not None}
    definition = schedules.definition(
        name,
        given["task"],
        args=given_json(choice, "args") or (),
        kwargs=given_json(choice, "kwargs"),
        options=options if queue is None else {**options, "queue": queue},
        rules=given["rules"],
        until=None if until is None else point_ms(_point(until, access), name="until"),
        **known,
    )
    (stored,) = schedules.store.get([name])
    change = schedules.putting(definition)(stored)
    state = None if change is None else change.after
    following = [] if state is None else next_runs(definition, state, NEXT, schedules.store.now())
    app.loader.import_default_modules()
    unknown = definition.task not in app.tasks
    hint = f"The app has no task {definition.task!r}: {did_you_mean(definition.task, app.tasks)}"

    def put_it() -> str:
        schedules.put_definition(definition)
        return _in_force(access, name)

    return one_step(
        f"Store the schedule {name}",
        name,
        put_it,
        "" if state is None else f"Next runs: {', '.join(map(_time, following))}.",
        changes=changes(None if stored is None else stored.definition, definition),
        warnings=[hint] if unknown else (),
        nothing="It is stored already" if change is None else "",
    )


def put_texts(definition: Definition) -> dict[str, str]:
    """Return the arguments with which put stores *definition*, each as its text; "" for those to leave out."""
    options = dict(definition.options)
    queue = options.pop("queue") if isinstance(options.get("queue"), str) else ""
    fields = {**definition_fields(replace(definition, options=options)), "queue": queue}
    return {argument.name: fields.get(argument.name.replace("_", " ")) or "" for argument in PUT}


def pause(access: Access, choice: Choice) -> Plan:
    """Send no more runs of the schedule NAME, until a given time or until it is resumed. Runs that were sent go on.

    Example: redis-queue schedules pause nightly --until 2h --reason "the database moves"
    """
    schedule, until = _found(access, choice), choice.arguments.get("until")
    reason = choice.arguments.get("reason") or ""
    ends = None if until is None else _point(until, access)
    if ends is not None and ends <= access.inspector.now():
        raise InvalidValueError(f"until={ends:%Y-%m-%d %H:%M:%S%z}: must be later than now")
    text = f"No run is sent until {'it is resumed' if ends is None else _time(ends)}. {_next_text(schedule)}."
    nothing = "It is paused already" if schedule.paused and ends == schedule.pause_ends else ""
    change = partial(access.schedules.pause, schedule.name, until=ends, reason=reason)
    return _step(access, "Pause", schedule, change, text, nothing=nothing)


def resume(access: Access, choice: Choice) -> Plan:
    """Send runs of the schedule NAME again. Runs of the time of the pause are skipped and counted.

    With --catch-up they count as missed: the schedule sends none, the latest or all of them.

    Example: redis-queue schedules resume nightly --catch-up
    """
    schedule, catch_up = _found(access, choice), bool(choice.arguments.get("catch_up"))
    definition = schedule.definition
    missed = f"Runs of its pause count as missed; its policy is {definition.missed!r}" if definition else ""
    text = f"{missed if catch_up else 'Runs of its pause are skipped'}. Later ones are sent when they are due."
    change, nothing = partial(access.schedules.resume, schedule.name, catch_up=catch_up), "It is not paused"
    return _step(access, "Resume", schedule, change, text, nothing="" if schedule.paused else nothing)


def run(access: Access, choice: Choice) -> Plan:
    """Send a run of the schedule NAME at once, besides those that are due.

    Example: redis-queue -A shop schedules run nightly
    """
    app_of(access)
    schedule = _found(access, choice)
    text = f"{schedule.task} is called once, at once. {_next_text(schedule)}."
    question = f"Run {schedule.name} now"
    return one_step(question, schedule.name, lambda: f"sent as task {access.schedules.run_now(schedule.name)}", text)


def delete(access: Access, choice: Choice) -> Plan:
    """Delete the schedule NAME, with its counts and events. Runs that were sent go on.

    One of an app's beat_schedule is refused, since workers store it again when they start: remove it there, or pause
    it. With --force it is deleted, for an app that is gone.

    Example: redis-queue schedules delete nightly
    """
    schedule, force = _found(access, choice), bool(choice.arguments.get("force"))
    if not force:
        check_deletable(schedule.name, schedule.definition)
    change = partial(access.schedules.delete, schedule.name, force=force)
    text = f"It has sent {counted(schedule.runs, 'run')}. {_next_text(schedule)}."
    return one_step(
        f"Delete the schedule {schedule.name}", schedule.name, change, text, told=f"{schedule.name} deleted"
    )


def backfill(access: Access, choice: Choice) -> Plan:
    """Send the runs of the schedule NAME that were due within a time of the past, at once: up to 1,000.

    Runs are left out that were sent, as far as its last events tell, and those that it has yet to send or to count:
    resume a paused one first.

    Example: redis-queue -A shop schedules backfill nightly --start -3d --end -1d --dry-run
    """
    app_of(access)
    schedule, now = _found(access, choice), access.inspector.now()
    start, end = _point(choice.arguments["start"], access), _point(choice.arguments.get("end") or now, access)
    if not start < min(end, now):
        raise InvalidValueError(f"start={_time(start)}: must be before the end, {_time(end)}, and before now")
    schedules, name = access.schedules, schedule.name
    dues = schedules.unsent(name, start, end)

    def each() -> Iterator[Result]:
        for due in dues:
            sent = schedules.backfill(name, from_ms(due), from_ms(due + 1))
            yield Result(len(sent), tried=1)

    ends = [_time(from_ms(due)) for due in (*dues[:1], *dues[-1:])]
    first = ", the first one due at {}, the last one at {}".format(*ends) if ends else ""
    return Plan(
        f"Send {counted(len(dues), 'run')} of {name}",
        len(dues),
        each,
        [name],
        f"from {_time(start)} to {_time(end)}",
        text=f"{counted(len(dues), 'run')} of {schedule.task} will be sent at once{first}.",
        nothing="" if dues else "No run was due in this time that was not sent",
        gone="sent meanwhile",
        # A span from now would mean another time when it is confirmed.
        fields={"start": start.isoformat(), "end": end.isoformat()},
    )


def app_of(access: Access) -> Any:
    """Return the app. Raises ConfigurationError without one."""
    if access.app is None:
        raise ConfigurationError("runs are sent by the tasks and settings of a Celery app: name it with -A APP")
    return access.app


def _found(access: Access, choice: Choice) -> Schedule:
    return access.schedules.find(choice.scope["name"])


def _step(access: Access, verb: str, schedule: Schedule, change: Callable[[], object], text: str, **known: Any) -> Plan:
    """Return the plan of one *change* of a readable schedule; its result in words is what is in force then."""
    if schedule.definition is None:
        raise InvalidValueError(f"schedule {schedule.name!r}: {schedule.error}")

    def step() -> str:
        change()
        return _in_force(access, schedule.name)

    return one_step(f"{verb} the schedule {schedule.name}", schedule.name, step, text, **known)


def _in_force(access: Access, name: str) -> str:
    schedule = access.schedules.get(name)
    if schedule is None:
        return f"{name} was deleted meanwhile"
    if schedule.paused:
        return f"{name}: paused{'' if schedule.pause_ends is None else f' until {_time(schedule.pause_ends)}'}"
    return f"{name}: {schedule.rules}. {_next_text(schedule)}"


def _next_text(schedule: Schedule) -> str:
    return f"Next run: {'none' if schedule.next_run is None else _time(schedule.next_run)}"


def _time(at: datetime) -> str:
    return f"{at.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _point(when: datetime | timedelta, access: Access) -> datetime:
    return access.inspector.now() + when if isinstance(when, timedelta) else when


def _rules(text: str) -> list[dict[str, Any]]:
    return read_rules([rule for rule in map(str.strip, re.split("[;\n]", text)) if rule])


def _dates(text: str) -> list[str]:
    return read_exclusions([day for day in text.replace(",", " ").split() if day])


def _when_text(when: datetime | timedelta) -> str:
    return f"{span_text(when)} from now" if isinstance(when, timedelta) else _time(when)


def _argument(
    name: str, text: str, read: Callable[[str], Any] = str, shown: Callable[[Any], object] = str, **known: Any
) -> Argument:
    return Argument(name, text, read, lambda value: f"{name.replace('_', ' ')} {shown(value)}", **known)


def _span_argument(name: str, text: str, *words: str) -> Argument:

    def read(value: str) -> int | str:
        if value in words:
            return value
        found = read_span(value)
        if found is None:
            raise InvalidDelayError(f"{name}={value[:60]!r}: must be a span like 90s, 2h or 1d12h")
        return duration_ms(found, name=name)

    def shown(value: int | str) -> str:
        return value if isinstance(value, str) else exact_span_text(value)

    return _argument(name, text, read, shown, metavar="|".join(["SPAN", *words]))


def _time_argument(name: str, text: str, **known: Any) -> Argument:
    return _argument(name, text, read_time, _when_text, metavar="TIME", **known)


def _choice_argument(name: str, kind: Any, text: str, metavar: str = "POLICY") -> Argument:
    choices = get_args(kind)

    def read(value: str) -> str:
        if value not in choices:
            raise InvalidValueError(f"{name}={value[:60]!r}: must be one of {', '.join(choices)}")
        return value

    return _argument(name, text, read, metavar=metavar, choices=choices)


def _number_argument(name: str, text: str, most: int) -> Argument:
    return _argument(name, text, number(name, most), metavar="N")


PUT: Final = (
    _argument(
        "rules",
        'When it is due: a cron expression, or "every 10 s"; several with ";" between.',
        _rules,
        rules_text,
        missing='A schedule needs rules, such as "30 2 * * *" or "every 10 s".',
        metavar="RULES",
        most=MAX_RULES * (MAX_TEXT + 2),
    ),
    _argument("task", "The task that it calls.", missing="A schedule needs the name of a task.", most=MAX_TASK),
    json_argument("args", "array", "Arguments of the task: a JSON array."),
    json_argument("kwargs", "object", "Keyword arguments of the task: a JSON object."),
    _argument("timezone", "The time zone of its rules.  [default: that of the app]", check_timezone, metavar="ZONE"),
    _argument("queue", "The Celery queue of its runs.  [default: that of the task]"),
    json_argument("options", "object", 'Other options of apply_async: a JSON object such as {"priority": 3}.'),
    _choice_argument("missed", Missed, "What is sent after an outage: latest run, all, or skip.  [default: latest]"),
    _span_argument("window", "Longest time by which a run is sent late."),
    _choice_argument(
        "overlap", Overlap, "While the run before has not ended: allow, skip, queue or cancel.  [default: allow]"
    ),
    _span_argument("overlap_timeout", "After so long a run that no worker reports counts as ended.  [default: 1h]"),
    _span_argument("jitter", "Delay each run by up to so much."),
    _span_argument(
        "expires", 'Workers discard a run so long after it was sent; "next": when the next one is due.', "next"
    ),
    _time_argument("until", "Last due time: 2030-01-01T00:00Z, or 30d from now."),
    _number_argument("max_runs", "Number of runs after which it is over.", MAX_RUNS),
    _number_argument("pause_after_failures", "Failures in a row after which it is paused.", MAX_FAILURES),
    _argument(
        "exclude", "Dates without runs, such as 2030-12-25,2030-12-26.", _dates, ", ".join, most=MAX_EXCLUDED * 12
    ),
    _choice_argument("dst", Dst, "Crontabs where clocks change: wall, or celery: as it does.  [default: wall]", "RULE"),
)
"""Arguments of put, which together can say any definition."""

PAUSE: Final = (
    _time_argument("until", "When it ends by itself: 2030-01-01T00:00Z, or 2h from now."),
    _argument("reason", "Why, for its events.", most=MAX_REASON),
)
RESUME: Final = (flag("catch_up", "Count runs of the pause as missed.", "catch up"),)
DELETE: Final = (flag("force", "Delete it although an app's beat_schedule has it.", "force"),)
BACKFILL: Final = (
    _time_argument(
        "start",
        "First due time: 2030-01-01T00:00Z, or -2h for two hours ago.",
        missing="Backfill needs a start: 2030-01-01T00:00Z, or -2h.",
    ),
    _time_argument("end", "Time before which runs were due.  [default: now]"),
)

_OWN: Final = ("rules", "task", "args", "kwargs", "queue", "options", "until")
_FIELDS: Final = [argument.name for argument in PUT if argument.name not in _OWN]
"""Arguments that are fields of a definition."""

_schedule: Final = One("schedule", {"name": True})

ACTIONS: Final = (
    Action(_schedule, "schedule-put", "Store", "stored", put, PUT),
    Action(_schedule, "schedule-pause", "Pause", "paused", pause, PAUSE),
    Action(_schedule, "schedule-resume", "Resume", "resumed", resume, RESUME),
    Action(_schedule, "schedule-run", "Run now", "sent", run),
    Action(_schedule, "schedule-delete", "Delete", "deleted", delete, DELETE, destroys=True),
    Action(_schedule, "schedule-backfill", "Backfill", "sent", backfill, BACKFILL, destroys=True),
)
