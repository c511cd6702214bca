"""Expectation: conditions of a test on a scheduled task, how a task differs from them, and the message of a failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final

from kombu.serialization import dumps, loads, registry

from redis_queue.basics.times import Seconds, duration_ms, from_ms, point_ms
from redis_queue.errors import InvalidValueError
from redis_queue.testing.tasks import TaskRow

Age = Callable[[datetime], timedelta]
"""Return the time since a moment, without travels."""

SHOWN: Final = 10
"""Maximum number of tasks in a message."""

MAX_CALL: Final = 200


@dataclass(frozen=True, slots=True)
class Expectation:
    """Conditions on one task; None means any. *at*: the due time, *within*: its tolerance."""

    task: str | None
    args: Sequence[Any] | None
    kwargs: Mapping[str, Any] | None
    at: datetime | None
    queue: str | None
    within: timedelta
    in_: timedelta | None

    @classmethod
    def of(
        cls,
        task: Any,
        now: datetime,
        *,
        args: Sequence[Any] | None,
        kwargs: Mapping[str, Any] | None,
        in_: Seconds | None,
        at: datetime | None,
        queue: str | None,
        within: Seconds,
    ) -> Expectation:
        """Return the conditions. Raises InvalidValueError for invalid ones."""
        if in_ is not None and at is not None:
            raise InvalidValueError(f"in_={in_!r} and at={at!r}: expected only one of them")
        if args is not None and not isinstance(args, list | tuple):
            raise InvalidValueError(f"args={args!r}: must be a list or tuple")
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise InvalidValueError(f"kwargs={kwargs!r}: must be a mapping")
        delay = None if in_ is None else _span(in_, "in_")
        moment = from_ms(point_ms(at, name="at")) if at is not None else now + delay if delay is not None else None
        return cls(name_of(task), args, kwargs, moment, queue, _span(within, "within"), delay)

    def differences(self, row: TaskRow, age: Age) -> list[str]:
        """Return the names of the conditions that *row* does not meet."""
        met = {
            "task": self.task in (None, row.task),
            "args": self.args is None or _alike(list(self.args), list(row.args), row),
            "kwargs": self.kwargs is None or _alike(dict(self.kwargs), dict(row.kwargs), row),
            "queue": self.queue in (None, row.queue),
            "time": self._in_time(row, age),
        }
        return [name for name, is_met in met.items() if not is_met]

    def _in_time(self, row: TaskRow, age: Age) -> bool:
        if self.at is None:
            return True
        # in_ counts from the send: a test that checks late must not fail for that.
        slack = age(row.stored_at) if self.in_ is not None else timedelta()
        return self.at - self.within - slack <= row.due_at <= self.at + self.within

    def distance(self, row: TaskRow, age: Age) -> tuple[bool, bool, int, float]:
        """Return a sort key: the closest row has the lowest."""
        wrong = self.differences(row, age)
        off = abs((row.due_at - self.at).total_seconds()) if self.at is not None else 0.0
        return "task" in wrong, not {"args", "kwargs"}.isdisjoint(wrong), len(wrong), off

    def __str__(self) -> str:
        words = [self.task or "any task"]
        words += [f"{name}={value!r}" for name in ("args", "kwargs", "queue") if (value := getattr(self, name))]
        if self.in_ is not None:
            words.append(f"in {self.in_}")
        elif self.at is not None:
            words.append(f"at {written(self.at)}")
        return ", ".join(words)


def name_of(task: Any) -> str | None:
    """Return the name of *task*: a task, a signature or a name. Raises InvalidValueError."""
    found = task if isinstance(task, str) or task is None else getattr(task, "name", getattr(task, "task", ""))
    if found is not None and (not isinstance(found, str) or not found):
        raise InvalidValueError(f"task={task!r}: must be a Celery task or its name")
    return found


def written(moment: datetime) -> str:
    """Format *moment* for messages, in UTC."""
    return moment.astimezone(timezone.utc).isoformat(" ", "seconds").replace("+00:00", " UTC")


def _span(value: Seconds, name: str) -> timedelta:
    return timedelta(milliseconds=duration_ms(value, name=name))


def _alike(expected: Any, found: Any, row: TaskRow) -> bool:
    """Compare arguments before and after serialization: JSON turns a tuple into a list."""
    if expected == found:
        return True
    try:
        kind = registry.type_to_name[row.envelope.content_type]
        return bool(_through(expected, kind) == found)
    except Exception:  # noqa: BLE001 - arguments that cannot be sent were not sent
        return False


def _through(value: Any, kind: str) -> Any:
    content_type, encoding, data = dumps(value, serializer=kind)
    return loads(data, content_type, encoding, accept=[content_type])


def not_scheduled(
    expectation: Expectation,
    rows: Sequence[TaskRow],
    *,
    count: int,
    found: int,
    sent: Sequence[TaskRow],
    now: datetime,
    age: Age,
) -> str:
    """Return the message for *found* matching tasks where *count* are expected."""
    counts = f"scheduled {_times(found)}, expected {_times(count)}" if found else "not scheduled"
    closest = sorted(rows, key=lambda row: expectation.distance(row, age))
    lines = [f"{counts}: {expectation}", "scheduled, closest first:" if rows else "nothing is scheduled"]
    lines += [_line(row, now, expectation.differences(row, age)) for row in closest[:SHOWN]]
    lines += _more(len(rows))
    at_once = [row for row in sent if expectation.task in (None, row.task)]
    if at_once and not found:
        lines.append("sent at once:")
        lines += [f"  {_short(row.call)}" for row in at_once[-SHOWN:]]
    return "\n".join(lines)


def still_scheduled(expectation: Expectation, rows: Sequence[TaskRow], now: datetime) -> str:
    """Return the message for *rows*, tasks that must not be scheduled."""
    lines = [f"scheduled, but must not be: {expectation}"]
    return "\n".join([*lines, *(_line(row, now, []) for row in rows[:SHOWN]), *_more(len(rows))])


def _line(row: TaskRow, now: datetime, wrong: Sequence[str]) -> str:
    left = timedelta(seconds=round((row.due_at - now).total_seconds()))
    due = f"in {left}" if left >= timedelta() else f"due since {-left}"
    retry = f", retry {row.retries}" if row.retries else ""
    other = f"  <- other {', '.join(wrong)}" if wrong else ""
    return f"  {_short(row.call)} {due} ({written(row.due_at)}), queue {row.queue}{retry}{other}"


def _short(call: str) -> str:
    return call if len(call) <= MAX_CALL else f"{call[:MAX_CALL]}..."


def _more(count: int) -> list[str]:
    return [f"  and {count - SHOWN} more"] if count > SHOWN else []


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
