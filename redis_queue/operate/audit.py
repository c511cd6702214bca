"""Audit: the last actions of people, kept in Redis without likely secrets."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from redis_queue.basics.logs import hide_secrets, logger_of
from redis_queue.basics.times import from_ms
from redis_queue.store.chunks import CHUNK, check_limit
from redis_queue.store.codec import read_document, small_integer
from redis_queue.store.connection import Client
from redis_queue.store.keys import PrefixKeys
from redis_queue.store.scripts import Scripts

logger = logger_of(__name__)

MAX_LINES: Final = 1000
"""Number of actions that are kept."""

MAX_DETAIL: Final = 500

MAX_SUBJECTS: Final = 10
"""Maximum number of subjects that the audit keeps of one action."""

REMEMBERED_MS: Final = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class Subject:
    """A message or entry of *queue* that an action affects; *at* is its due time, or the time it died."""

    id: str
    queue: str
    task: str = ""
    at: datetime | None = None


@dataclass(frozen=True, slots=True)
class AuditLine:
    """An action of *user* on *count* messages or entries of *queue*; *subjects* are the first of them."""

    at: datetime
    user: str
    verb: str
    queue: str
    count: int
    detail: str = ""
    subjects: Sequence[Subject] = ()


class Audit:
    """The last actions under *prefix*, newest first."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._scripts = Scripts(client)
        self._keys = PrefixKeys(prefix)
        self._key = self._keys.audit

    def record(self, line: AuditLine) -> None:
        """Log *line*, then keep it, both without likely secrets; the oldest beyond :data:`MAX_LINES` is deleted."""
        detail = hide_secrets(line.detail)
        # The log first: it needs no Redis.
        known = {"user": line.user, "verb": line.verb, "queue": line.queue, "count": line.count}
        ids = [subject.id for subject in line.subjects]
        text = "%(verb)s by %(user)s: %(count)d of %(queue)s"
        logger.info(text, known, extra={"action": "audit", **known, "detail": detail, "ids": ids})
        row = {
            **known,
            "at": round(line.at.timestamp() * 1000),
            "detail": detail[:MAX_DETAIL],
            "subjects": [_written(subject) for subject in line.subjects[:MAX_SUBJECTS]],
            # After a lost reply the row may be stored twice; it is read once.
            "nonce": os.urandom(8).hex(),
        }
        self._scripts.command("LPUSH", self._key, json.dumps(row))
        self._scripts.command("LTRIM", self._key, 0, MAX_LINES - 1)

    def begin(self, operation: str) -> bool:
        """Return whether *operation* is new, so that a form sent twice acts once. Remembered for a day."""
        key = self._keys.operation(operation)
        nonce = os.urandom(8).hex().encode()
        if self._scripts.command("SET", key, nonce, "NX", "PX", REMEMBERED_MS) is not None:
            return True
        # This very call may have stored it before its reply was lost.
        return bool(self._scripts.command("GET", key) == nonce)

    def last(self, limit: int = 100) -> list[AuditLine]:
        """Return the newest actions; unreadable ones are left out."""
        rows: list[bytes] = self._scripts.command("LRANGE", self._key, 0, check_limit(limit, CHUNK) - 1)
        return [action for action in map(_read, dict.fromkeys(rows)) if action is not None]


def _written(subject: Subject) -> list[Any]:
    return [subject.id, subject.task[:MAX_DETAIL], subject.at and round(subject.at.timestamp() * 1000)]


def _subjects(rows: Any, queue: str) -> Iterator[Subject]:
    for id_, task, at in rows[:MAX_SUBJECTS]:
        yield Subject(
            str(id_)[:MAX_DETAIL], queue, str(task)[:MAX_DETAIL], None if at is None else from_ms(small_integer(at))
        )


def _read(row: bytes) -> AuditLine | None:
    try:
        found: Any = read_document(row)
        if not isinstance(found, Mapping):
            return None
        texts = {name: str(found.get(name, ""))[:MAX_DETAIL] for name in ("user", "verb", "queue", "detail")}
        subjects = tuple(_subjects(found.get("subjects", ()), texts["queue"]))
        at, count = small_integer(found["at"]), small_integer(found["count"])
        return AuditLine(at=from_ms(at), count=count, subjects=subjects, **texts)
    except (ValueError, TypeError, KeyError):
        return None
