"""The doctor's checks of the messages in flight at a Redis broker, and the repair of lost ones."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import redis
from kombu.exceptions import OperationalError

from redis_queue.celery.consume.gates import task_id_of
from redis_queue.celery.kombu_keys import InFlightKeys
from redis_queue.celery.queues.open import connected, on_redis
from redis_queue.doctor import Finding
from redis_queue.doctor.finding import Check, error, warning
from redis_queue.doctor.repairs import each
from redis_queue.errors import StoreUnavailableError
from redis_queue.keeper.redis_py import client_of
from redis_queue.lazy_property import LazyProperty
from redis_queue.operate.access import Access
from redis_queue.store.chunks import chunks
from redis_queue.store.ids import MAX_ID, readable
from redis_queue.store.keys import lease_ends
from redis_queue.store.redis_errors import redact
from redis_queue.store.scripts import Scripts

SAMPLE: Final = 10_000
"""Most messages in flight that are read; a random sample of more."""

NAMED: Final = 5
"""Most messages that a finding names."""

LARGE: Final = 65_536
"""Bytes of a message above which it is not read for its task id."""

CHECK_BROKER: Final = "check broker_url, or repeat when the broker is up"

NO_INDEX: Final = ord("1")


@dataclass(frozen=True, slots=True)
class Broker:
    """The messages in flight at one Redis. All methods raise StoreError."""

    scripts: Scripts
    keys: InFlightKeys

    def sample(self) -> list[bytes]:
        """Return up to :data:`SAMPLE` delivery tags."""
        found: list[bytes] = self.scripts.command("HRANDFIELD", self.keys.records, SAMPLE)
        return found

    def flags(self, tags: Sequence[bytes], *, acting: bool = False) -> bytes:
        """Return a flag for each of *tags* (see lua/held/mend.lua); with *acting* add lost ones to the index."""
        keys = self.keys
        named = {"index": keys.index, "unacked": keys.records, "lease_ends": keys.lease_ends}
        mend = self.scripts.bind("held/mend", None, **{name: key.encode() for name, key in named.items()})
        return b"".join(mend(now=0, acting=int(acting), more=chunk) for chunk in chunks(tags))

    def task_id(self, tag: bytes) -> str:
        """Return the id of the task in a message; "" if it is unknown."""
        if self.scripts.command("HSTRLEN", self.keys.records, tag) > LARGE:
            return ""
        try:
            found = task_id_of(json.loads(self.scripts.command("HGET", self.keys.records, tag) or "")[0])
        except (ValueError, TypeError, LookupError, RecursionError):
            return ""
        return readable(found[:MAX_ID])


@contextmanager
def broker_of(access: Access) -> Iterator[Broker | None]:
    """Yield the broker of the app; without an app the Redis, as one without ``global_keyprefix``.

    None if it is not Redis. Raises StoreUnavailableError if it is away.
    """
    client = access.catalog.client
    if access.app is None:
        keys = InFlightKeys("unacked_index", "unacked", lease_ends("", "unacked_index"))
        # kombu uses no Cluster.
        yield Broker(Scripts(client), keys) if isinstance(client, redis.Redis) else None
    elif not on_redis(access.app):
        yield None
    else:
        try:
            with connected(access.app) as connection:
                channel = connection.default_channel
                yield Broker(Scripts(client_of(channel)), InFlightKeys.of(channel))
        except OperationalError as failure:
            raise StoreUnavailableError(redact(str(failure))) from failure


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found of the messages in flight: *lost* of *total* are not in kombu's index, *named* are the first.

    *failure* tells why the broker could not be asked.
    """

    total: int = 0
    lost: int = 0
    named: Sequence[str] = ()
    index: str = ""
    failure: str = ""


class InFlight:
    """The messages in flight at the broker of *access*, read once for several checks."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @LazyProperty
    def seen(self) -> Seen:
        """What was found. Raises StoreError."""
        try:
            with broker_of(self._access) as broker:
                return Seen() if broker is None else _seen(broker)
        except StoreUnavailableError as failure:
            return Seen(failure=str(failure))


def _seen(broker: Broker) -> Seen:
    tags = broker.sample()
    lost = _lost(tags, broker.flags(tags))
    return Seen(len(tags), len(lost), [_named(broker, tag) for tag in lost[:NAMED]], broker.keys.index)


def _lost(tags: Sequence[bytes], flags: bytes) -> list[bytes]:
    return sorted(tag for tag, flag in zip(tags, flags, strict=True) if flag == NO_INDEX)


def _named(broker: Broker, tag: bytes) -> str:
    text = tag.decode(errors="replace")[:MAX_ID]
    id_ = broker.task_id(tag)
    return f"task {id_} ({text})" if id_ else text


def unindexed(in_flight: InFlight) -> Iterator[Finding]:
    """Every message in flight at the broker is in kombu's index."""
    seen = in_flight.seen
    if seen.failure:
        yield warning(f"could not be checked: {seen.failure}", CHECK_BROKER)
    if seen.lost:
        some = "at least " if seen.total >= SAMPLE else ""
        more = f" and {seen.lost - NAMED:,} more" if seen.lost > NAMED else ""
        yield error(
            f"{some}{seen.lost:,} messages in flight are not in {seen.index}, and never come back if their workers are "
            f"gone: {', '.join(seen.named)}{more}",
            "redis-queue doctor --fix",
            repairable=True,
        )


def repair(access: Access, *, dry_run: bool) -> list[Finding]:
    """Add lost messages in flight to kombu's index: they come back after its visibility timeout.

    A message that was settled meanwhile stays away.
    """

    def work() -> Iterator[tuple[str, bool]]:
        with broker_of(access) as broker:
            if broker is not None:
                tags = broker.sample()
                if count := len(_lost(tags, broker.flags(tags, acting=not dry_run))):
                    yield f"add {count:,} messages in flight to {broker.keys.index}", not dry_run

    try:
        return list(each("in flight", work))
    except StoreUnavailableError as failure:
        return [Finding("in flight", "error", f"could not be repaired: {failure}", CHECK_BROKER)]


CHECKS: Final[dict[str, Check[InFlight]]] = {"in flight": unindexed}
