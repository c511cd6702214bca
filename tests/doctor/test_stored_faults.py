"""What is wrong with what is stored is found by the right check, and by no other."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue
from redis_queue.delay.lateness import Dispatches
from redis_queue.doctor import examine
from redis_queue.doctor.checks.keyspace import SCHEMA
from redis_queue.doctor.server_info import servers
from redis_queue.doctor.survey import survey
from redis_queue.store import keys
from redis_queue.store.keys import Keys
from redis_queue.store.script_files import load
from tests.doctor.conftest import Stage, wrong

LONG_AGO = 1_600_000_000_000
REGISTRY = keys.registry("redis_queue")


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
    stage.delayed.dispatch_log.note(Dispatches(1, 0))


def no_counter(stage: Stage) -> None:
    stage.client.hset(stage.at.meta, "put", "abc")


def no_settings(stage: Stage) -> None:
    stage.client.hset(REGISTRY, "queue:orders", '{"max_deliveries": -1, "shards": 1}')


def dead_letter(stage: Stage) -> None:
    message = stage.queue.get(block=False)
    assert message is not None
    stage.queue.nack(message, dead=True)


def unreadable_record(stage: Stage) -> None:
    stage.client.rpush(stage.delayed_at.quarantine, "1 0 0\n")


def pause(stage: Stage) -> None:
    stage.queue.pause()


def different_timeouts(stage: Stage) -> None:
    stage.client.zadd(keys.visibility_timeouts(""), {"60": time.time(), "3600": time.time()})


def unreadable_task(stage: Stage) -> None:
    stage.client.rpush(keys.unreadable(""), "?")


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
    (different_timeouts, "visibility timeouts", "warning"),
    (unreadable_task, "unreadable tasks", "warning"),
]


def test_nothing_is_wrong_with_a_sound_server(stage: Stage) -> None:
    assert stage.wrong() == {}


def test_nothing_is_wrong_with_an_empty_server(client: redis.Redis) -> None:
    assert wrong(client) == {}
    assert client.keys("*") == []


@pytest.mark.parametrize(("fault", "check", "severity"), FAULTS, ids=[fault.__name__ for fault, *_ in FAULTS])
def test_a_fault_is_found_by_the_right_check_only(
    stage: Stage, fault: Callable[[Stage], None], check: str, severity: str
) -> None:
    fault(stage)
    # The registry is how queues are known: without it their keys still tell of them.
    also = {"registry": "warning"} if fault is registry_of_a_wrong_type else {}
    assert stage.wrong() == {check: severity, **also}
    assert all(finding.advice for finding in examine(stage.client) if finding.severity != "ok")


def test_looking_changes_nothing(stage: Stage) -> None:
    for fault in (record_without_place, ready_without_record, forgotten_lease, late_entry, records_that_expire):
        fault(stage)
    before = {key: stage.client.dump(key) for key in stage.client.keys("*")}
    examine(stage.client)
    assert {key: stage.client.dump(key) for key in stage.client.keys("*")} == before


def test_numbers_and_places_are_told(stage: Stage) -> None:
    one_of_each_which_counts_do_not_show(stage)
    late_entry(stage)
    assert stage.delayed.moves.lead("host:1", 60).mine
    found = [finding.found for finding in examine(stage.client) if finding.severity == "error"]
    assert found[:2] == [
        "queue orders: 1 records stand in no place: nobody gets them",
        "queue orders: 1 ids stand in a place without a record",
    ]
    assert found[2].startswith("delay reminders: the first entry is due for ")
    assert found[2].endswith(" h, and host:1 leads")


def test_other_prefixes_are_not_looked_at(stage: Stage) -> None:
    RedisQueue("orders", stage.client, prefix="other").put(1)
    stage.client.delete(Keys("other", "queue", "orders").records)
    assert stage.wrong() == {}
    assert [finding.check for finding in examine(stage.client, "other") if finding.severity == "error"] == ["orphans"]


def test_the_schema_is_the_one_of_the_scripts() -> None:
    assert f"local SCHEMA = {SCHEMA}\n" in load("lease/mend").source
    assert f"local SCHEMA, MAX_BYTES = {SCHEMA}, " in load("queue/get").source


def test_what_is_late_for_a_moment_is_not_wrong_yet(stage: Stage) -> None:
    stage.client.zadd(stage.at.in_flight, {"m0": (time.time() - 300) * 1000})
    stage.client.zadd(stage.delayed_at.waiting, {"e0": (time.time() - 30) * 1000})
    assert stage.wrong() == {}


def test_what_a_destroyed_queue_leaves_for_a_while_is_not_wrong(stage: Stage) -> None:
    stage.queue.destroy()
    stage.delayed.destroy()
    stage.client.rpush(stage.at.wake, 1)
    stage.delayed.moves.lead("host:1", 60)
    assert stage.wrong() == {}


def test_every_id_of_a_place_is_read(client: redis.Redis) -> None:
    queue = RedisQueue("long", client)
    queue.put_many(range(2345))
    queue.put_many(range(1234), delay=3600)
    (shard,) = survey(client, servers(client), "redis_queue").shards
    ready, waiting = client.lrange(queue._keys.ready, 0, -1), client.zrange(queue._keys.waiting, 0, -1)
    assert sorted(shard.placed(None)) == sorted([*ready, *waiting])
    assert sorted(set(shard.ids(None))) == sorted([*ready, *waiting])
    assert sorted(shard.ready(1000)) == sorted(client.lrange(queue._keys.ready, -1000, -1))


def test_a_timeout_that_nobody_has_any_more_disturbs_nobody(stage: Stage) -> None:
    stage.client.zadd(keys.visibility_timeouts(""), {"60": time.time() - 61, "3600": time.time()})
    assert stage.wrong() == {}


def test_a_huge_queue_is_looked_at_in_part(client: redis.Redis) -> None:
    queue = RedisQueue("huge", client)
    for _ in range(10):
        queue.put_many(range(10_000))
    client.lpop(queue._keys.ready, 3)
    begin = time.monotonic()
    findings = examine(client)
    assert time.monotonic() - begin < 5
    assert [finding.found for finding in findings if finding.severity == "error"] == [
        "queue huge: 3 records stand in no place: nobody gets them"
    ]
    slow = [entry for entry in client.slowlog_get(128) if b"EVAL" in entry["command"]]
    assert max((entry["duration"] for entry in slow), default=0) < 50_000
