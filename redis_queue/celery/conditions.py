"""Conditions: which of the waiting tasks are meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, TypedDict

from redis_queue.celery.message.task_entry import TaskEntry


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions on waiting tasks, all of which must hold; None: any.

    *task* is the whole name of the task, *task_part* a part of it, *text* a part of its arguments. *stamp* maps each
    name of a stamp to a value, or to several values of which one must match. *due_before* and *due_after* (inclusive)
    may be spans from now.
    """

    task: str | None = None
    task_part: str | None = None
    queue: str | None = None
    id_prefix: str | None = None
    stamp: Mapping[str, Any] | None = None
    text: str | None = None
    due_before: datetime | timedelta | None = None
    due_after: datetime | timedelta | None = None

    def __bool__(self) -> bool:
        return any(getattr(self, item.name) is not None for item in fields(self))

    @property
    def needs_payloads(self) -> bool:
        """Whether payloads must be read to know which entries match."""
        return any(value is not None for value in (self.task, self.task_part, self.queue, self.stamp, self.text))

    @property
    def needs_entries(self) -> bool:
        """Whether entries must be read to know which match; else their due times tell."""
        return self.needs_payloads or self.id_prefix is not None

    def window(self, now: Callable[[], datetime]) -> tuple[datetime | None, datetime | None]:
        """Return *due_before* and *due_after* as times; *now* is called only for spans."""
        before, after = (
            now() + value if isinstance(value, timedelta) else value for value in (self.due_before, self.due_after)
        )
        return before, after

    def match(self, task: TaskEntry) -> bool:
        """Tell whether *task* meets all conditions but those on its due time."""
        return (
            (self.task is None or task.task == self.task)
            and (self.task_part is None or self.task_part in task.task)
            and (self.queue is None or task.queue == self.queue)
            and (self.id_prefix is None or task.id.startswith(self.id_prefix))
            and (self.stamp is None or _has_stamps(task.stamps, self.stamp))
            and (self.text is None or self.text in task.args or self.text in task.kwargs)
        )


class TaskConditions(TypedDict, total=False):
    """Conditions as keyword arguments, for type checkers."""

    task: str | None
    task_part: str | None
    queue: str | None
    id_prefix: str | None
    stamp: Mapping[str, Any] | None
    text: str | None
    due_before: datetime | None
    due_after: datetime | None


def _has_stamps(stamps: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return all(_texts(stamps.get(name)) & _texts(values) for name, values in expected.items())


def _texts(value: Any) -> set[str]:
    several = value if isinstance(value, list | tuple | set | frozenset) else [] if value is None else [value]
    return set(map(str, several))
