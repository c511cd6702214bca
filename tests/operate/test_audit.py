"""The audit log stores each action once, even after a lost reply; no record that is kept has a likely secret."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone

import pytest
import redis

from redis_queue.delay.dispatch_log import DispatcherRow
from redis_queue.delay.model import Dispatched
from redis_queue.delay.queue import DelayQueue
from redis_queue.monitor.failures import Failures
from redis_queue.monitor.model import Failure, Run
from redis_queue.monitor.report import Reports
from redis_queue.operate.audit import Audit, AuditLine, Subject
from redis_queue.queue.queue import RedisQueue
from redis_queue.schedules.definition import Definition
from redis_queue.schedules.state import Event, State
from redis_queue.schedules.store import Change, ScheduleStore
from tests.support.proxy import FaultProxy
from tests.support.wait import must
from tests.support.web.contents import everything

pytestmark = pytest.mark.usefixtures("client", "without_pauses")

SECRETS = (
    "Error: cannot reach redis://user:hunter2@host/0, {'password': 'hunter2'}, Authorization: Bearer hunter2hunter2"
)

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
    audit.record(ACTION)
    assert proxy.pending_drops == 0
    assert audit.last() == [ACTION]


def test_two_equal_actions_are_two(audit: Audit) -> None:
    audit.record(ACTION)
    audit.record(ACTION)
    assert audit.last() == [ACTION, ACTION]


def test_the_first_subjects_are_stored_with_their_tasks_and_times(audit: Audit) -> None:
    several = [Subject(f"id-{number}", "orders", "shop.remind", ACTION.at) for number in range(20)]
    audit.record(replace(ACTION, subjects=[Subject("x", "orders"), *several]))

    (action,) = audit.last()
    assert list(action.subjects) == [Subject("x", "orders"), *several[:9]]


@pytest.mark.parametrize("subjects", [5, [5], [["id"]], [["id", "task", "never"]], {"id": 1}])
def test_an_action_with_unreadable_subjects_is_left_out(audit: Audit, through: redis.Redis, subjects: object) -> None:
    audit.record(ACTION)
    row = json.loads(through.lindex("redis_queue:audit", 0))
    through.lpush("redis_queue:audit", json.dumps({**row, "subjects": subjects}))

    assert audit.last() == [ACTION]


def put_audit(client: redis.Redis) -> None:
    Audit(client, "redis_queue").record(replace(ACTION, detail=SECRETS))


def put_run(client: redis.Redis) -> None:
    run = Run("id1", "shop.mail", "mail", "one@host", "failed", ACTION.at)
    Reports(client, "redis_queue").write(ended=[replace(run, error=SECRETS, args=SECRETS, kwargs=SECRETS)])


def put_failure(client: redis.Redis) -> None:
    # The traceback is cut where the address stands.
    trace = f"{'x ' * 470} {SECRETS} {'y ' * 20_000}\n{SECRETS}"
    failure = Failure("id1", "shop.mail", "mail", "one@host", datetime.now(timezone.utc), traceback=trace)
    Failures(client, "redis_queue").keep([replace(failure, message=SECRETS, args=SECRETS, kwargs=SECRETS)], 1000, 7)


def put_reason(client: redis.Redis) -> None:
    queue = RedisQueue("orders", client)
    queue.put("x")
    queue.nack(must(queue.get(block=False)), reason=ConnectionError(SECRETS), dead=True)


def put_event(client: redis.Redis) -> None:
    store, definition = ScheduleStore(DelayQueue("scheduled", client)), Definition("nightly", "t", [{"every": 60_000}])
    events = [Event("error", 1, text=SECRETS), Event("paused", 2, text=SECRETS)]
    assert store.change([Change("nightly", b"", State("0123abcd", 1, 1), definition.text(), 1, events)]) == [True]


def put_dispatcher(client: redis.Redis) -> None:
    row = DispatcherRow("one", ACTION.at, leads=True, version="1", sent=0, failed=0, error=SECRETS)
    DelayQueue("scheduled", client).dispatch_log.note(Dispatched(), dispatcher=row)


@pytest.mark.parametrize("put", [put_audit, put_run, put_failure, put_reason, put_event, put_dispatcher])
def test_what_is_kept_has_no_likely_secret(put: Callable[[redis.Redis], None], client: redis.Redis) -> None:
    client.config_set("rdbcompression", "no")
    put(client)
    kept = repr(everything(client))
    client.config_set("rdbcompression", "yes")
    assert "hunter2" not in kept
    assert "cannot reach" in kept
