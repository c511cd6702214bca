"""Owners: which task owns the key of a unique task."""

from __future__ import annotations

import builtins
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from redis_queue.basics.key_template import check_key
from redis_queue.basics.times import from_ms
from redis_queue.errors import InvalidValueError
from redis_queue.store.chunks import CHUNK, check_limit, check_offset, chunks
from redis_queue.store.connection import Client
from redis_queue.store.ids import id_text
from redis_queue.store.keys import MAX_NAME, FlowKeys
from redis_queue.store.scripts import Clock, NumberedCalls, Scripts, literal, now_ms, pairs, server_clock

HOLD_MS: Final = 10_000
"""Milliseconds in which a message that owns a key has to be confirmed; as HOLD in the scripts."""

SCAN: Final = 2000
MAX_READ: Final = 100_000
"""Maximum number of owners that are looked at for those of some tasks."""

MAX_LISTED: Final = 10_000
"""Maximum number of owners of one page."""

_RECORD: Final = re.compile(rb"([0-9a-f]{1,32}) (\S{1,64}) ([a-z]) (\d{1,15}) (.*)", re.DOTALL)
_BEFORE: Final = re.compile(rb"([a-z])[0-9a-f]+")

State = Literal["sending", "delayed", "waiting", "running"]

OWNED, REPLACED, OPEN = 1, 2, 3
"""Outcomes of lua/admission/acquire.lua."""

STATES: Final[Mapping[bytes, State]] = {b"s": "sending", b"d": "delayed", b"w": "waiting", b"r": "running"}


@dataclass(frozen=True, slots=True)
class Owner:
    """The task *task_id* owns *key* of *task*, until *until* at the latest.

    *state*: sending, delayed, waiting or running; "running" as well if the key stays taken after the task has ended.
    """

    task: str
    key: str
    task_id: str
    state: State
    until: datetime


@dataclass(frozen=True, slots=True)
class OwnerPage:
    """Some of *total* owners: those first whose time ends first."""

    owners: list[Owner]
    total: int


@dataclass(frozen=True, slots=True)
class AcquireReply:
    """Answer of :meth:`Owners.acquire`: see lua/admission/acquire.lua."""

    #: Whether the message owns the key.
    owns: bool
    #: Whether it replaces the message of *task_id*.
    replaces: bool
    #: Whether another message is being sent, so that the answer is soon another one.
    is_open: bool
    task_id: str
    state: State


class Owners:
    """The owners of keys under *prefix*; *broker_prefix* is the ``global_keyprefix`` of their app.

    Creating it does no I/O; all methods raise StoreError.
    """

    def __init__(self, client: Client, prefix: str, *, broker_prefix: str = "", clock: Clock = server_clock) -> None:
        self._clock = clock
        self._scripts = Scripts(client)
        self._keys = FlowKeys(prefix, broker_prefix)
        self._calls = NumberedCalls(self._scripts, self._keys)
        self._extend = self._scripts.bind("admission/extend", self._keys)
        self._release = self._scripts.bind("admission/release", self._keys)
        self._revoke = self._scripts.bind("admission/revoke", self._keys)

    def get(self, task: str, key: str = "") -> Owner | None:
        """Return the owner of *key* of *task*, or None. Raises InvalidValueError for an invalid name or key."""
        field, now = field_of(task, key).encode(), now_ms(self._scripts, self._clock)
        record = self._scripts.command("HGET", self._keys.owners, field)
        [ends] = self._scripts.command("ZMSCORE", self._keys.owner_ends, field)
        return None if ends is None else _owner(field, record, float(ends), now)

    def list(self, task: str | None = None, limit: int = 100) -> builtins.list[Owner]:
        """Return up to *limit* (1 to 500) owners, of *task* or of all, those first whose time ends first."""
        check_limit(limit, CHUNK)
        pattern = "*" if task is None else literal(field_of(task, "")) + "*"
        return self._page(pattern, limit, 0).owners

    def page(self, part: str = "", *, limit: int = 50, offset: int = 0) -> OwnerPage:
        """Return up to *limit* owners after the first *offset*, of tasks whose names contain *part*.

        O(all owners) if *part* is given: then up to :data:`MAX_READ` are looked at.
        """
        check_limit(limit, MAX_LISTED)
        if not isinstance(part, str) or not part.isprintable() or len(part) > MAX_NAME:
            raise InvalidValueError(f"task {str(part)[:60]!r}: must be at most {MAX_NAME} printable characters")
        return self._page(f"*{literal(part)}*\0*" if part else "*", limit, check_offset(offset))

    def count(self) -> int:
        """Return how many keys are owned."""
        return self._count(now_ms(self._scripts, self._clock))

    def release(self, task: str, key: str = "", *, task_id: str = "") -> bool:
        """Free *key* of *task* if *task_id* ("": any task) owns it; the owner goes on. False: it did not own it.

        Raises InvalidValueError for an invalid name or key.
        """
        return bool(self._release(now=self._clock(), field=field_of(task, key), token="", sent=1, owner_id=task_id))

    def acquire(
        self,
        field: str,
        token: str,
        *,
        task_id: str,
        ttl_ms: int,
        due_ms: int = 0,
        running: str = "",
        replaces: bool = False,
        gone: str = "",
        awaited: bool = False,
    ) -> AcquireReply:
        """Let the message *token* own *field* until *ttl_ms* after now and *due_ms*, if it is confirmed within 10 s.

        *running*: token of the message that the caller runs, and sends again. *replaces*: also instead of a message
        that waits. *gone*: task id of a message that waits, but is a dead letter. *awaited*: others wait for the task.
        """
        outcome, other, state = self._calls.call(
            "admission/acquire",
            now=self._clock(),
            field=field,
            token=token,
            running=running,
            id=task_id,
            ttl=ttl_ms,
            due=due_ms,
            replaces=int(replaces),
            gone=gone,
            awaited=int(awaited),
        )
        return AcquireReply(
            owns=outcome in (OWNED, REPLACED),
            replaces=outcome == REPLACED,
            is_open=outcome == OPEN,
            task_id=id_text(other),
            state=STATES.get(state, "waiting"),
        )

    def confirm(self, field: str, token: str, *, gone: bool = False) -> bool:
        """Record that the message *token* was stored; False if it owns *field* no longer: then it will not run.

        *gone*: what it replaces was removed from the store.
        """
        return bool(self._calls.call("admission/confirm", now=self._clock(), field=field, token=token, gone=int(gone)))

    def extend(self, field: str, token: str, *, due_ms: int, ttl_ms: int) -> bool:
        """Let the message *token*, which waits in the store until *due_ms*, own *field* for *ttl_ms* after that.

        False if it does not own it, or waits elsewhere.
        """
        return bool(self._extend(now=self._clock(), field=field, token=token, due=due_ms, ttl=ttl_ms))

    def withdraw(self, field: str, token: str, *, sent: bool) -> bool:
        """Free *field* if the message *token* owns it; if it was not *sent* but has arrived, it will not run."""
        return bool(self._release(now=self._clock(), field=field, token=token, sent=int(sent), owner_id=""))

    def revoke(self, task_ids: Iterable[str]) -> set[str]:
        """Free the keys of those of *task_ids* that wait and have a key, and for which nobody waits; return them.

        Their messages do not run.
        """
        found: set[str] = set()
        for chunk in chunks(task_ids):
            found.update(map(id_text, self._revoke(now=self._clock(), more=chunk)))
        return found

    def _count(self, now: int) -> int:
        return int(self._scripts.command("ZCOUNT", self._keys.owner_ends, f"({now}", "+inf"))

    def _page(self, pattern: str, limit: int, offset: int) -> OwnerPage:
        now, key = now_ms(self._scripts, self._clock), self._keys.owner_ends
        if pattern == "*":
            bounds = (f"({now}", "+inf", "BYSCORE", "LIMIT", offset, limit, "WITHSCORES")
            rows = [(field, float(ends)) for field, ends in pairs(self._scripts.command("ZRANGE", key, *bounds))]
            total = self._count(now)
        else:
            found = self._matching(pattern, now)
            rows, total = found[offset : offset + limit], len(found)
        return OwnerPage([*self._read(rows, now)], total)

    def _matching(self, pattern: str, now: int) -> builtins.list[tuple[bytes, float]]:
        """Return the fields that match *pattern*, and their ends, in order."""
        found: dict[bytes, float] = {}
        pages = self._scripts.scan("ZSCAN", self._keys.owner_ends, match=pattern, count=SCAN)
        for page in itertools.islice(pages, MAX_READ // SCAN):
            found |= {field: float(ends) for field, ends in page if float(ends) > now}
        return sorted(found.items(), key=lambda row: (row[1], row[0]))

    def _read(self, rows: Iterable[tuple[bytes, float]], now: int) -> Iterator[Owner]:
        for chunk in chunks(rows):
            records = self._scripts.command("HMGET", self._keys.owners, *(field for field, _ in chunk))
            for (field, ends), record in zip(chunk, records, strict=True):
                owner = _owner(field, record, ends, now)
                if owner is not None:
                    yield owner


def new_token() -> str:
    """Return a token that no other message has."""
    return os.urandom(8).hex()


def field_of(task: str, key: str) -> str:
    """Return the name of *key* of *task* in Redis; "" is the key of a task without one. Raises InvalidValueError."""
    if not isinstance(task, str) or not task.isprintable() or not 0 < len(task) <= MAX_NAME:
        raise InvalidValueError(f"task {str(task)[:60]!r}: must be 1 to {MAX_NAME} printable characters")
    return f"{task}\0{key if key == '' else check_key(key)}"


def _owner(field: bytes, record: bytes | None, ends: float, now: int) -> Owner | None:
    """Return the owner that a record describes; None for none, and for the record of another program."""
    task, _, key = id_text(field).partition("\0")
    found = _RECORD.fullmatch(record or b"")
    if found is None or found[3] not in STATES:
        return None
    state = found[3]
    if ends <= now:
        # As in includes/unique_owner.lua: if it is not confirmed in time, it or the one before it owns the key.
        before = _BEFORE.match(found[2])
        if state != b"s" or before is None or before[1] not in STATES:
            return None
        state, ends = before[1], now + int(found[4])
    return Owner(task, key, id_text(found[5]), STATES[state], from_ms(ends))
