"""Cancel stored tasks for each kind of revoke."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set
from typing import Any, Final

from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.store.ids import is_id

CANCELLED: Final = "stored_cancelled"
"""Argument of a revoke: the store in which its sender has cancelled; workers need not search that one again."""


def _cancel_ids(delayed: StoredTasks, arguments: Mapping[str, Any]) -> Set[str]:
    ids = task_ids(arguments.get("task_id"))
    unseen = delayed.revoke_many(ids)
    # The others may wait in a queue for a worker that starts later.
    delayed.queue.calls.note_sent(id_ for id_ in ids if id_ not in unseen)
    return unseen


def _cancel_stamped(delayed: StoredTasks, arguments: Mapping[str, Any]) -> Set[str]:
    headers = arguments.get("headers") or {}
    if isinstance(headers, list):
        headers = dict(item.split("=", 1) for item in headers)
    for name, value in headers.items():
        delayed.cancel_matching(stamp={name: value})
    return frozenset()


CANCELS: Final[Mapping[str, Callable[[StoredTasks, Mapping[str, Any]], Set[str]]]] = {
    "revoke": _cancel_ids,
    "terminate": _cancel_ids,
    "revoke_by_stamped_headers": _cancel_stamped,
}


def task_ids(ids: Any) -> list[str]:
    """Return the ids, of one or several, under which a task can be stored."""
    return [id_ for id_ in map(str, as_collection(ids)) if is_id(id_)]


def as_collection(ids: Any) -> Collection[Any]:
    return ids if isinstance(ids, list | tuple | set | frozenset) else [] if ids is None else [ids]


def store_of(delayed: StoredTasks) -> str:
    return f"{delayed.settings.prefix}:{delayed.settings.delay_queue}"
