"""Every Redis key name, built here and nowhere else.

All keys of a queue (of a shard of a DelayQueue) share one hash tag, so each script call stays in one Cluster slot:

``{<prefix>:queue:<name>}:<part>`` and ``{<prefix>:delay:<name>:<shard>}:<part>``

========== ====== =====================================================================
part       type   holds
========== ====== =====================================================================
meta       HASH   schema, paused, counters
records    HASH   id -> record, for every message or entry wherever it is
ready      LIST   ids to claim, next one at the right end (queue only)
waiting    ZSET   id -> due time: delayed messages, or the entries of a DelayQueue
in_flight  ZSET   id -> end of its lease
leases     HASH   id -> "<deliveries> <token>" while in flight, "<deliveries>" afterwards
errors     HASH   id -> last reason it was given back
dead       ZSET   id -> time it died
quarantine LIST   unreadable records with id and reason
wake       LIST   at most one token that wakes one waiting consumer; for a DelayQueue the name of a channel
leader     STRING name of the dispatcher that waits for due entries (first shard of a DelayQueue only)
slot:<x>   STRING outcome of the last call of client thread x, so that a retry is answered, not repeated
========== ====== =====================================================================

``<prefix>:registry`` is a HASH of all queues that were ever written to. ``<prefix>:starts:<task id>`` is a LIST of when
and where a redelivered task was started; it is there until the task ends.

A Redis that is Celery's broker has the ZSET ``redis_queue:visibility_timeouts``: those in use, each with the time when
a worker that has it was last seen; and the LIST ``redis_queue:unreadable``: what workers found in queues and could not
read. ``global_keyprefix`` stands before both.
"""

from __future__ import annotations

from typing import Final, Literal
from urllib.parse import quote

from redis_queue.errors import InvalidNameError

Kind = Literal["queue", "delay"]

MAX_NAME: Final = 200
MAX_ID: Final = 255


class Keys:
    """The keys of one queue, or of one shard of a DelayQueue."""

    def __init__(self, prefix: str, kind: Kind, name: str, shard: int | None = None) -> None:
        tag = f"{_escape(prefix)}:{kind}:{_escape(check_name(name))}"
        if shard is not None:
            tag += f":{shard}"
        self._root = f"{{{tag}}}:"
        self.meta = self._key("meta")
        self.records = self._key("records")
        self.ready = self._key("ready")
        self.waiting = self._key("waiting")
        self.in_flight = self._key("in_flight")
        self.leases = self._key("leases")
        self.errors = self._key("errors")
        self.dead = self._key("dead")
        self.quarantine = self._key("quarantine")
        self.wake = self._key("wake")
        self.leader = self._key("leader")

    def slot(self, client: str) -> bytes:
        """Return the key that keeps the last outcome of one client thread."""
        return self._key(f"slot:{client}")

    def all(self) -> tuple[bytes, ...]:
        """Return every key but the slots."""
        return (
            self.meta,
            self.records,
            self.ready,
            self.waiting,
            self.in_flight,
            self.leases,
            self.errors,
            self.dead,
            self.quarantine,
            self.wake,
            self.leader,
        )

    @property
    def pattern(self) -> str:
        """Match every key of this queue, for SCAN."""
        return f"{self._root}*"

    def _key(self, part: str) -> bytes:
        return f"{self._root}{part}".encode()


def registry(prefix: str) -> bytes:
    """Return the key of the registry under *prefix*."""
    return f"{_escape(prefix)}:registry".encode()


def starts(prefix: str, task_id: str) -> bytes:
    """Return the key that keeps the starts of a redelivered task."""
    return f"{_escape(prefix)}:starts:{task_id}".encode()


def visibility_timeouts(broker_prefix: str) -> bytes:
    """Return the key of the visibility timeouts in use on a broker whose keys all begin with *broker_prefix*."""
    return f"{broker_prefix}redis_queue:visibility_timeouts".encode()


def unreadable(broker_prefix: str) -> bytes:
    """Return the key of what was found in queues and cannot be read."""
    return f"{broker_prefix}redis_queue:unreadable".encode()


def check_name(name: str) -> str:
    """Return *name* if it can name a queue: 1 to 200 printable characters. Raises InvalidNameError."""
    if not isinstance(name, str) or not name or len(name) > MAX_NAME or not name.isprintable():
        raise InvalidNameError(f"queue name {_short(name)}: give 1 to {MAX_NAME} printable characters")
    return name


def check_id(value: str, *, name: str = "id") -> str:
    """Return *value* if it can name a message or an entry: 1 to 255 printable characters. Raises InvalidNameError."""
    if not isinstance(value, str) or not value or len(value) > MAX_ID or not value.isprintable():
        raise InvalidNameError(f"{name} {_short(value)}: give 1 to {MAX_ID} printable characters")
    return value


def _escape(name: str) -> str:
    # Everything with a meaning in a key, a pattern or a hash tag goes: braces, colons, globs, white space.
    return quote(name, safe="")


def _short(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 80 else text[:80] + "..."  # noqa: PLR2004
