"""Batch: what becomes of claimed entries on their way into a broker."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from redis_queue.backoff import retry_delay
from redis_queue.celery.brokers import Broker, UnroutableError
from redis_queue.celery.brokers.redis import RedisBroker
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.packing import VERSION, UnknownVersionError, element_of, needs_reading
from redis_queue.celery.message.reading import envelope_of_entry
from redis_queue.celery.tracing import DispatchSpans
from redis_queue.delay.lateness import NO_LATENESS, Dispatches, Lateness
from redis_queue.delay.model import Delivery
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidValueError
from redis_queue.logs import logger_of
from redis_queue.model import Entry
from redis_queue.store.chunks import chunks

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

UNKNOWN_WAIT: Final = 60.0
"""Seconds until an entry of a later version is looked at again."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """What one run did: *sent* reached the broker, *failed* went back or to the dead letters.

    *next_in*: seconds until the next entry is due, inf if unknown. *more*: the batch stopped at a limit, and more
    entries may be due. *lateness*: how late the sent entries were, *worst*: the longest of it in seconds.
    """

    sent: int = 0
    failed: int = 0
    next_in: float = field(default=math.inf, compare=False)
    more: bool = field(default=False, compare=False)
    lateness: Lateness = field(default=NO_LATENESS, compare=False)
    worst: float = field(default=0.0, compare=False)

    def __add__(self, other: Dispatched) -> Dispatched:
        return Dispatched(
            self.sent + other.sent,
            self.failed + other.failed,
            other.next_in,
            other.more,
            self.lateness + other.lateness,
            max(self.worst, other.worst),
        )

    @property
    def counts(self) -> Dispatches:
        """What is kept of it."""
        return Dispatches(self.sent, self.failed, self.lateness)


class AwayError(Exception):
    """The broker went away; the cause says how."""


class Batch:
    """What becomes of one batch of claimed entries; each ends acked, delivered or released."""

    def __init__(self, app: Celery, queue: DelayQueue, broker: Broker, stop_at: float) -> None:
        self._app = app
        self._queue = queue
        self._broker = broker
        self._stop_at = stop_at
        self._sent: list[Entry] = []
        self._delivered = 0
        self._failed = 0
        self._refused: dict[str, list[str]] = {}
        self._spans = DispatchSpans()
        self._late_ms: list[float] = []
        self._claimed_at = stop_at - queue.settings.lease_ms / 2000

    def dispatch(self, entries: Sequence[Entry]) -> Dispatched:
        """Send all *entries* that can be sent."""
        open_entries = {entry.id: entry for entry in entries}
        try:
            if isinstance(self._broker, RedisBroker) and not self._broker.shares_store:
                self._push(self._broker, [entry for entry in entries if _is_plain(entry)], open_entries)
            rest = list(open_entries.values())
            readable = [(entry, envelope) for entry in rest if (envelope := self._read(entry, open_entries))]
            for entry, envelope in readable:
                self._spans.begin(entry, envelope)
            for part in chunks(readable, self._broker.at_once):
                if time.monotonic() >= self._stop_at:
                    break
                if isinstance(self._broker, RedisBroker) and self._broker.shares_store:
                    part = self._deliver(self._broker, part, open_entries)  # noqa: PLW2901
                self._publish(part, open_entries)
        except Exception as error:
            if self._broker.is_away(error):
                raise AwayError from error
            raise
        finally:
            self._queue.ack_many(self._sent)
            left = list(open_entries.values())
            self._queue.release_many(left, reason="not sent: the broker is away or slow", counted=False)
            self._tell()
        return Dispatched(
            len(self._sent) + self._delivered,
            self._failed,
            lateness=Lateness.of(self._late_ms),
            worst=max(self._late_ms, default=0.0) / 1000,
        )

    def _tell(self) -> None:
        """Log refused entries, one line for each reason: thousands may go to the same list."""
        for why, ids in self._refused.items():
            several = f" ({len(ids)} entries)" if len(ids) > 1 else ""
            fields = {"action": "dispatch_refused", "entry_id": ids[0], "count": len(ids)}
            logger.error("not sent: %s%s", why, several, extra=fields)

    def _read(self, entry: Entry, open_entries: dict[str, Entry]) -> Envelope | None:
        try:
            envelope = envelope_of_entry(self._app, entry, self._broker.destinations)
            self._broker.check(entry, envelope)
            return envelope
        except UnknownVersionError as error:
            logger.warning("entry is left alone: %s", error, extra={"action": "dispatch_unknown", "entry_id": entry.id})
            del open_entries[entry.id]
            self._queue.release(entry, delay=UNKNOWN_WAIT, counted=False)
        except InvalidValueError as error:
            self._refuse(entry, str(error), open_entries, dead=True)
        except Exception as error:
            if self._broker.is_away(error):
                raise
            logger.exception("cannot send", extra={"action": "dispatch_failed", "entry_id": entry.id})
            self._refuse(entry, f"{type(error).__name__}: {error}", open_entries)
        return None

    def _push(self, broker: RedisBroker, entries: Sequence[Entry], open_entries: dict[str, Entry]) -> None:
        """Send what needs neither routing nor another look as it is stored, as the store's script would."""
        plain: list[Entry] = []
        rows: list[tuple[str, str]] = []
        for entry in entries:
            # What cannot be read is refused where messages are read.
            with contextlib.suppress(InvalidValueError):
                element = element_of(entry.payload, entry.id)
                broker.destinations.check_list(str(entry.destination), broker.names)
                if needs_reading(element):
                    continue
                rows.append((str(entry.destination), element))
                plain.append(entry)
                self._spans.begin(entry)
        broker.push(rows, lambda number, why: self._settle(plain[number], why, open_entries))

    def _deliver(
        self, broker: RedisBroker, readable: Sequence[tuple[Entry, Envelope]], open_entries: dict[str, Entry]
    ) -> list[tuple[Entry, Envelope]]:
        """Let the store push what has lists; return the rest."""
        rows: list[Delivery] = []
        rest: list[tuple[Entry, Envelope]] = []
        for entry, envelope in readable:
            try:
                row = broker.delivery(entry, envelope)
            except UnroutableError as error:
                self._refuse(entry, str(error), open_entries)
                continue
            except Exception as error:
                if broker.is_away(error):
                    raise
                self._refuse(entry, f"{type(error).__name__}: {error}", open_entries)
                continue
            if row is None:
                rest.append((entry, envelope))
            else:
                rows.append(row)
        for row, flag in zip(rows, self._queue.moves.deliver(rows), strict=True):
            if flag is None:
                lists = ", ".join(row.lists)
                self._refuse(
                    row.entry,
                    f"cannot push to {lists}: expected a list that this dispatcher may write to",
                    open_entries,
                )
                continue
            del open_entries[row.entry.id]
            self._spans.end(row.entry, None if flag else "its lease was lost")
            self._note_delivered(row.entry, delivered=flag)
        return rest

    def _publish(self, readable: Sequence[tuple[Entry, Envelope]], open_entries: dict[str, Entry]) -> None:
        self._broker.publish(
            [envelope for _, envelope in readable],
            lambda number, why: self._settle(readable[number][0], why, open_entries),
        )

    def _settle(self, entry: Entry, why: str | None, open_entries: dict[str, Entry]) -> None:
        if why is None:
            self._sent.append(open_entries.pop(entry.id))
            self._spans.end(entry)
            self._note_late(entry)
        else:
            self._refuse(entry, why, open_entries)

    def _note_delivered(self, entry: Entry, *, delivered: bool) -> None:
        if delivered:
            self._delivered += 1
            self._note_late(entry)

    def _note_late(self, entry: Entry) -> None:
        """Note how late *entry* is sent: by the server's clock up to the claim, by this host's from there on."""
        if entry.lease is not None:
            at_claim = (entry.lease.expires_at - entry.due_at).total_seconds() * 1000 - self._queue.settings.lease_ms
            self._late_ms.append(max(0.0, at_claim) + max(0.0, time.monotonic() - self._claimed_at) * 1000)

    def _refuse(self, entry: Entry, why: str, open_entries: dict[str, Entry], *, dead: bool = False) -> None:
        refused = self._refused.setdefault(why, [])
        refused.append(entry.id)
        del open_entries[entry.id]
        self._failed += 1
        self._spans.end(entry, why)
        self._queue.release(entry, delay=retry_delay(entry.deliveries), reason=why, dead=dead)


def _is_plain(entry: Entry) -> bool:
    """Tell whether the list that an entry goes to, and the element for it, are known without a look at its message."""
    payload = entry.payload
    return entry.destination is not None and isinstance(payload, bytes) and payload.startswith(VERSION)
