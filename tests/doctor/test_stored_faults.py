"""Problems of stored data are found by the right check only."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis

from redis_queue import RedisQueue
from redis_queue.doctor import examine
from redis_queue.doctor.keyspace import SCHEMA
from redis_queue.doctor.server import servers
from redis_queue.doctor.survey import survey
from redis_queue.store.keys import Keys
from redis_queue.store.script_files import load
from tests.support.doctor import faults
from tests.support.doctor.stage import Stage, wrong


def test_a_healthy_server_has_no_findings(stage: Stage) -> None:
    assert stage.wrong() == {}


def test_an_empty_server_has_no_findings(client: redis.Redis) -> None:
    assert wrong(client) == {}
    assert client.keys("*") == []


@pytest.mark.parametrize(("fault", "check", "severity"), faults.FAULTS, ids=faults.NAMES)
def test_a_fault_is_found_only_by_its_check_and_marked_if_a_repair_removes_it(
    stage: Stage, fault: Callable[[Stage], None], check: str, severity: str
) -> None:
    fault(stage)
    # Without a readable registry, queues are found by their keys.
    also = {"registry": "warning"} if fault is faults.registry_of_a_wrong_type else {}
    findings = [finding for finding in examine(stage.client) if finding.severity != "ok"]
    assert {each.check: each.severity for each in findings if each.check != "version"} == {check: severity, **also}
    assert all(finding.advice for finding in findings)
    marked = {finding.repairable for finding in findings if finding.severity == "error" or finding.repairable}
    assert marked <= {fault in faults.MENDED}


def test_checks_change_nothing(stage: Stage) -> None:
    for fault in (
        faults.record_without_place,
        faults.ready_without_record,
        faults.forgotten_lease,
        faults.late_entry,
        faults.records_that_expire,
    ):
        fault(stage)
    before = {key: stage.client.dump(key) for key in stage.client.keys("*")}
    examine(stage.client)
    assert {key: stage.client.dump(key) for key in stage.client.keys("*")} == before


def test_findings_have_numbers_and_places(stage: Stage) -> None:
    faults.one_of_each_which_counts_do_not_show(stage)
    faults.late_entry(stage)
    assert stage.delayed.moves.lead("host:1", 60).mine
    found = [finding.found for finding in examine(stage.client) if finding.severity == "error"]
    assert found[:2] == [
        "queue orders: 1 record in no place: no consumer gets them",
        "queue orders: 1 id in a place without a record",
    ]
    assert found[2].startswith("delay reminders: the first entry is overdue by ")
    assert found[2].endswith(", and host:1 leads")


def test_other_prefixes_are_not_checked(stage: Stage) -> None:
    RedisQueue("orders", stage.client, prefix="other").put(1)
    stage.client.delete(Keys("other", "queue", "orders").records)
    assert stage.wrong() == {}
    assert [finding.check for finding in examine(stage.client, "other") if finding.severity == "error"] == ["orphans"]


def test_the_schema_equals_that_of_the_scripts() -> None:
    for name in ("records/repair", "queue/get"):
        assert re.search(rf"^local known, SCHEMA = .+, {SCHEMA}$", load(name).source, re.MULTILINE)


def test_short_delays_are_not_a_problem(stage: Stage) -> None:
    stage.client.zadd(stage.at.in_flight, {"m0": (time.time() - 300) * 1000})
    stage.client.zadd(stage.delayed_at.waiting, {"e0": (time.time() - 30) * 1000})
    assert stage.wrong() == {}


def test_the_temporary_keys_of_a_destroyed_queue_are_not_a_problem(stage: Stage) -> None:
    stage.queue.destroy()
    stage.delayed.destroy()
    stage.client.rpush(stage.at.wake, 1)
    stage.delayed.moves.lead("host:1", 60)
    assert stage.wrong() == {}


def test_every_id_is_read(client: redis.Redis) -> None:
    queue = RedisQueue("long", client)
    queue.put_many(range(2345))
    queue.put_many(range(1234), delay=3600)
    (shard,) = survey(client, servers(client, "redis_queue"), "redis_queue").shards
    ready, waiting = client.lrange(queue._records.keys.ready, 0, -1), client.zrange(queue._records.keys.waiting, 0, -1)
    assert sorted(shard.placed(None)) == sorted([*ready, *waiting])
    assert sorted(set(shard.ids(None))) == sorted([*ready, *waiting])
    assert sorted(shard.ready(1000)) == sorted(client.lrange(queue._records.keys.ready, -1000, -1))


def test_a_huge_queue_is_checked_in_part(client: redis.Redis) -> None:
    queue = RedisQueue("huge", client)
    for _ in range(10):
        queue.put_many(range(10_000))
    client.lpop(queue._records.keys.ready, 3)
    client.config_resetstat()
    findings = examine(client)
    calls: Any = client.info("commandstats")
    assert [finding.found for finding in findings if finding.severity == "error"] == [
        "queue huge: 3 records in no place: no consumer gets them"
    ]
    # At most 10,000 records of 100,000, and 500 in each script.
    scripts, looks = calls["cmdstat_evalsha"]["calls"], calls["cmdstat_hexists"]["calls"]
    assert looks <= min(10_050, 500 * scripts)
    assert scripts <= 50
