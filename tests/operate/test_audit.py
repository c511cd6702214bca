"""The audit log stores each action once, even after a lost reply."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone

import pytest
import redis

from redis_queue.operate.audit import Audit, AuditLine, Subject
from tests.support.proxy import FaultProxy

pytestmark = pytest.mark.usefixtures("client", "without_pauses")

ACTION = AuditLine(datetime(2026, 1, 2, tzinfo=timezone.utc), "ann", "purge", "orders", 1)


@pytest.fixture
def audit(through: redis.Redis) -> Audit:
    audit = Audit(through, "redis_queue")
    audit.last()
    return audit


def test_an_operation_is_new_after_a_lost_reply(audit: Audit, proxy: FaultProxy) -> None:
    proxy.drop_next_reply(matching=b"NX")
    assert audit.begin("form")
    assert proxy.pending_drops == 0
    assert not audit.begin("form")


def test_an_action_is_stored_once_after_a_lost_reply(audit: Audit, proxy: FaultProxy) -> None:
    proxy.drop_next_reply(matching=b"LPUSH")
    audit.add(ACTION)
    assert proxy.pending_drops == 0
    assert audit.last() == [ACTION]


def test_two_equal_actions_are_two(audit: Audit) -> None:
    audit.add(ACTION)
    audit.add(ACTION)
    assert audit.last() == [ACTION, ACTION]


def test_the_first_subjects_are_stored_with_their_tasks_and_times(audit: Audit) -> None:
    several = [Subject(f"id-{number}", "orders", "shop.remind", ACTION.at) for number in range(20)]
    audit.add(replace(ACTION, subjects=[Subject("x", "orders"), *several]))

    (action,) = audit.last()
    assert list(action.subjects) == [Subject("x", "orders"), *several[:9]]


@pytest.mark.parametrize("subjects", [5, [5], [["id"]], [["id", "task", "never"]], {"id": 1}])
def test_an_action_with_unreadable_subjects_is_left_out(audit: Audit, through: redis.Redis, subjects: object) -> None:
    audit.add(ACTION)
    row = json.loads(through.lindex("redis_queue:audit", 0))
    through.lpush("redis_queue:audit", json.dumps({**row, "subjects": subjects}))

    assert audit.last() == [ACTION]
