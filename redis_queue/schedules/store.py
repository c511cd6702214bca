"""ScheduleStore: the schedules of one DelayQueue, which gets the messages of their runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, Literal
from uuid import UUID, uuid5

from redis_queue.basics.logs import logger_of
from redis_queue.basics.waits import Backoff
from redis_queue.delay.entries import EntryWriter
from redis_queue.delay.model import Push
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidValueError, StoreError
from redis_queue.schedules.definition import Definition
from redis_queue.schedules.state import MAX_EVENT_BYTES, MAX_EVENTS, NEVER, NONE, Event, State
from redis_queue.store.chunks import CHUNK, by_size, chunks, rows_of
from redis_queue.store.codec import read_document
from redis_queue.store.ids import id_bytes, id_text, is_id
from redis_queue.store.keys import ScheduleKeys, check_name, is_name
from redis_queue.store.scripts import now_ms, pairs

logger = logger_of(__name__)

MAX_SCHEDULES: Final = 100_000

MAX_CHANGES: Final = 100
"""Maximum number of changes in one call."""

ATTEMPTS: Final = 20
"""How often a schedule is read again that another process changed meanwhile."""

MAX_VERSIONS: Final = 100
"""Maximum number of versions of an app that are remembered."""

MAX_APPS: Final = 100
"""Maximum number of apps whose refused schedules are read."""

_APP: Final = {"versions": list, "names": list, "refused": dict}

_RUNS: Final = UUID("5f3e7f5c-2a1c-4c0e-9a51-4d1f3d2c9b7a")


@dataclass(frozen=True, slots=True)
class Stored:
    """A schedule as it is stored: *error* says what cannot be read of it."""

    name: str
    state: State | None
    definition: Definition | None
    state_text: bytes
    look: float = NEVER
    error: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the schedule *name*, if its state is still *before* (b"" = it does not exist).

    *after* is its new state, None deletes it. *message* is stored with it. *declared*, an app and what is stored of its
    versions, is the same in all changes of a call: they are made only if that is still stored.
    """

    name: str
    before: bytes
    after: State | None
    definition: str = ""
    look: float = NEVER
    events: Sequence[Event] = ()
    message: Push | None = None
    declared: tuple[str, bytes] = "", b""


class ScheduleStore:
    """The schedules whose runs *queue* gets. Creating it does no I/O; all methods raise StoreError."""

    def __init__(self, queue: DelayQueue) -> None:
        self._queue = queue
        self._shard = queue.shards[0]
        self._keys = ScheduleKeys(self._shard.keys)
        self._scripts = queue.shards.scripts
        self._writer = EntryWriter(queue.shards)
        self._read = self._scripts.bind("schedules/read", self._keys)
        self._own: dict[str, bytes] = {
            name: getattr(self._keys, name)
            for name in ("schedules", "schedule_states", "schedule_looks", "schedule_events", "schedule_apps")
        }
        self._declare = self._scripts.bind("schedules/declare", self._keys)

    def check(self, message: Push) -> None:
        """Raise the error that :meth:`change` would raise for *message*; nothing is sent to Redis."""
        self._queue.check(message)

    def now(self) -> int:
        """Return the time of the server in ms."""
        return now_ms(self._scripts, self._shard.clock)

    def due(self, limit: int) -> tuple[int, float, list[Stored]]:
        """Return the time in ms, the seconds until the next look (inf = none), and the schedules to look at now."""
        now, left, *rows = self._read(now=self._shard.clock(), limit=limit)
        return int(now), left / 1e6 if left >= 0 else NEVER, [_read(*row) for row in rows_of(rows, 4)]

    def change(self, changes: Sequence[Change]) -> list[bool]:
        """Make *changes*, up to 100 in a call; tell for each whether it was made: else the schedule is another one.

        Raises InvalidValueError for one schedule more than :data:`MAX_SCHEDULES`, and what a push raises.
        """
        rows = [self._row(change) for change in changes]
        flags: list[bool] = []
        app, versions = next((change.declared for change in changes), ("", b""))
        for chunk in chunks(rows, MAX_CHANGES):
            for part in by_size(chunk, lambda row: len(row[-1]) + len(row[3])):
                more = [value for row in part for value in row]
                new, reply = self._shard.call(
                    "schedules/change",
                    others=self._own,
                    now=self._shard.clock(),
                    limit=MAX_SCHEDULES,
                    most=MAX_EVENTS,
                    app=id_bytes(app),
                    versions=versions,
                    more=more,
                )
                if new or any(change.definition for change in changes):
                    self._queue.shards.register()
                if b"2" in reply:
                    raise InvalidValueError(f"there are {MAX_SCHEDULES:,} schedules: delete some first")
                flags += [flag == ord("1") for flag in reply]
        return flags

    def _row(self, change: Change) -> tuple[Any, ...]:
        message: tuple[Any, ...] = "", 0, b""
        if change.message is not None:
            id_, _, due, _, record = self._writer.row(change.message, iter(()))
            message = id_bytes(id_), due, record
        after = "" if change.after is None else str(change.after)
        look = "inf" if change.look == NEVER else int(change.look)
        events = "\n".join(map(str, reversed(change.events)))
        return id_bytes(change.name), change.before, after, change.definition, look, events, *message

    def get(self, names: Iterable[str]) -> list[Stored | None]:
        """Return the schedules *names*, up to 500 or about 1 MiB in a call; None for each that does not exist."""
        found: list[Stored | None] = []
        left = [id_bytes(check_name(name, what="schedule")) for name in names]
        while left:
            _, _, *rows = self._read(now=self._shard.clock(), limit=0, more=left[:CHUNK])
            read = [_read(*row) if any(row[1:3]) else None for row in rows_of(rows, 4)]
            found += read
            left = left[len(read) :]
        return found

    def names(self, offset: int = 0, limit: int = CHUNK) -> list[str]:
        """Return names of schedules, those first that are sent next."""
        found = self._scripts.command("ZRANGE", self._keys.schedule_looks, offset, offset + limit - 1)
        return [id_text(name) for name in found]

    def all_names(self) -> list[str]:
        """Return the names of all schedules, sorted."""
        pages = self._scripts.scan("ZSCAN", self._keys.schedule_looks, count=CHUNK)
        return sorted({id_text(name) for page in pages for name, _ in page})

    def states(self, limit: int) -> list[Stored]:
        """Return the first *limit* schedules, those first that are sent next, without definitions.

        *error* says that a state is unreadable.
        """
        looks = pairs(self._scripts.command("ZRANGE", self._keys.schedule_looks, 0, limit - 1, "WITHSCORES"))
        found: list[Stored] = []
        for chunk in chunks(looks):
            texts = self._scripts.command("HMGET", self._keys.schedule_states, *(name for name, _ in chunk))
            rows = zip(chunk, texts, strict=True)
            found += [_read(name, text or b"", None, look) for (name, look), text in rows]
        return found

    def count(self) -> int:
        """Return how many schedules there are."""
        return int(self._scripts.command("ZCARD", self._keys.schedule_looks))

    def set_aside(self, name: str, look: int) -> None:
        """Look again at *look* (ms) at a schedule that cannot be read: another process may put it, or have put it."""
        # It may be paused meanwhile: an earlier look would end that.
        self._scripts.command("ZADD", self._keys.schedule_looks, "XX", "GT", look, id_bytes(name))

    def place_of(self, run_id: str) -> Literal["waiting", "dead", ""]:
        """Return where the message of a run is, if it did not leave the DelayQueue for a broker."""
        # Another program may have written an id that no entry can have.
        _, is_dead = self._queue.reader.find(list(filter(is_id, [run_id]))).get(run_id, (None, None))
        return "" if is_dead is None else "dead" if is_dead else "waiting"

    def events(self, name: str) -> list[Event]:
        """Return the last events of a schedule, the newest first."""
        (found,) = self.events_of([check_name(name, what="schedule")])
        return found

    def events_of(self, names: Sequence[str]) -> list[list[Event]]:
        """Return the last events of each schedule, the newest first; none if they are larger than ours can be."""
        key, fields = self._keys.schedule_events, [id_bytes(name) for name in names]
        sizes = self._scripts.each([self._scripts.read_call("HSTRLEN", key, field) for field in fields])
        usual = [field for field, size in zip(fields, sizes, strict=True) if 0 < size() <= MAX_EVENTS * MAX_EVENT_BYTES]
        texts: dict[bytes, bytes | None] = {}
        for chunk in chunks(usual, MAX_CHANGES):
            texts.update(zip(chunk, self._scripts.command("HMGET", key, *chunk), strict=True))
        return [Event.read_all(texts.get(field)) for field in fields]

    def update(self, name: str, make: Callable[[Stored | None], Change | None]) -> bool:
        """Make the change that *make* returns for a schedule as it is stored; again if another process was faster.

        Return False if *make* returned None. Raises StoreError if others are always faster.
        """
        for _ in _attempts():
            (stored,) = self.get([name])
            change = make(stored)
            if change is None:
                return False
            if self.change([change])[0]:
                return True
        raise StoreError(f"schedule {name!r}: other processes change it all the time; try again")

    def settle(self, ends: Sequence[tuple[str, Event]]) -> None:
        """Note how runs ended, each the name of its schedule and an event; those of unknown schedules are ignored.

        An end that is among the last events counts once, however often it is told. After too many failures in a row, a
        schedule is paused.
        """
        left = list(ends)
        for _ in _attempts():
            names = list(dict.fromkeys(name for name, _ in left if is_name(name)))
            known = dict(zip(names, self.get(names), strict=True))
            # Read after the states: an end that is noted later has another state.
            events = zip(names, self.events_of(names), strict=True)
            told = {(name, it.id, it.text) for name, found in events for it in found if it.kind == "ended"}
            rows: list[tuple[tuple[str, Event], Change]] = []
            for name, event in left:
                stored, end = known.get(name), (name, event.id, event.text)
                if stored is None or end in told:
                    continue
                told.add(end)
                if stored.state is not None and stored.definition is not None:
                    change = _settled(stored, stored.state, stored.definition, event)
                    rows.append(((name, event), change))
                    text = str(change.after).encode()
                    known[name] = replace(stored, state=change.after, state_text=text, look=change.look)
            done = self.change([change for _, change in rows])
            left = [end for (end, _), flag in zip(rows, done, strict=True) if not flag]
            if not left:
                return
        raise StoreError(f"{len(left)} ends of runs: other processes change their schedules all the time")

    def run_id(self, name: str, due: int) -> str:
        """Return the task id of the run of *name* that is due at *due* (ms), or of another number: always the same."""
        place = f"{self._queue.settings.prefix}\0{self._queue.name}\0{name}\0{due}"
        number = 0
        # Its entry has to be in the first shard, where the schedules are.
        while True:
            found = str(uuid5(_RUNS, f"{place}\0{number}"))
            if self._queue.shards.of(found) is self._shard:
                return found
            number += 1

    def versions(self, app: str) -> tuple[bytes, dict[str, Any]]:
        """Return what is stored about the versions of *app*, as text and read.

        That is ``{"versions": […], "names": […], "refused": {name: why}}``.
        """
        text = self._scripts.command("HGET", self._keys.schedule_apps, id_bytes(app)) or b""
        found = _read_app(text)
        if found is None:
            extra = {"action": "schedule_versions_unreadable"}
            logger.warning("the versions of app %s are unreadable", app, extra=extra)
        return text, found or {"versions": [], "names": [], "refused": {}}

    def set_versions(
        self,
        app: str,
        before: bytes,
        versions: Sequence[str],
        names: Iterable[str],
        refused: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        """Store the versions of *app*, the current one first, the names it declares, and why some are *refused*.

        Return False if *before* is old.
        """
        after = {"versions": list(versions)[:MAX_VERSIONS], "names": sorted(names), "refused": dict(refused)}
        return bool(self._declare(app=id_bytes(app), known=before, stored=json.dumps(after)))

    def refused(self) -> dict[str, dict[str, str]]:
        """Return why schedules that an app declares are not stored, by name, of at most about 100 apps."""
        _, found = self._scripts.command("HSCAN", self._keys.schedule_apps, 0, "COUNT", MAX_APPS)
        apps = {id_text(app): _read_app(text) for app, text in pairs(found)[:MAX_APPS]}
        return {app: known["refused"] for app, known in apps.items() if known and known["refused"]}


def _attempts() -> Iterator[None]:
    # Of many that change one schedule at once, none loses each time if they pause at random.
    backoff = Backoff(first=0.002, cap=1)
    for number in range(ATTEMPTS):
        if number:
            time.sleep(backoff.next())
        yield


def _settled(stored: Stored, state: State, definition: Definition, event: Event) -> Change:
    failed = event.text == "failed"
    streak = state.streak + 1 if failed else 0 if event.text == "succeeded" else state.streak
    active = NONE if state.active == event.id else state.active
    after = replace(state, failed=state.failed + failed, streak=streak, active=active)
    look, events = stored.look, [event]
    most = definition.pause_after_failures
    if failed and most is not None and streak >= most and not state.is_paused:
        after, look = replace(after, is_paused=True), NEVER
        events.append(Event("paused", event.at, text=f"{streak} runs in a row failed"))
    return Change(stored.name, stored.state_text, after, look=look, events=events)


def new_generation() -> str:
    """Return the name of a new generation of a schedule."""
    return os.urandom(4).hex()


def _read_app(text: bytes) -> dict[str, Any] | None:
    """Return the stored versions of an app; None for others."""
    try:
        found = read_document(text) if text else {}
        versions, names, refused = (found.get(key, kind()) for key, kind in _APP.items())
        if not all(isinstance(item, str) for item in [*versions, *names, *refused, *refused.values()]):
            return None
    except (ValueError, TypeError, AttributeError):
        return None
    return {"versions": list(versions), "names": list(names), "refused": dict(refused)}


def _read(name: bytes, state: bytes, definition: bytes | None, look: bytes) -> Stored:
    """Return a schedule as it is stored; without a *definition* nothing is told of that."""
    found: State | None = None
    known: Definition | None = None
    shown, errors = id_text(name), list[str]()
    try:
        found = State.read(state)
    except InvalidValueError as error:
        errors.append(str(error))
    try:
        known = None if definition is None else Definition.read(definition)
    except InvalidValueError as error:
        errors.append(str(error))
    if known is not None and known.name != shown:
        errors.append(f"its definition has the name {known.name[:60]!r}")
        known = None
    return Stored(shown, found, known, state, float(look or NEVER), "; ".join(errors))
