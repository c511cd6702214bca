"""Faults in stored data: each function breaks a healthy stage in one way."""

from __future__ import annotations

from collections.abc import Callable

from redis_queue import DelayQueue
from redis_queue.delay.model import Dispatched
from redis_queue.doctor.keyspace import SCHEMA
from redis_queue.store.keys import BrokerKeys, PrefixKeys
from tests.support.doctor.stage import Stage
from tests.support.wait import must

LONG_AGO = 1_600_000_000_000
REGISTRY = PrefixKeys("redis_queue").registry


def wrong_type(stage: Stage) -> None:
    stage.client.set(stage.at.dead, "what is this")


def registry_of_a_wrong_type(stage: Stage) -> None:
    stage.client.delete(REGISTRY)
    stage.client.set(REGISTRY, "what is this")


def newer_schema(stage: Stage) -> None:
    stage.client.hset(stage.delayed_at.meta, "schema", SCHEMA + 1)


def records_that_expire(stage: Stage) -> None:
    stage.client.expire(stage.at.records, 3600)


def registry_that_expires(stage: Stage) -> None:
    stage.client.expire(REGISTRY, 3600)


def not_registered(stage: Stage) -> None:
    stage.client.hdel(REGISTRY, "queue:orders")


def unreadable_registration(stage: Stage) -> None:
    stage.client.hset(REGISTRY, "delay:reminders", "{")


def too_few_shards(stage: Stage) -> None:
    stage.client.hdel(REGISTRY, "delay:reminders")
    shards = DelayQueue("reminders", stage.client, shards=4)
    for number in range(20):
        shards.push(number, delay=3600)
    stage.client.hset(REGISTRY, "delay:reminders", '{"max_deliveries": 20, "shards": 1}')


def record_without_place(stage: Stage) -> None:
    stage.client.lpop(stage.at.ready)


def entry_without_place(stage: Stage) -> None:
    stage.client.zrem(stage.delayed_at.waiting, "e2")


def in_flight_without_place(stage: Stage) -> None:
    stage.client.zrem(stage.at.in_flight, "m0")


def ready_without_record(stage: Stage) -> None:
    stage.client.hdel(stage.at.records, "m5")


def in_flight_without_record(stage: Stage) -> None:
    stage.client.hdel(stage.delayed_at.records, "held")


def one_of_each_which_counts_do_not_show(stage: Stage) -> None:
    stage.client.hdel(stage.at.records, "m5")
    stage.client.zrem(stage.at.waiting, "delayed")


def two_places(stage: Stage) -> None:
    stage.client.lpush(stage.at.ready, "m0")


def lease_without_flight(stage: Stage) -> None:
    stage.client.hset(stage.at.leases, "m7", "1 1-abcdef")


def flight_without_lease(stage: Stage) -> None:
    stage.client.hdel(stage.at.leases, "m0")


def forgotten_lease(stage: Stage) -> None:
    stage.client.zadd(stage.at.in_flight, {"m0": LONG_AGO})


def late_data(stage: Stage) -> None:
    stage.client.zadd(stage.delayed_at.waiting, {"e0": LONG_AGO})


def late_entry(stage: Stage) -> None:
    late_data(stage)
    stage.delayed.dispatch_log.note(Dispatched(1, 0))


def no_counter(stage: Stage) -> None:
    stage.client.hset(stage.at.meta, "put", "abc")


def no_settings(stage: Stage) -> None:
    stage.client.hset(REGISTRY, "queue:orders", '{"max_deliveries": -1, "shards": 1}')


def dead_letter(stage: Stage) -> None:
    message = must(stage.queue.get(block=False))
    stage.queue.nack(message, dead=True)


def unreadable_record(stage: Stage) -> None:
    stage.client.rpush(stage.delayed_at.quarantine, "1 0 0\n")


def pause(stage: Stage) -> None:
    stage.queue.pause()


def unreadable_task(stage: Stage) -> None:
    stage.client.rpush(BrokerKeys("").unreadable, "?")


FAULTS: list[tuple[Callable[[Stage], None], str, str]] = [
    (wrong_type, "types", "error"),
    (registry_of_a_wrong_type, "types", "error"),
    (newer_schema, "schema", "error"),
    (records_that_expire, "lifetime", "error"),
    (registry_that_expires, "lifetime", "error"),
    (not_registered, "registry", "warning"),
    (unreadable_registration, "registry", "error"),
    (too_few_shards, "registry", "error"),
    (record_without_place, "orphans", "error"),
    (entry_without_place, "orphans", "error"),
    (in_flight_without_place, "orphans", "error"),
    (ready_without_record, "orphans", "error"),
    (in_flight_without_record, "orphans", "error"),
    (one_of_each_which_counts_do_not_show, "orphans", "error"),
    (two_places, "orphans", "error"),
    (lease_without_flight, "leases", "warning"),
    (flight_without_lease, "leases", "warning"),
    (forgotten_lease, "put-back", "error"),
    (late_entry, "dispatch", "error"),
    (late_data, "dispatch", "warning"),
    (no_counter, "counters", "error"),
    (no_settings, "registry", "error"),
    (dead_letter, "dead letters", "warning"),
    (unreadable_record, "quarantine", "warning"),
    (pause, "paused", "warning"),
    (unreadable_task, "unreadable tasks", "warning"),
]

MENDED = [
    records_that_expire,
    registry_that_expires,
    record_without_place,
    entry_without_place,
    in_flight_without_place,
    ready_without_record,
    in_flight_without_record,
    one_of_each_which_counts_do_not_show,
    forgotten_lease,
]
"""The faults that a repair removes."""

NAMES = [fault.__name__ for fault, *_ in FAULTS]
