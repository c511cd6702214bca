"""Keys of unique tasks for command line and dashboard: an owner as a document, and its release."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from redis_queue.operate.access import Access
from redis_queue.operate.audit import Subject
from redis_queue.unique.owners import Owner

RELEASE: Final = "unique-release"
"""Verb of the audit; its queue is the task, its detail the key."""


def release(access: Access, owner: Owner) -> bool:
    """Free the key of *owner*, whose task goes on. False if that task does not own it any more."""
    return access.unique.release(owner.task, owner.key, task_id=owner.task_id)


def as_row(owner: Owner) -> dict[str, Any]:
    """Return an owner as a document."""
    return asdict(owner)


def name_of(task: str, key: str) -> str:
    """Return the name of a key for messages; "" is the key of a task without keys."""
    return f"the key {key!r} of {task}" if key else f"the key of {task}"


def subjects_of(owner: Owner) -> list[Subject]:
    """Return the task that owns a key, for the audit."""
    return [Subject(owner.task_id, owner.task, owner.task)]
