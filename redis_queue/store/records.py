"""Records: the keys of one hash tag, and the moves that both kinds of queues share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol

from redis_queue.basics.logs import hide_secrets, logger_of
from redis_queue.basics.times import from_ms
from redis_queue.errors import InvalidValueError, RedisQueueError
from redis_queue.model import DeadLetter, InFlight, Item, Lease, Message, PutBack, Quarantined, Unread
from redis_queue.store.chunks import CHUNK, Pace, chunks, rows_of
from redis_queue.store.codec import Codec, Record, UnreadableError
from redis_queue.store.ids import id_bytes, id_text
from redis_queue.store.keys import Keys
from redis_queue.store.scripts import Clock, NumberedCalls, Scripts
from redis_queue.store.settings import Settings

logger = logger_of(__name__)

MAX_REASON: Final = 2000


class LeasedItem(Protocol):
    """A message, an entry or a lock that is held under a lease."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def lease(self) -> Lease | None:
        """Its lease; None if it was only read."""


def id_tokens(held: Sequence[LeasedItem]) -> list[bytes]:
    """Return id and token of each. Raises InvalidValueError for an item without a lease."""
    found: list[bytes] = []
    for item in held:
        if item.lease is None:
            raise InvalidValueError(f"{item.id!r} has no lease: it must be claimed first")
        found += (id_bytes(item.id), item.lease.token.encode())
    return found


class Records:
    """The keys of a RedisQueue, or of one shard of a DelayQueue, and the moves that both kinds share.

    *listed*: the queue has a list of ready messages; a DelayQueue has none.
    """

    def __init__(self, scripts: Scripts, keys: Keys, settings: Settings, *, listed: bool, clock: Clock) -> None:
        self.keys = keys
        self.codec = Codec(settings.serializer, settings.max_body)
        self.clock = clock
        self._scripts = scripts
        self._settings = settings
        self._listed = int(listed)
        self._numbered = NumberedCalls(scripts, keys)
        self.call = self._numbered.call
        self._bound: dict[str, Callable[..., Any]] = {}

    def prepare(self, name: str, held: Sequence[LeasedItem], **arguments: Any) -> Callable[[], Any]:
        """Return a call of script *name* with *held*; it may be repeated, as :meth:`NumberedCalls.prepare` says."""
        return self._numbered.prepare(name, more=id_tokens(held), **arguments)

    def run(self, name: str, **arguments: Any) -> Any:
        """Call script *name*, which is safe to repeat at any time."""
        script = self._bound.get(name)
        if script is None:
            script = self._bound[name] = self._scripts.bind(name, self.keys)
        return script(**arguments)

    def ack(self, held: Sequence[LeasedItem]) -> list[bool]:
        """Ack *held*; False for each whose lease was lost."""
        return [kept for chunk in chunks(held) for kept in read_flags(self.call("records/ack", more=id_tokens(chunk)))]

    def nack(self, held: Sequence[LeasedItem], *, delay: int, reason: object, counted: bool, dead: bool) -> list[bool]:
        """Give *held* back, to be claimed after *delay* ms; False for each whose lease was lost."""
        return [
            flag != _NO
            for chunk in chunks(held)
            for flag in self.call(
                "records/nack",
                now=self.clock(),
                delay=delay,
                reason=reason_bytes(reason),
                max_deliveries=1 if dead else self._settings.max_deliveries,
                counted=int(counted),
                listed=self._listed,
                more=id_tokens(chunk),
            )
        ]

    def extend(self, held: Sequence[LeasedItem], lease_ms: int) -> list[bool]:
        """Lengthen leases to *lease_ms* from now (0: only check them); False for each that was lost."""
        return [
            kept
            for chunk in chunks(held)
            for kept in read_flags(
                self.run("records/extend", now=self.clock(), lease=lease_ms, more=id_tokens(chunk))[1]
            )
        ]

    def put_back(self, limit: int) -> PutBack:
        """End up to *limit* expired leases."""
        total = PutBack()
        while limit > 0:
            size = min(limit, CHUNK)
            seen, returned, dead = self.run(
                "records/put_back",
                now=self.clock(),
                limit=size,
                max_deliveries=self._settings.max_deliveries,
                listed=self._listed,
            )
            total += PutBack(returned, dead)
            limit -= size
            if seen < size:
                break
        return total

    def quarantine(self, held: LeasedItem, reason: str) -> bool:
        """Move an unreadable record to quarantine; False if the lease was lost."""
        id_, token = id_tokens([held])
        return bool(self.run("records/quarantine", now=self.clock(), id=id_, token=token, reason=reason_bytes(reason)))

    def decode(self, id_: str, record: bytes, lease: Lease | None) -> Record | None:
        """Return the contents of *record*, None if it is unreadable: with a *lease*, it goes to quarantine.

        If that fails, it comes back when its lease ends.
        """
        try:
            return self.codec.decode(record)
        except UnreadableError as unreadable:
            if lease is not None:
                try:
                    self.quarantine(Message(id_, None, {}, from_ms(0), 0, lease), str(unreadable))
                except RedisQueueError as error:
                    logger.warning("cannot quarantine: %s", error, extra={"action": "quarantine_failed", "id": id_})
            return None

    def quarantined(self, offset: int, limit: int, max_bytes: int) -> list[Quarantined]:
        """Return a page of unreadable records."""
        rows = self.pages("records/quarantined", 2, offset, limit, max_bytes)
        return [_read_quarantined(raw, size) for raw, size in rows]

    def dead_letters(self, offset: int, limit: int, max_bytes: int) -> list[DeadLetter]:
        """Return a page of dead letters, oldest first."""
        return [self._letter(*row) for row in self.pages("records/dead_letters", 5, offset, limit, max_bytes)]

    def pages(self, name: str, width: int, offset: int, limit: int, max_bytes: int) -> Iterator[tuple[Any, ...]]:
        """Yield up to *limit* rows of script *name*, which returns about 1 MiB per call."""
        more, budget = 1, max_bytes
        while more:
            more, *reply = self.run(name, offset=offset, limit=limit, budget=budget)
            yield from rows_of(reply, width)
            offset, limit = offset + len(reply) // width, limit - len(reply) // width
            # Ids and reasons count, too: the limit is on everything that Redis sends.
            budget = max(0, budget - sum(len(part) for part in reply if isinstance(part, bytes)))

    def look(self, id_: str, max_bytes: int) -> Item | None:
        """Return the message or entry *id_* in any state, or None."""
        found = self.run("records/look", id=id_bytes(id_), budget=max_bytes)
        if not found:
            return None
        state, at, deliveries, reason, record = found
        item = Item(
            id=id_,
            state=state.decode(),
            at=None if at < 0 else from_ms(at),
            put_at=None,
            deliveries=deliveries,
            reason=reason.decode(errors="replace"),
            body=Unread(record) if isinstance(record, int) else None,
            headers={},
        )
        if isinstance(record, int):
            return item
        try:
            put_at, headers, body, destination = self.codec.decode(record)
        except UnreadableError as error:
            return replace(item, problem=str(error))
        return replace(item, put_at=from_ms(put_at), body=body, headers=headers, destination=destination)

    def in_flight(self, offset: int, limit: int) -> list[InFlight]:
        """Return a page of the items in flight, by the end of their leases."""
        rows = rows_of(self.run("records/in_flight", offset=offset, limit=limit), 3)
        return [InFlight(id_text(raw), from_ms(ends), deliveries) for raw, ends, deliveries in rows]

    def redrive(self, ids: Iterable[str] | None, pace: Pace) -> Iterator[list[bool]]:
        """Redrive dead letters (None: all that are dead now) at *pace*; yield the flags of each batch."""
        for chunk in self._dead_ids() if ids is None else chunks(ids):
            reply = self.call(
                "records/redrive",
                now=self.clock(),
                after=pace.delay(),
                gap=pace.gap,
                listed=self._listed,
                more=map(id_bytes, chunk),
            )
            flags = read_flags(reply)
            pace.add(sum(flags))
            yield flags

    def purge(self, place: str, limit: int) -> int:
        """Delete up to *limit* of the items that are in *place* (ready, waiting, dead) now; return their number.

        The quarantine is always deleted entirely.
        """
        key: bytes = getattr(self.keys, place)
        size = self._size(place)
        if place == "quarantine":
            self._scripts.command("UNLINK", key)
            return size
        total = 0
        # Up to the size at the beginning: a busy producer must not keep a purge going forever.
        most = min(size, limit)
        purge = partial(self.call, "records/purge", others={"place": key})
        while total < most and (deleted := int(purge(limit=min(CHUNK, most - total)))):
            total += deleted
        return total

    def _size(self, place: str) -> int:
        command = "LLEN" if place in ("ready", "quarantine") else "ZCARD"
        return int(self._scripts.command(command, getattr(self.keys, place)))

    def _dead_ids(self) -> Iterator[list[str]]:
        """Yield the ids of current dead letters in chunks; the caller removes each chunk before the next.

        Letters that die meanwhile are left out: else a redrive might never end.
        """
        left = self._size("dead")
        while left > 0 and (ids := self._scripts.command("ZRANGE", self.keys.dead, 0, min(CHUNK, left) - 1)):
            left -= len(ids)
            yield [id_text(id_) for id_ in ids]

    def destroy(self) -> None:
        """Delete all keys; the slots of callers expire within a minute."""
        self._scripts.command("UNLINK", *self.keys.all())

    def _letter(self, id_: bytes, died_at: int, deliveries: int, reason: bytes, record: bytes | int) -> DeadLetter:
        body: Any = None
        headers: Any = {}
        text = reason.decode(errors="replace")
        if isinstance(record, int):
            return DeadLetter(id_text(id_), Unread(record), headers, from_ms(died_at), deliveries, text, record)
        try:
            _, headers, body, _ = self.codec.decode(record)
        except UnreadableError as error:
            text = f"{text} (unreadable: {error})"
        return DeadLetter(id_text(id_), body, headers, from_ms(died_at), deliveries, text, len(record))


def reason_bytes(reason: object) -> bytes:
    """Return *reason*, text or an exception, as stored bytes of limited length, without likely secrets."""
    # A secret that begins before the cut is recognized by its whole text.
    return hide_secrets(_reason_text(reason)[: 4 * MAX_REASON])[:MAX_REASON].encode(errors="replace")


def _reason_text(reason: object) -> str:
    if isinstance(reason, str):
        return reason
    if reason is None:
        return ""
    name = type(reason).__name__
    try:
        text = str(reason)
    except Exception:
        # The message must be settled even if the text of a foreign exception fails.
        logger.debug("a %s has no text", name, exc_info=True)
        return name
    return f"{name}: {text}" if isinstance(reason, BaseException) else text


def version_of(line: bytes) -> str:
    """Return the version of a record by its first line."""
    return hashlib.blake2b(line, digest_size=6).hexdigest()


def read_flags(flags: bytes) -> list[bool]:
    """Return whether each flag in the reply of a script is 1."""
    return [flag == _YES for flag in flags]


_NO, _YES = b"01"


def _read_quarantined(raw: bytes, size: int) -> Quarantined:
    head, _, rest = raw.partition(b"\n")
    try:
        found_at, id_length, reason_length = (int(part) for part in head.split(b" "))
    except ValueError:
        return _foreign(raw, size)
    middle = id_length + reason_length
    if min(id_length, reason_length) < 0 or middle > len(rest):
        return _foreign(raw, size)
    return Quarantined(
        id=id_text(rest[:id_length]),
        raw=rest[middle:],
        reason=rest[id_length:middle].decode(errors="replace"),
        found_at=from_ms(found_at),
        size=size - len(head) - 1 - middle,
    )


def _foreign(raw: bytes, size: int) -> Quarantined:
    return Quarantined("", raw, "not written by redis_queue", from_ms(0), size)
