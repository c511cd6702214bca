"""What was changed by hand is kept once, also where a reply is lost."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
import redis

from redis_queue.audit import Action, Audit
from tests.support.proxy import FaultProxy

pytestmark = pytest.mark.usefixtures("client", "without_pauses")

ACTION = Action(datetime(2026, 1, 2, tzinfo=timezone.utc), "ann", "purge", "orders", 1)


@pytest.fixture
def audit(through: redis.Redis) -> Audit:
    audit = Audit(through, "redis_queue")
    audit.last()
    return audit


def test_an_operation_is_new_although_the_reply_was_lost(audit: Audit, proxy: FaultProxy) -> None:
    proxy.drop_next_reply(matching=b"NX")
    assert audit.begin("form")
    assert proxy.pending_drops == 0
    assert not audit.begin("form")


def test_an_action_is_shown_once_although_the_reply_was_lost(audit: Audit, proxy: FaultProxy) -> None:
    proxy.drop_next_reply(matching=b"LPUSH")
    audit.add(ACTION)
    assert proxy.pending_drops == 0
    assert audit.last() == [ACTION]


def test_two_equal_actions_are_two(audit: Audit) -> None:
    audit.add(ACTION)
    audit.add(ACTION)
    assert audit.last() == [ACTION, ACTION]
