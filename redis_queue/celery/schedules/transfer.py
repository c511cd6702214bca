"""Import schedules of other schedulers so that they go on where they were; export and import as one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from celery.schedules import ParseException, crontab

from redis_queue.basics.times import from_ms, iso_time, point_ms
from redis_queue.celery.schedules.calendar import Calendar
from redis_queue.celery.schedules.declaration import CLEAN_UP, Declaration
from redis_queue.celery.schedules.rules import Rule, check_rules, read_rules
from redis_queue.celery.schedules.runs import calendar_of
from redis_queue.errors import InvalidValueError, WrongTypeError, quoted
from redis_queue.schedules.definition import Definition, from_mapping
from redis_queue.schedules.state import NEVER, State
from redis_queue.schedules.store import new_generation
from redis_queue.store.chunks import CHUNK, chunks
from redis_queue.store.codec import read_document
from redis_queue.store.keys import is_name

if TYPE_CHECKING:
    from redis_queue.celery.schedules.schedules import Schedules

DOCUMENT: Final = "redis_queue_schedules"
"""Field of an export with its version."""

MAX_FIELD: Final = 300
"""Maximum characters or numbers of a crontab's field."""

CRONTAB_FIELDS: Final = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")
_UNREADABLE: Final = (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, ParseException, WrongTypeError)
_DERIVED: Final = ("app", "static", "tzdata", "version")
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class SourceSchedule:
    """A schedule of another scheduler: a *definition*, or the reason why it was *refused*. Times are in ms.

    It is due next at *due*, by default at the first due time after *since*, its last run; intervals count from *since*,
    by default now. *pause_ends*: when its pause ends by itself.
    """

    name: str
    definition: Definition | None = None
    since: int | None = None
    due: int | None = None
    paused: bool = False
    pause_ends: int | None = None
    refused: str = ""


@dataclass(frozen=True, slots=True)
class ImportRow:
    """The result for one schedule; *reason* says why it was refused or left out."""

    name: str
    result: Literal["put", "changed", "unchanged", "refused"]
    next_run: datetime | None = None
    paused: bool = False
    reason: str = ""


def import_from(
    schedules: Schedules, sources: Iterable[SourceSchedule], *, dry_run: bool = False
) -> Iterator[ImportRow]:
    """Store *sources*, and yield a row for each; with *dry_run* store nothing.

    The next run is the one that the source would have sent next; if that is overdue, one run is sent for all. An entry
    of ``beat_schedule`` gets its definition from there. A schedule that exists is replaced; it stays paused if it is.
    Raises StoreError.
    """
    declared, _ = Declaration(schedules).static()
    static = {definition.name: definition for definition in declared}
    names: set[str] = set()
    for source in sources:
        try:
            if source.name in names:
                raise InvalidValueError("another entry of the source has this name")
            names.add(source.name)
            yield _imported(schedules, source, static.get(source.name), dry_run=dry_run)
        except ValueError as error:
            yield ImportRow(source.name, "refused", reason=str(error))


def _imported(schedules: Schedules, source: SourceSchedule, static: Definition | None, *, dry_run: bool) -> ImportRow:
    if source.name == CLEAN_UP and static is None:
        return ImportRow(CLEAN_UP, "unchanged", reason="not needed: the result backend deletes old results itself")
    definition = static or source.definition
    if source.refused or definition is None:
        raise InvalidValueError(source.refused)
    make = schedules.putting(definition, _begin(source, definition, schedules.store.now()))
    (stored,) = schedules.store.get([definition.name])
    change = make(stored)
    after = None if change is None else change.after
    if change is None or after is None:
        return ImportRow(definition.name, "unchanged")
    if source.pause_ends is not None and change.look == NEVER and after.is_paused:
        change = replace(change, look=source.pause_ends)
    if not dry_run and not schedules.store.change([change])[0]:
        raise InvalidValueError("another process changed it meanwhile: import it again")
    next_run = from_ms(after.due) if after.due else None
    return ImportRow(definition.name, "put" if stored is None else "changed", next_run, after.is_paused)


def _begin(source: SourceSchedule, definition: Definition, now: int) -> State:
    times, since = calendar_of(definition), source.since
    due = source.due if since is None or source.due is not None else times.next(since, since) or -1
    if due is not None and not 0 <= due <= (definition.until or due):
        raise InvalidValueError("it has no due time before its end")
    if due is not None and not source.paused and definition.missed != "all":
        due = _newest(times, due, due if since is None else since, now)
    return State(new_generation(), due or 0, now if since is None else since, is_paused=source.paused)


def _newest(times: Calendar, due: int, since: int, now: int) -> int:
    """Return a late due time up to *now* if *due* has passed, so that a long pause takes few steps; else *due*."""
    span = 1000
    while due < now:
        found = times.occurrences(max(due - 1, now - span), now, CHUNK, since)
        if found:
            return found[-1]
        if now - span < due:
            break
        span *= 4
    return due


def read_each(
    entries: Iterable[tuple[str, _Item]], read: Callable[[str, _Item], SourceSchedule]
) -> Iterator[SourceSchedule]:
    """Yield what *read* returns for the name and the data of each entry; an unreadable one with the reason."""
    for name, entry in entries:
        try:
            yield read(name, entry)
        except _UNREADABLE as error:
            text = str(error) if isinstance(error, InvalidValueError) else f"{type(error).__name__}: {error}"
            yield SourceSchedule(name, refused=text)


def crontab_rules(fields: Mapping[str, Any]) -> list[Rule]:
    """Return the rules of a crontab of Celery with these *fields*, which may be hostile."""
    for name, value in fields.items():
        parts = value if isinstance(value, list) else [value]
        sizes = [len(parts), *(len(part) for part in parts if isinstance(part, str))]
        if max(sizes) > MAX_FIELD or not all(type(part) in (str, int) for part in parts):
            raise InvalidValueError(f"{name}={quoted(value)}: must be a text or numbers, up to {MAX_FIELD}")
    return read_rules(crontab(**{name: fields.get(name, "*") for name in CRONTAB_FIELDS}))


def beat_schedule(schedules: Schedules) -> Iterator[SourceSchedule]:
    """Yield the entries of ``beat_schedule``; their intervals begin now, as those of a new beat."""
    definitions, report = Declaration(schedules).static()
    yield from (SourceSchedule(definition.name, definition) for definition in definitions)
    yield from (SourceSchedule(name, refused=reason) for name, reason in report.refused.items())


def export_document(schedules: Schedules) -> tuple[dict[str, Any], dict[str, str]]:
    """Return all schedules, by name, as a JSON document, and the reasons for those that cannot be read."""
    found: list[dict[str, Any]] = []
    unreadable: dict[str, str] = {}
    names = filter(is_name, schedules.store.all_names())
    for stored in (item for chunk in chunks(names) for item in schedules.store.get(chunk)):
        if stored is None:
            continue
        if stored.definition is None or stored.state is None:
            unreadable[stored.name] = stored.error
            continue
        state, times = stored.state, {"due": stored.state.due or None, "since": stored.state.since}
        if state.is_paused and stored.look != NEVER:
            times["pause_ends"] = int(stored.look)
        texts = {name: None if at is None else from_ms(at).isoformat() for name, at in times.items()}
        found.append({"definition": asdict(stored.definition), "paused": state.is_paused, **texts})
    return {DOCUMENT: 1, "schedules": found}, unreadable


def from_document(schedules: Schedules, text: str) -> Iterator[SourceSchedule]:
    """Yield the schedules of an export. Raises InvalidValueError for any other document."""
    try:
        found = read_document(text)
    except ValueError as error:
        raise InvalidValueError(f"the file is not JSON: {error}") from error
    if not isinstance(found, dict) or found.get(DOCUMENT) != 1 or not isinstance(found.get("schedules"), list):
        raise InvalidValueError("the file is not an export of this version: redis-queue schedules export FILE")
    return read_each(
        ((_name_in(item, number), item) for number, item in enumerate(found["schedules"], 1)),
        lambda _, item: _from_export(schedules, item),
    )


def _name_in(item: Any, number: int) -> str:
    definition = item.get("definition") if isinstance(item, dict) else None
    name = definition.get("name") if isinstance(definition, dict) else None
    return name if isinstance(name, str) else f"number {number}"


def _from_export(schedules: Schedules, item: Mapping[str, Any]) -> SourceSchedule:
    known = asdict(from_mapping(item["definition"]))
    known = {name: value for name, value in known.items() if name not in _DERIVED}
    definition = schedules.definition(**{**known, "rules": check_rules(known["rules"])})
    if type(item["paused"]) is not bool:
        raise InvalidValueError(f"paused={quoted(item['paused'])}: must be true or false")
    if item["due"] is None:
        raise InvalidValueError("it is over: it had no due time when it was exported")
    times: dict[str, Any] = {name: _time(name, item[name]) for name in ("due", "since", "pause_ends") if name in item}
    return SourceSchedule(definition.name, definition, paused=item["paused"], **times)


def _time(name: str, text: Any) -> int:
    at = iso_time(text)
    if at is None:
        raise InvalidValueError(f"{name}={quoted(text)}: must be a time such as 2030-01-01T00:00:00+00:00")
    return point_ms(at, name=name)
