"""Rows of workers, running tasks and runs: JSON of limited size, and back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, get_args

from redis_queue.basics.times import END_OF_CALENDAR_MS, from_ms
from redis_queue.monitor.model import LeaseState, Outcome, Run, RunningTask, WorkerRow
from redis_queue.store.codec import read_document, small_integer
from redis_queue.store.ids import readable

MAX_TEXT: Final = 255
"""Most characters of a name or an id."""

MAX_ARGUMENTS: Final = 200
"""Most characters of the arguments of a running task."""

MAX_KEY: Final = 300
"""Most characters of a key."""

MOST_QUEUES: Final = 100
MOST_LISTS: Final = 400
MOST_VERSIONS: Final = 10
MOST_SECONDS: Final = 1e9

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

UNREADABLE: Final = (ValueError, KeyError, TypeError, OverflowError)
"""Errors of a row that another program, or another version, has written."""


def write_worker(row: WorkerRow) -> str:
    """Return the JSON of *row*, without its name and the time when it was seen."""
    return json.dumps(
        {
            "started": _ms(row.started_at),
            "host": row.host[:MAX_TEXT],
            "pool": row.pool[:MAX_TEXT],
            "queues": [queue[:MAX_TEXT] for queue in row.queues[:MOST_QUEUES]],
            "versions": dict(list((row.versions or {}).items())[:MOST_VERSIONS]),
            "loop": row.loop_age,
            "settled": row.settled_age,
            "keeper": row.keeper,
            "stopping": row.stopping,
            "lists": [key[:MAX_KEY] for key in row.lists[:MOST_LISTS]],
            "held": {queue[:MAX_TEXT]: count for queue, count in list((row.held or {}).items())[:MOST_QUEUES]},
            **{name: getattr(row, name) for name in _COUNTS},
        }
    )


def read_worker(name: str, seen_at: datetime, text: bytes) -> WorkerRow | None:
    """Return a worker; None for an unreadable row."""
    try:
        row: Any = read_document(text)
        return WorkerRow(
            name[:MAX_TEXT],
            seen_at,
            _time(row["started"]),
            host=_text(row["host"]),
            pool=_text(row["pool"]),
            queues=tuple(_text(queue) for queue in row["queues"][:MOST_QUEUES]),
            versions=_versions(row["versions"]),
            loop_age=_seconds(row["loop"]),
            settled_age=_seconds(row["settled"]),
            keeper=row["keeper"] if isinstance(row["keeper"], bool) else None,
            held=_held(row.get("held")),
            stopping=row.get("stopping") is True,
            lists=tuple(str(key)[:MAX_KEY] for key in (row.get("lists") or ())[:MOST_LISTS]),
            **{count: small_integer(row.get(count, 0)) for count in _COUNTS},
        )
    except UNREADABLE:
        return None


def write_running(tasks: Sequence[RunningTask]) -> str:
    """Return the JSON of *tasks*, without the name of their worker; "" if there are none."""
    if not tasks:
        return ""
    return json.dumps(
        [
            [
                task.id[:MAX_TEXT],
                task.task[:MAX_TEXT],
                task.queue[:MAX_TEXT],
                _ms(task.since),
                task.args[:MAX_ARGUMENTS],
                task.kwargs[:MAX_ARGUMENTS],
                task.deliveries,
                task.retries,
                task.lease,
                task.parent[:MAX_TEXT],
                task.root[:MAX_TEXT],
                task.group[:MAX_TEXT],
            ]
            for task in tasks
        ]
    )


def read_running(worker: str, text: bytes, most: int) -> list[RunningTask]:
    """Return up to *most* tasks of *worker*; unreadable ones are left out."""
    try:
        rows: Any = read_document(text)
        found = [_running(worker, row) for row in rows[:most]]
    except UNREADABLE:
        return []
    return [task for task in found if task is not None]


def write_run(run: Run) -> str:
    """Return the JSON of *run*, without its id; one line."""
    times = {"ended": run.ended_at, **{name: getattr(run, f"{name}_at") for name in _RUN_TIMES}}
    texts = {name: getattr(run, name)[:MAX_TEXT] for name in _RUN_TEXTS}
    return json.dumps(
        {
            "outcome": run.outcome,
            "retries": run.retries,
            **{name: text for name, text in texts.items() if text},
            **{name: _ms(at) for name, at in times.items() if at is not None},
        }
    )


def read_run(id_: str, text: bytes) -> Run | None:
    """Return a run; None for an unreadable one."""
    try:
        row: Any = read_document(text)
        if row["outcome"] not in get_args(Outcome):
            return None
        found: dict[str, Any] = {f"{name}_at": _time(row[name]) for name in _RUN_TIMES if name in row}
        found |= {name: _text(row.get(name, "")) for name in _RUN_TEXTS}
        return Run(
            id_,
            outcome=row["outcome"],
            ended_at=_time(row["ended"]),
            retries=small_integer(row["retries"]),
            **found,
        )
    except UNREADABLE:
        return None


_RUN_TIMES: Final = ("sent", "due", "fetched", "started")
_RUN_TEXTS: Final = ("task", "queue", "worker", "parent", "root", "group", "error")


def _running(worker: str, row: Any) -> RunningTask | None:
    id_, task, queue, since, args, kwargs, deliveries, retries, lease, parent, root, group = row[:12]
    if lease not in get_args(LeaseState):
        return None
    return RunningTask(
        _text(id_),
        _text(task),
        _text(queue),
        worker,
        _time(since),
        str(args)[:MAX_ARGUMENTS],
        str(kwargs)[:MAX_ARGUMENTS],
        small_integer(deliveries),
        small_integer(retries),
        lease,
        _text(parent),
        _text(root),
        _text(group),
    )


def _held(found: Any) -> dict[str, int]:
    if not isinstance(found, Mapping):
        return {}
    return {_text(queue): small_integer(count) for queue, count in list(found.items())[:MOST_QUEUES]}


def _versions(found: Any) -> dict[str, str]:
    if not isinstance(found, Mapping):
        return {}
    return {_text(name): _text(version) for name, version in list(found.items())[:MOST_VERSIONS]}


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError("expected a text")
    return readable(found[:MAX_TEXT])


def _time(found: Any) -> datetime:
    return from_ms(small_integer(found))


def _seconds(found: Any) -> float | None:
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        return None
    return min(max(0.0, float(found)), MOST_SECONDS)


def _ms(at: datetime) -> int:
    return min(max(0, round(at.timestamp() * 1000)), END_OF_CALENDAR_MS)
