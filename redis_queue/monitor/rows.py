"""Rows of the monitor as stored texts: workers, running tasks, runs and counts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, get_args

from redis_queue.basics.histogram import MARKS, read_histograms
from redis_queue.basics.logs import hide_secrets
from redis_queue.basics.times import END_OF_CALENDAR_MS, from_ms
from redis_queue.monitor.model import LeaseState, Outcome, Run, RunningTask, Tally, WorkerRow
from redis_queue.store.codec import read_document, small_integer
from redis_queue.store.ids import readable

MAX_TEXT: Final = 255
"""Maximum characters of a name or an id."""

MAX_RELEASE: Final = 64
"""Maximum characters of the release of an app."""

MAX_ARGUMENTS: Final = 200
"""Maximum characters of the arguments of a running task, and bytes of those of a kept run."""

MAX_RAW: Final = 4096
"""Maximum bytes that a worker reads of a text that may have secrets: they are recognized by their whole text."""

MAX_KEY: Final = 300
"""Maximum characters of a key."""

MAX_WORKER_QUEUES: Final = 100
MAX_LISTS: Final = 400
MAX_VERSIONS: Final = 10
MAX_SECONDS: Final = 1e9

UNREADABLE: Final = (ValueError, KeyError, TypeError, OverflowError)
"""Errors of a row that another program, or another version, has written."""

_COUNTS: Final = (
    "pid",
    "concurrency",
    "busy",
    "prefetched",
    "limited",
    "executed",
    "failed",
    "executed_per_minute",
    "failed_per_minute",
    "memory",
)

_NUMBERS: Final = {"a": "executed", "b": "failed", "c": "retried", "d": "revoked"}
"""The counts of a Tally by the letters under which they are stored."""

_TIMES: Final = dict(zip(MARKS, ("duration", "waiting", "lateness"), strict=True))
"""The histograms of a Tally by their marks."""

_NUMBER: Final = re.compile(rb"([a-d])(\d{1,15})")


def write_worker(row: WorkerRow) -> str:
    """Return the JSON of *row*, without its name and the time when it was seen."""
    fields = {name: limit(getattr(row, name)) for name, limit in _WORKER.items()}
    return json.dumps({"started": ms_of(row.started_at), **fields})


def read_worker(name: str, seen_at: datetime, text: bytes) -> WorkerRow | None:
    """Return a worker; None for an unreadable row."""
    try:
        row: Any = read_document(text)
        fields = {field: limit(row[field]) for field, limit in _WORKER.items()}
        return WorkerRow(name[:MAX_TEXT], seen_at, _time(row["started"]), **fields)
    except UNREADABLE:
        return None


def write_running(tasks: Sequence[RunningTask]) -> str:
    """Return the JSON of *tasks*, without the name of their worker; "" if there are none."""
    rows = [[*(limit(getattr(task, name)) for name, limit in _RUNNING.items()), ms_of(task.since)] for task in tasks]
    return json.dumps(rows) if rows else ""


def read_running(worker: str, text: bytes, most: int) -> list[RunningTask]:
    """Return up to *most* tasks of *worker*; unreadable ones are left out."""
    try:
        rows: Any = read_document(text)
        found = [_running(worker, row) for row in rows[:most]]
    except UNREADABLE:
        return []
    return [task for task in found if task is not None]


def write_run(run: Run) -> str:
    """Return the JSON of *run*, without its id and likely secrets; one line."""
    times = {"ended": run.ended_at, **{name: getattr(run, f"{name}_at") for name in _RUN_TIMES}}
    texts = {name: getattr(run, name)[:most] for name, most in _RUN_TEXTS.items() if name not in _PRIVATE}
    texts |= {name: private_text(getattr(run, name), _RUN_TEXTS[name]) for name in _PRIVATE}
    return json.dumps(
        {
            "outcome": run.outcome,
            "retries": run.retries,
            **{name: text for name, text in texts.items() if text},
            **{name: ms_of(at) for name, at in times.items() if at is not None},
        },
        ensure_ascii=False,
    )


def read_run(id_: str, text: bytes) -> Run | None:
    """Return a run; None for an unreadable one."""
    try:
        row: Any = read_document(text)
        if row["outcome"] not in get_args(Outcome):
            return None
        found: dict[str, Any] = {f"{name}_at": _time(row[name]) for name in _RUN_TIMES if name in row}
        found |= {name: text_of(row.get(name, ""), most) for name, most in _RUN_TEXTS.items()}
        return Run(
            id_, outcome=row["outcome"], ended_at=_time(row["ended"]), retries=small_integer(row["retries"]), **found
        )
    except UNREADABLE:
        return None


_RUN_TIMES: Final = ("sent", "due", "fetched", "started")
_RUN_TEXTS: Final = {
    **dict.fromkeys(("task", "queue", "worker", "parent", "root", "group", "error", "release"), MAX_TEXT),
    **dict.fromkeys(("args", "kwargs"), MAX_ARGUMENTS),
}
"""The texts of a run, and their maximum lengths; those of its arguments are in bytes when they are written."""

_PRIVATE: Final = ("error", "args", "kwargs")
"""Texts of a run that may have secrets."""


def _running(worker: str, row: Any) -> RunningTask | None:
    # A newer version may write more fields.
    *parts, since = row[: len(_RUNNING) + 1]
    fields = {name: limit(part) for (name, limit), part in zip(_RUNNING.items(), parts, strict=True)}
    return RunningTask(worker=worker, since=_time(since), **fields) if fields["lease"] in get_args(LeaseState) else None


def text_of(found: Any, most: int = MAX_TEXT) -> str:
    """Return a stored text in a readable form, of at most *most* characters. Raises TypeError."""
    if not isinstance(found, str):
        raise TypeError("expected a text")
    return readable(found[:most])


def private_text(text: str, most: int) -> str:
    """Return a text that may have secrets as it is stored: without likely ones, then cut as :func:`cut` does."""
    return cut(hide_secrets(text), most)


def cut(text: str, most: int) -> str:
    """Return *text* in at most *most* bytes, without control characters except line breaks and tabs."""
    if len(text) > most:
        text = text[:most]
    if not text.isprintable():
        text = "".join(char if char.isprintable() or char in "\n\t" else "?" for char in text)
    raw = text.encode(errors="replace")
    return text if len(raw) <= most else raw[:most].decode(errors="ignore")


def release_text(found: object) -> str:
    """Return the name of a release: of limited length, with ? for characters that cannot be printed."""
    text = found[:MAX_RELEASE] if isinstance(found, str) else ""
    return text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text)


def _time(found: Any) -> datetime:
    return from_ms(small_integer(found))


def seconds_of(found: Any) -> float | None:
    """Return stored seconds: not negative, not endless; None for anything else."""
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return min(max(0.0, float(found)), MAX_SECONDS)


def ms_of(at: datetime) -> int:
    """Return a time in ms, within the calendar."""
    return min(max(0, round(at.timestamp() * 1000)), END_OF_CALENDAR_MS)


def _texts(found: Any) -> tuple[str, ...]:
    return tuple(text_of(text) for text in found[:MAX_WORKER_QUEUES])


def _keys(found: Any) -> tuple[str, ...]:
    return tuple(str(key)[:MAX_KEY] for key in found[:MAX_LISTS])


def _arguments(found: Any) -> str:
    return str(found)[:MAX_ARGUMENTS]


def _versions(found: Any) -> dict[str, str]:
    return {text_of(name): text_of(version) for name, version in _first(found, MAX_VERSIONS)}


def _held(found: Any) -> dict[str, int]:
    return {text_of(queue): small_integer(count) for queue, count in _first(found, MAX_WORKER_QUEUES)}


def _first(found: Any, most: int) -> list[tuple[Any, Any]]:
    return list(found.items())[:most] if isinstance(found, Mapping) else []


def _flag(found: Any) -> bool | None:
    return found if isinstance(found, bool) else None


_WORKER: Final[Mapping[str, Callable[[Any], Any]]] = {
    "host": text_of,
    "pool": text_of,
    "queues": _texts,
    "versions": _versions,
    "loop_age": seconds_of,
    "settled_age": seconds_of,
    "keeper": _flag,
    "stopping": bool,
    "lists": _keys,
    "held": _held,
    "release": release_text,
    **dict.fromkeys(_COUNTS, small_integer),
}
"""The fields of a worker, and what limits their values, when they are written and when they are read."""

_RUNNING: Final[Mapping[str, Callable[[Any], Any]]] = {
    # First: a task is searched by the beginning of its row.
    "id": text_of,
    "task": text_of,
    "queue": text_of,
    "args": _arguments,
    "kwargs": _arguments,
    "deliveries": small_integer,
    "retries": small_integer,
    "lease": text_of,
    "parent": text_of,
    "root": text_of,
    "group": text_of,
}
"""The fields of a running task, in the order of its row, and what limits their values."""


def write_tally(tally: Tally) -> str:
    """Return the text of *tally*; "" if it is empty."""
    numbers = [(letter, getattr(tally, name)) for letter, name in _NUMBERS.items()]
    times = (getattr(tally, name).text(mark) for mark, name in _TIMES.items())
    return "".join([*(f"{letter}{number}" for letter, number in numbers if number > 0), *times])


def read_tally(texts: Iterable[bytes], *, times: bool = True) -> Tally:
    """Return the sum of the counts in *texts*; other bytes are ignored.

    Without *times* it has no histograms, which takes a tenth of the time.
    """
    numbers = {letter.encode(): 0 for letter in _NUMBERS}
    stored = list(texts)
    for text in stored:
        for letter, number in _NUMBER.findall(text):
            numbers[letter] += int(number)
    executed, failed, retried, revoked = numbers.values()
    return Tally(executed, failed, retried, revoked, *(read_histograms(stored) if times else ()))
