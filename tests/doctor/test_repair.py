"""Repairs lose nothing, work at the first run, and change nothing unless asked to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest
import redis

from redis_queue import RedisQueue
from redis_queue.doctor import examine, repair
from tests.support.doctor import faults
from tests.support.doctor.faults import MENDED
from tests.support.doctor.stage import Limit, Stage, keyspace, wrong
from tests.support.wait import must


def everything(stage: Stage) -> set[bytes]:
    """Return all ids and records in any state."""
    found: set[bytes] = set()
    for at in (stage.at, stage.delayed_at):
        found |= {*stage.client.hkeys(at.records), *stage.client.hvals(at.records)}
        found |= set(stage.client.lrange(at.ready, 0, -1))
        for key in (at.waiting, at.in_flight, at.dead):
            found |= set(stage.client.zrange(key, 0, -1))
        for item in stage.client.lrange(at.quarantine, 0, -1):
            head, _, rest = item.partition(b"\n")
            found.add(rest[: int(head.split()[1])])
    return found


@pytest.mark.parametrize("fault", MENDED)
def test_a_repair_removes_the_fault_and_keeps_all_data(stage: Stage, fault: Callable[[Stage], None]) -> None:
    fault(stage)
    before = everything(stage)
    planned = repair(stage.client)
    done = repair(stage.client, dry_run=False)

    assert done
    assert [(item.check, item.found) for item in done] == [(item.check, item.found) for item in planned]
    assert {item.severity for item in done} == {"ok"}
    assert {item.severity for item in planned} == {"warning"}
    assert everything(stage) >= before
    # Dead letters and quarantined records need a decision.
    assert stage.wrong().keys() <= {"quarantine", "dead letters"}
    assert repair(stage.client, dry_run=False) == []


@pytest.mark.parametrize("fault", [fault for fault, *_ in faults.FAULTS])
def test_neither_a_dry_run_nor_a_repair_of_other_faults_changes_anything(
    stage: Stage, fault: Callable[[Stage], None]
) -> None:
    fault(stage)
    before = keyspace(stage.client)
    findings = repair(stage.client)
    assert keyspace(stage.client) == before
    assert bool([item for item in findings if item.severity == "warning"]) == (fault in MENDED)
    if fault not in MENDED:
        repair(stage.client, dry_run=False)
        assert keyspace(stage.client) == before


def test_a_lost_message_is_redelivered_with_its_count(stage: Stage) -> None:
    faults.in_flight_without_place(stage)
    repair(stage.client, dry_run=False)
    bodies = {message.id: (message.body, message.deliveries) for message in stage.queue.get_many(100)}
    assert bodies["m0"] == ("m0", 2)
    assert bodies["m5"] == ("m5", 1)


def test_a_repair_wakes_blocked_gets(client: redis.Redis) -> None:
    queue = RedisQueue("orders", client)
    queue.put("lost")
    client.delete(queue._records.keys.ready)
    assert queue.get(block=False) is None
    assert client.llen(queue._records.keys.wake) == 0
    repair(client, dry_run=False)
    assert client.llen(queue._records.keys.wake) == 1


def test_the_former_holder_of_a_repaired_message_cannot_ack_it(stage: Stage) -> None:
    message = must(stage.queue.get(block=False))
    stage.client.zrem(stage.at.in_flight, message.id)
    repair(stage.client, dry_run=False)
    assert not stage.queue.ack(message)


def test_an_entry_without_a_due_time_becomes_a_dead_letter(stage: Stage) -> None:
    faults.entry_without_place(stage)
    repair(stage.client, dry_run=False)
    assert stage.delayed.claim(10) == []
    (letter,) = stage.delayed.dead_letters()
    assert (letter.id, letter.body, letter.reason) == ("e2", "e2", "was in no place; when it was due is lost")
    assert stage.delayed.redrive() == 1
    assert [entry.payload for entry in stage.delayed.claim(10)] == ["e2"]


def test_an_id_without_a_record_is_quarantined(stage: Stage) -> None:
    faults.ready_without_record(stage)
    faults.in_flight_without_record(stage)
    repair(stage.client, dry_run=False)
    found = [*stage.queue.quarantined(), *stage.delayed.quarantined()]
    assert [(item.id, item.reason) for item in found] == [("m5", "record missing"), ("held", "record missing")]


def test_put_back_makes_a_message_ready(stage: Stage) -> None:
    faults.forgotten_lease(stage)
    repair(stage.client, dry_run=False)
    message = must(stage.queue.get(block=False))
    assert (message.id, message.deliveries) == ("m0", 2)


@pytest.mark.parametrize("lacking", ["rpush", "lpush", "zadd", "hset", "hdel", "zrem", "lrem"])
def test_a_missing_permission_loses_nothing(stage: Stage, limited: Limit, lacking: str) -> None:
    for fault in MENDED:
        # Put-back has its own tests.
        if fault is not faults.forgotten_lease:
            fault(stage)
    before = everything(stage)
    repair(limited(f"~* &* +@all -{lacking}"), dry_run=False)
    assert everything(stage) >= before
    repair(stage.client, dry_run=False)
    assert everything(stage) >= before
    assert stage.wrong().keys() <= {"quarantine", "dead letters"}


def test_a_repair_without_permission_is_an_error(stage: Stage, limited: Limit) -> None:
    faults.record_without_place(stage)
    (finding,) = repair(limited("~* &* +@all -lpush"), dry_run=False)
    assert (finding.check, finding.severity) == ("orphans", "error")
    assert finding.found.startswith("could not be repaired: the Redis user lacks a permission")


def test_repairs_during_work_lose_and_duplicate_nothing(client: redis.Redis) -> None:
    queue = RedisQueue("busy", client)
    expected = 3000
    queue.put_many(range(expected))
    taken: Counter[int] = Counter()

    def work() -> None:
        own = RedisQueue("busy", client)
        while message := own.get(block=False):
            taken[message.body] += own.ack(message)

    thread = threading.Thread(target=work)
    thread.start()
    found = []
    while thread.is_alive():
        found += repair(client, dry_run=False)
        found += [item for item in examine(client) if item.severity == "error"]
    thread.join()
    assert found == []
    assert set(taken.values()) == {1}
    assert len(taken) == expected
    assert set(wrong(client)) <= {"version"}


def test_many_orphans_of_a_large_queue_are_repaired(client: redis.Redis) -> None:
    queue = RedisQueue("large", client)
    queue.put_many(range(20_000))
    client.ltrim(queue._records.keys.ready, 0, -501)
    client.hdel(queue._records.keys.records, *client.lrange(queue._records.keys.ready, 0, 99))
    (one, other) = repair(client, dry_run=False)
    assert one.found == "queue large: move 100 places without a record to quarantine"
    assert other.found == "queue large: move 500 records without a place back into the ready list"
    stats = queue.stats()
    assert (stats.ready, stats.quarantined) == (19_900, 100)
    assert wrong(client) == {"quarantine": "warning"}
