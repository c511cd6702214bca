"""A Redis broker: push messages into kombu's lists, many in one round trip."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final
from uuid import uuid4

import redis
from celery import Celery

from redis_queue.celery.brokers.base import Broker, Settle, WhileWaiting, do_nothing
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.keys import ListNames
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.producer import lifetime_ms
from redis_queue.celery.settings import CelerySettings
from redis_queue.delay.model import MAX_LISTS, Delivery
from redis_queue.model import Entry
from redis_queue.store.chunks import CHUNK
from redis_queue.store.connection import Client
from redis_queue.store.keys import PrefixKeys
from redis_queue.store.redis_errors import is_temporary_refusal
from redis_queue.store.scripts import Scripts

PROBE_MS: Final = 10_000
"""Milliseconds after which a probe key that was not deleted expires."""


class RedisBroker(Broker):
    """kombu's Redis transport, plain or behind Sentinel."""

    at_once = CHUNK

    def __init__(self, app: Celery, connection: Any, store: Client) -> None:
        super().__init__(app, connection)
        self.names = ListNames.of(connection.transport_options)
        self._client = client_of(self.channel)
        self._lifetimes: dict[str, int] = {}
        self.shares_store = is_same_database(self._client, store, CelerySettings.of(app).prefix)

    def publish(self, envelopes: Sequence[Envelope], settle: Settle, while_waiting: WhileWaiting = do_nothing) -> None:  # noqa: ARG002 - it waits for no confirms
        """Push messages that go to lists in one round trip, the others one by one."""
        pipe = self._client.pipeline(transaction=False)
        owners: list[int] = []
        rest: list[int] = []
        for number, envelope in enumerate(envelopes):
            try:
                lists = self.lists(envelope)
            except Exception as error:  # noqa: BLE001 - raised again unless it is about this message
                settle(number, self.refusal(error))
                continue
            if lists is None:
                rest.append(number)
                continue
            element = envelope.element(str(uuid4()))
            for name in lists:
                pipe.lpush(name, element)
            ttl, keys = self._lifetime(envelope, lists)
            for key in keys:
                pipe.pexpire(key, ttl)
            owners += [number] * (len(lists) + len(keys))
        self._execute(pipe, owners, settle)
        for number in rest:
            super().publish([envelopes[number]], lambda _, why: settle(number, why))  # noqa: B023

    def push(self, rows: Sequence[tuple[str, str]], settle: Settle) -> None:
        """Push *rows*, each a list and an element, in one round trip."""
        pipe = self._client.pipeline(transaction=False)
        for name, element in rows:
            pipe.lpush(name, element)
        self._execute(pipe, range(len(rows)), settle)

    def delivery(self, entry: Entry, envelope: Envelope) -> Delivery | None:
        """Return how a script of the store pushes *envelope*, or None if it cannot. Raises UnroutableError."""
        lists = self.lists(envelope)
        if lists is None:
            return None
        ttl, expiring = self._lifetime(envelope, lists)
        if len(lists) + len(expiring) > MAX_LISTS:
            return None
        return Delivery(entry, envelope.element(str(uuid4())).encode(), lists, ttl, expiring)

    def lists(self, envelope: Envelope) -> list[str] | None:
        """Return the lists for *envelope*; None for a fanout, which has none. Raises UnroutableError."""
        if envelope.declare or envelope.exchange:
            self.declare(envelope)
        queues = self.queues_of(envelope) if envelope.exchange else [envelope.routing_key]
        return None if queues is None else [self.names.of_queue(queue, envelope.priority) for queue in queues]

    def lists_of_queues(self) -> list[str]:
        """Return the lists that a move may write."""
        return self.destinations.lists(self.names)

    def check(self, entry: Entry, envelope: Envelope) -> None:
        """Raise ForbiddenDestinationError if the destination of *entry*, which holds *envelope*, is not allowed."""
        if entry.destination is not None:
            self.destinations.check_list(entry.destination, self.names)
        super().check(entry, envelope)

    def make_queue(self, queue: Any) -> None:
        """Do nothing: the first message creates the list."""

    def declare_entity(self, entity: Any) -> None:
        """Declare one queue or exchange, and remember the time to live of its lists."""
        super().declare_entity(entity)
        if ttl := lifetime_ms(entity):
            self._lifetimes[entity.name] = ttl

    def is_away(self, error: Exception) -> bool:
        """Return whether Redis cannot be reached or refuses all commands for now: *error* is not about a message."""
        if isinstance(error.__cause__ or error, redis.ResponseError):
            return is_temporary_refusal(error)
        return super().is_away(error)

    def _lifetime(self, envelope: Envelope, lists: Sequence[str]) -> tuple[int, list[str]]:
        if not self._lifetimes or envelope.exchange:
            return 0, []
        queue = envelope.routing_key
        return (self._lifetimes[queue], self.names.all_of(queue)) if queue in self._lifetimes and lists else (0, [])

    def _execute(self, pipe: Any, owners: Sequence[int], settle: Settle) -> None:
        replies = pipe.execute(raise_on_error=False) if owners else []
        outcome: dict[int, str | None] = {}
        for number, reply in zip(owners, replies, strict=True):
            refused = self.refusal(reply) if isinstance(reply, Exception) else None
            outcome[number] = outcome.get(number) or refused
        for number, refused in outcome.items():
            settle(number, refused)


def is_same_database(broker: redis.Redis, store: Client, prefix: str) -> bool:
    """Return whether *store* and *broker* are one database, by a key that the store writes and the broker reads."""
    if not isinstance(store, redis.Redis):
        return False
    probe = PrefixKeys(prefix).probe(os.urandom(16).hex())
    # Not SET: a full Redis refuses it, but executes this script.
    lead = Scripts(store).bind("delay/lead", None, leader=probe)
    lead(member=b"probe", lease=PROBE_MS, channel="")
    try:
        # GET is among the permissions of a user for store and broker.
        return broker.get(probe) is not None
    finally:
        lead(member=b"probe", lease=0, channel="")
