"""Deliver claimed entries to a broker: publish, then settle. A dispatch and ``release-all`` both do it here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Protocol

from celery import Celery

from redis_queue.basics.times import monotonic
from redis_queue.celery.brokers.base import Broker, WhileWaiting, do_nothing
from redis_queue.celery.brokers.open import unavailable_if_away
from redis_queue.celery.brokers.redis import RedisBroker
from redis_queue.celery.message.entry import Content, envelope_of_entry
from redis_queue.celery.message.envelope import VERSION, Envelope, element_of, needs_reading
from redis_queue.delay.model import Delivery
from redis_queue.delay.queue import DelayQueue
from redis_queue.errors import InvalidValueError
from redis_queue.model import Entry
from redis_queue.store.chunks import chunks

NONE_READ: Final[Mapping[str, Content]] = MappingProxyType({})


class DeliveryPolicy(Protocol):
    """What differs between deliveries: how a message is sent, and what becomes of its entry."""

    #: Whether an entry may be sent as it is stored, without reading its message.
    as_stored: bool

    def message(self, entry: Entry, envelope: Envelope) -> Envelope:
        """Return the message to publish for *entry*, which holds *envelope*. Raises InvalidValueError."""

    def begin(self, entry: Entry, envelope: Envelope | None = None) -> None:
        """Record that *entry* is on its way; without *envelope*, as it is stored."""

    def sent(self, entry: Entry) -> None:
        """Record that the broker has the message of *entry*."""

    def lost(self, entry: Entry) -> None:
        """Record that the lease of *entry* was lost: if its id is stored again, a later dispatch sends it."""

    def refuse(self, entry: Entry, why: str, error: Exception | None = None) -> None:
        """Settle an *entry* whose message was refused; *error* is set where the message could not be read."""

    def end(self, left: Sequence[Entry]) -> None:
        """Give back the entries that were neither sent nor refused."""


class Batch:
    """One batch of claimed entries on its way into a broker.

    Where broker and store are one Redis, an entry leaves the store in the step that pushes its message. Elsewhere it is
    acked after the broker has confirmed its message: a crash in between sends it again, with the same task id.
    """

    def __init__(
        self,
        app: Celery,
        queue: DelayQueue,
        broker: Broker,
        policy: DeliveryPolicy,
        *,
        while_waiting: WhileWaiting = do_nothing,
    ) -> None:
        self._app = app
        self._queue = queue
        self._broker = broker
        self._policy = policy
        self._while_waiting = while_waiting
        self._open: dict[str, Entry] = {}
        self._published: list[Entry] = []

    def send(self, entries: Sequence[Entry], *, until: float, messages: Mapping[str, Content] = NONE_READ) -> None:
        """Send *entries*; begin no more after *until* on the monotonic clock, since leases end soon after it.

        *messages* by entry id were read already; the others are read now.
        Each entry is sent, refused or given back, whatever fails. Raises BrokerUnavailableError if the broker is away.
        """
        self._open = {entry.id: entry for entry in entries}
        try:
            with unavailable_if_away(self._broker):
                self._send(until, messages)
        finally:
            try:
                self._ack()
            finally:
                self._policy.end(list(self._open.values()))

    def _send(self, until: float, messages: Mapping[str, Content]) -> None:
        broker = self._broker
        if self._policy.as_stored and isinstance(broker, RedisBroker) and not broker.shares_store:
            self._push_as_stored(broker)
        ready = list(self._envelopes(messages))
        for entry, envelope in ready:
            self._policy.begin(entry, envelope)
        for part in chunks(ready, broker.at_once):
            if monotonic() >= until:
                break
            self._publish(self._deliver(part))

    def _envelopes(self, messages: Mapping[str, Content]) -> Iterator[tuple[Entry, Envelope]]:
        for entry in list(self._open.values()):
            try:
                envelope = envelope_of_entry(self._app, entry, self._broker.destinations, messages.get(entry.id))
                self._broker.check(entry, envelope)
                yield entry, self._policy.message(entry, envelope)
            except Exception as error:  # noqa: BLE001 - raised again unless it is about this message
                self._refuse(entry, self._broker.refusal(error), error)

    def _push_as_stored(self, broker: RedisBroker) -> None:
        """Push entries that need neither routing nor reading, as the store's script would."""
        entries: list[Entry] = []
        rows: list[tuple[str, str]] = []
        for entry in filter(_is_plain, self._open.values()):
            # Invalid entries are refused where messages are read.
            with contextlib.suppress(InvalidValueError):
                element = element_of(entry.payload, entry.id)
                broker.destinations.check_list(str(entry.destination), broker.names)
                if not needs_reading(element):
                    rows.append((str(entry.destination), element))
                    entries.append(entry)
                    self._policy.begin(entry)
        broker.push(rows, lambda number, why: self._settle(entries[number], why))

    def _deliver(self, part: Sequence[tuple[Entry, Envelope]]) -> Sequence[tuple[Entry, Envelope]]:
        """Let the store push messages that go to lists, if they are in its Redis; return the others."""
        broker = self._broker
        if not isinstance(broker, RedisBroker) or not broker.shares_store:
            return part
        rows: list[Delivery] = []
        rest: list[tuple[Entry, Envelope]] = []
        for entry, envelope in part:
            try:
                row = broker.delivery(entry, envelope)
            except Exception as error:  # noqa: BLE001 - raised again unless it is about this message
                self._refuse(entry, broker.refusal(error))
                continue
            if row is None:
                rest.append((entry, envelope))
            else:
                rows.append(row)
        for row, delivered in zip(rows, self._queue.moves.deliver(rows), strict=True):
            self._note_delivery(row, delivered)
        return rest

    def _note_delivery(self, row: Delivery, delivered: bool | None) -> None:
        if delivered is None:
            lists = ", ".join(row.lists)
            self._refuse(row.entry, f"cannot push to {lists}: expected a list that this dispatcher may write to")
            return
        entry = self._open.pop(row.entry.id)
        (self._policy.sent if delivered else self._policy.lost)(entry)

    def _publish(self, part: Sequence[tuple[Entry, Envelope]]) -> None:
        envelopes = [envelope for _, envelope in part]
        self._broker.publish(envelopes, lambda number, why: self._settle(part[number][0], why), self._while_waiting)

    def _settle(self, entry: Entry, why: str | None) -> None:
        if why is None:
            self._published.append(self._open.pop(entry.id))
            self._policy.sent(entry)
        else:
            self._refuse(entry, why)

    def _refuse(self, entry: Entry, why: str, error: Exception | None = None) -> None:
        del self._open[entry.id]
        self._policy.refuse(entry, why, error)

    def _ack(self) -> None:
        for entry, acked in zip(self._published, self._queue.ack_many(self._published), strict=True):
            if not acked:
                self._policy.lost(entry)


def _is_plain(entry: Entry) -> bool:
    """Return whether the list of an entry, and the element for it, are known without reading its message."""
    payload = entry.payload
    return entry.destination is not None and isinstance(payload, bytes) and payload.startswith(VERSION)
