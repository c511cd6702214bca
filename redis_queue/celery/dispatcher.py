"""Dispatcher: due entries become messages in normal Celery queues."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from kombu.exceptions import OperationalError

from redis_queue.backoff import retry_delay
from redis_queue.batches import CHUNK, check_limit, chunks
from redis_queue.celery.brokers import Broker, UnroutableError, open_broker
from redis_queue.celery.brokers.redis import RedisBroker
from redis_queue.celery.calls import TaskCall, envelope_of_call
from redis_queue.celery.envelope import PHRASES, VERSION, Envelope, UnknownVersionError, element_of
from redis_queue.celery.settings import CelerySettings, Overdue
from redis_queue.delay import DelayQueue, Delivery
from redis_queue.errors import InvalidValueError, StoreError
from redis_queue.model import Entry

if TYPE_CHECKING:
    from celery import Celery

logger = logging.getLogger(__name__)

FRESH: Final = 1.0
"""Seconds for which a due entry is not yet overdue: the overdue policy is about what came before."""

UNKNOWN_WAIT: Final = 60.0
"""Seconds until an entry of a later version is looked at again."""


@dataclass(frozen=True, slots=True)
class Dispatched:
    """What one run did: *sent* reached the broker, *failed* went back or to the dead letters.

    *next_in*: seconds until the next entry is due, inf where that is not known.
    """

    sent: int = 0
    failed: int = 0
    next_in: float = field(default=math.inf, compare=False)

    def __add__(self, other: Dispatched) -> Dispatched:
        return Dispatched(self.sent + other.sent, self.failed + other.failed, other.next_in)


class Allowance:
    """How many overdue entries may go at *rate* per second; without a rate, any number."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._left = 0.0
        self._at = -math.inf

    def take(self, limit: int) -> int:
        """Return how many of *limit* may go now."""
        if self._rate is None:
            return limit
        now = time.monotonic()
        self._left = min(max(1.0, self._rate), self._left + (now - self._at) * self._rate)
        self._at = now
        return min(limit, int(self._left))

    def spend(self, count: int) -> None:
        """Take away what went."""
        self._left -= count


class Dispatcher:
    """Moves due entries of *queue* into the Celery queues that they name.

    Where store and broker are one Redis, each message moves in one atomic step: never lost, never doubled. Elsewhere:
    claim, publish with confirm, ack; a dispatcher that dies in between leaves its entries to put-back, and a later one
    publishes them again with the same task id. Any number may run at once. While the broker is away entries stay
    stored; a message that cannot be sent becomes a dead letter after the queue's ``max_deliveries``.
    """

    def __init__(
        self, app: Celery, queue: DelayQueue, *, batch: int | None = None, settings: CelerySettings | None = None
    ) -> None:
        self._broker: Broker | None = None
        self._app = app
        self._queue = queue
        settings = settings or CelerySettings.of(app)
        self._batch = check_limit(settings.dispatch_batch if batch is None else batch, CHUNK, name="batch")
        self._overdue: Overdue = settings.overdue_policy
        self._allowance = Allowance(self._overdue.amount if self._overdue.policy == "spread" else None)
        self._ahead: _Claim | None = None
        self._goes_on = False

    def run(self, budget: float = 30.0, *, due: bool = False) -> Dispatched:
        """Dispatch batch after batch until nothing is due or *budget* seconds have passed.

        *due* tells that something is, which saves a look.
        """
        total, stop_at = Dispatched(), time.monotonic() + budget
        self._goes_on = self._overdue.policy == "run"
        try:
            while time.monotonic() < stop_at:
                done = self.run_once(due=due)
                total += done
                if self._ahead is None and done.sent + done.failed < self._batch:
                    break
        finally:
            self._goes_on = False
            self._give_back()
        return total

    def run_once(self, *, due: bool = False) -> Dispatched:
        """Dispatch one batch. Raises kombu's OperationalError if the broker is away; nothing is lost then."""
        # Where a move tells as much, it is the look.
        if self._ahead is None and (not due or self._broker is None or not self._broker.shares_store):
            next_in = self._queue.due_in()
            if next_in > 0:
                return Dispatched(next_in=next_in)
        try:
            return self._dispatch()
        except _Away:
            # A connection may have died while the broker is well: once more, on a new one.
            self.close()
            return self._dispatch_again()
        except BaseException:
            self.close()
            raise

    def _dispatch_again(self) -> Dispatched:
        try:
            return self._dispatch()
        except _Away as away:
            error = away.__cause__
            raise OperationalError(str(error)) from error
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection to the broker; the next run opens another one."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()

    def __del__(self) -> None:
        # Whatever a dead connection answers, nobody is left to hear it.
        with contextlib.suppress(Exception):
            self.close()

    def _dispatch(self) -> Dispatched:
        if self._overdue.policy == "skip":
            self._queue.bury_overdue(self._overdue.amount, reason=f"overdue by more than {self._overdue.amount:g} s")
        if self._overdue.policy != "spread":
            return self._take(self._batch, within=0)
        done = self._take(self._batch, within=FRESH)
        allowed = self._allowance.take(self._batch)
        if allowed:
            late = self._take(allowed, within=0)
            self._allowance.spend(late.sent + late.failed)
            done += late
        return Dispatched(done.sent, done.failed, min(max(done.next_in, 0.1), FRESH))

    def _take(self, limit: int, *, within: float) -> Dispatched:
        broker = self._broker = self._broker or open_broker(self._app, self._queue.client)
        sent = 0
        if broker.shares_store:
            moved = self._queue.move(limit, within=within, phrases=PHRASES)
            if not moved.passed:
                return Dispatched(moved.moved, 0, moved.next_in)
            sent = moved.moved
        claim, self._ahead = self._ahead or self._claim(limit, within), None
        if not claim.entries:
            return Dispatched(sent, 0, 0 if within else self._queue.due_in())
        broker.meanwhile = self._claim_ahead if self._goes_on and len(claim.entries) == self._batch else _nothing
        done = _Run(self._app, self._queue, broker, claim.stop_at).dispatch(claim.entries)
        return Dispatched(sent + done.sent, done.failed, 0)

    def _claim(self, limit: int, within: float) -> _Claim:
        # Half of the lease is left for a slow publish: past its end another dispatcher may hold the entry.
        stop_at = time.monotonic() + self._queue.settings.lease_ms / 2000
        return _Claim(self._queue.claim(limit, within=within), stop_at)

    def _claim_ahead(self) -> None:
        """Claim the next batch. Raises nothing: the batch that is under way has yet to hear its confirms."""
        if self._ahead is None:
            with contextlib.suppress(StoreError):
                self._ahead = self._claim(self._batch, 0)

    def _give_back(self) -> None:
        """Give back what was claimed for a batch that will not come; where Redis is away, its lease ends."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None and ahead.entries:
            with contextlib.suppress(StoreError):
                self._queue.release_many(list(ahead.entries), reason="not sent: out of time", counted=False)


def _nothing() -> None:
    """Wait for the confirms only."""


def _is_plain(entry: Entry) -> bool:
    """Tell whether the list that an entry goes to, and the element for it, are known without a look at its message."""
    payload = entry.payload
    return entry.destination is not None and isinstance(payload, bytes) and payload.startswith(VERSION)


class _Away(Exception):  # noqa: N818 - never seen outside
    """The broker went away; the cause says how."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """Claimed entries, to be sent before *stop_at* of the monotonic clock."""

    entries: Sequence[Entry]
    stop_at: float


class _Run:
    """What becomes of one batch of claimed entries; each ends acked, delivered or released."""

    def __init__(self, app: Celery, queue: DelayQueue, broker: Broker, stop_at: float) -> None:
        self._app = app
        self._queue = queue
        self._broker = broker
        self._stop_at = stop_at
        self._sent: list[Entry] = []
        self._delivered = 0
        self._failed = 0

    def dispatch(self, entries: Sequence[Entry]) -> Dispatched:
        """Send all *entries* that can be sent."""
        open_entries = {entry.id: entry for entry in entries}
        try:
            if isinstance(self._broker, RedisBroker) and not self._broker.shares_store:
                self._push(self._broker, [entry for entry in entries if _is_plain(entry)], open_entries)
            rest = list(open_entries.values())
            readable = [(entry, envelope) for entry in rest if (envelope := self._read(entry, open_entries))]
            for part in chunks(readable, self._broker.at_once):
                if time.monotonic() >= self._stop_at:
                    break
                if isinstance(self._broker, RedisBroker) and self._broker.shares_store:
                    part = self._deliver(self._broker, part, open_entries)  # noqa: PLW2901
                self._publish(part, open_entries)
        except Exception as error:
            if self._broker.is_away(error):
                raise _Away from error
            raise
        finally:
            self._queue.ack_many(self._sent)
            left = list(open_entries.values())
            self._queue.release_many(left, reason="not sent: the broker is away or slow", counted=False)
        return Dispatched(len(self._sent) + self._delivered, self._failed)

    def _read(self, entry: Entry, open_entries: dict[str, Entry]) -> Envelope | None:
        try:
            if isinstance(entry.payload, bytes):
                return Envelope.unpack(entry.payload, entry.id, entry.headers)
            return envelope_of_call(self._app, TaskCall.from_payload(entry.payload), entry.id)
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
        rows = [(str(entry.destination), element_of(entry.payload, entry.id)) for entry in entries]
        broker.push(rows, lambda number, why: self._settle(entries[number], why, open_entries))

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
        for row, flag in zip(rows, self._queue.deliver(rows), strict=True):
            if flag is None:
                self._refuse(row.entry, f"cannot push to {', '.join(row.lists)}", open_entries)
                continue
            del open_entries[row.entry.id]
            self._delivered += flag
        return rest

    def _publish(self, readable: Sequence[tuple[Entry, Envelope]], open_entries: dict[str, Entry]) -> None:
        self._broker.publish(
            [envelope for _, envelope in readable],
            lambda number, why: self._settle(readable[number][0], why, open_entries),
        )

    def _settle(self, entry: Entry, why: str | None, open_entries: dict[str, Entry]) -> None:
        if why is None:
            self._sent.append(open_entries.pop(entry.id))
        else:
            self._refuse(entry, why, open_entries)

    def _refuse(self, entry: Entry, why: str, open_entries: dict[str, Entry], *, dead: bool = False) -> None:
        logger.error("not sent: %s", why, extra={"action": "dispatch_refused", "entry_id": entry.id})
        del open_entries[entry.id]
        self._failed += 1
        self._queue.release(entry, delay=retry_delay(entry.deliveries), reason=why, dead=dead)
