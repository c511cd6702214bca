"""EntryRemoval: cancel stored messages, or delete dead ones, and free the keys of unique tasks in the same step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from redis_queue.basics.times import point_ms
from redis_queue.celery.message.entry import unique_header_of
from redis_queue.celery.message.headers import UniqueHeader
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import StoreError, StoreRefusedError
from redis_queue.model import CancelOutcome, Entry
from redis_queue.store.chunks import ANY_SIZE, check_many
from redis_queue.store.ids import check_id
from redis_queue.store.keys import FlowKeys
from redis_queue.store.scripts import Scripts

ATTEMPTS: Final = 5
"""How often an entry is read again that was replaced before it was removed."""

NONE: Final = "\0"
"""A mark that no record has."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What became of the removal of an entry, and the entry itself; None without a readable one that waited."""

    outcome: CancelOutcome
    entry: Entry | None


class EntryRemoval:
    """Removes entries of *queue*; *keys* are those of the flows and unique tasks in its store.

    All methods raise StoreError, and InvalidValueError for invalid ids.
    """

    def __init__(self, queue: DelayQueue, keys: FlowKeys) -> None:
        self._queue = queue
        self._keys = keys

    def has_keys(self) -> bool:
        """Tell whether any key of a unique task is owned; False for a user who may not know."""
        with suppress(StoreRefusedError):
            return bool(Scripts(self._queue.client).command("EXISTS", self._keys.owners))
        return False

    def cancel(self, ids: Sequence[str]) -> list[Removed]:
        """Cancel entries as :meth:`redis_queue.DelayQueue.cancel_many` does, and free their keys.

        Messages that may have been sent before do not run if they are those of unique tasks.
        """
        found: dict[int, Removed] = {}
        for last in (False,) * ATTEMPTS + (True,):
            left = [place for place in range(len(ids)) if place not in found]
            if not left:
                break
            read = self._read([ids[place] for place in left])
            rows = []
            for id_ in (ids[place] for place in left):
                key = read[id_][1] if id_ in read else None
                mark = NONE if id_ not in read else key.token if key is not None else ""
                rows.append((id_, "" if last else mark, *_owner(key)))
            for place, outcome in zip(left, self._cancel(rows), strict=True):
                # Without an outcome, another message was stored under this id after it was read.
                if outcome is not None:
                    entry, _ = read.get(ids[place], (None, None))
                    found[place] = Removed(outcome, entry)
        return [found[place] for place in range(len(ids))]

    def delete_dead(self, ids: Iterable[str], *, until: datetime | None = None) -> int:
        """Delete dead letters as :meth:`redis_queue.DelayQueue.delete_dead` does, and free their keys."""
        names = [check_id(id_) for id_ in check_many(ids, name="ids")]
        died_by = ANY_SIZE if until is None else point_ms(until, name="until")
        read = self._read(names) if self.has_keys() else {}
        keys = {id_: key for id_, (entry, key) in read.items() if entry is None and key is not None}
        rows = [(id_, key.token, *_owner(key)) for id_, key in keys.items()]
        count = sum(outcome is not None and outcome.taken_out for outcome in self._cancel(rows, died_by))
        return count + self._queue.delete_dead([id_ for id_ in names if id_ not in keys], until=until)

    def _cancel(self, rows: Sequence[tuple[str, str, str, str]], died_by: int = 0) -> list[CancelOutcome | None]:
        # Without keys, also in a Redis Cluster.
        if not any(field for _, _, field, _ in rows):
            return self._queue.calls.cancel_marked((id_, mark) for id_, mark, _, _ in rows)
        return self._queue.calls.cancel_unique(rows, self._keys, died_by=died_by)

    def _read(self, ids: Sequence[str]) -> dict[str, tuple[Entry | None, UniqueHeader | None]]:
        """Return the entries of those *ids* that have one, None for a dead letter, and the keys that they own.

        Read first: a removed entry is gone, and with it the name of the chord that waits for it.
        """
        found: dict[str, tuple[Entry | None, UniqueHeader | None]] = {}
        for id_ in self._queue.versions(ids):
            entry, item = self._queue.get(id_), None
            if entry is None:
                # A dead letter; a user who may only send must not read it.
                with suppress(StoreError):
                    item = self._queue.look(id_)
            found[id_] = entry, unique_header_of(entry or item)
        return found


def _owner(key: UniqueHeader | None) -> tuple[str, str]:
    """Return field and token of *key*."""
    return ("", "") if key is None else (key.field, key.token)
