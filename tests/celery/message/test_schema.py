"""Send delayed tasks that the first release stored."""

from __future__ import annotations

import json

import pytest
import redis

from redis_queue.celery import Dispatched, Dispatcher, DurableTasks
from tests.support.celery.brokers import Broker
from tests.support.store.schema import write_schema_1

pytestmark = pytest.mark.parametrize("broker", ["redis", "another redis"], indirect=True)

PLAIN = "0d1f0f7e-5d0a-4f3c-9c55-0e0a8a1e7c11"
ROUTED = "0d1f0f7e-5d0a-4f3c-9c55-0e0a8a1e7c12"


def test_entries_of_the_first_release_are_listed_and_sent(broker: Broker, redis_url: str, client: redis.Redis) -> None:
    write_schema_1(client)
    broker.forget_later("mail")
    broker.bind("mail", "news", "eu.mail")
    app = broker.app(redis_queue_url=redis_url, redis_queue_delay_queue="celery", task_default_queue="mail")
    delayed = DurableTasks(app, leases=False)
    assert {entry.id: entry.task for entry in delayed.list()} == {
        PLAIN: "shop.remind",
        ROUTED: "shop.remind",
        "call": "shop.remind",
    }
    assert [entry.id for entry in delayed.list(queue="mail")] == [PLAIN, ROUTED]
    for task_id in (PLAIN, ROUTED, "call"):
        assert delayed.run_now(task_id)
    assert Dispatcher(app, delayed.queue).run() == Dispatched(sent=3)
    found = {message.headers["id"]: message for message in broker.take("mail")}
    assert json.loads(found[PLAIN].body)[:2] == [[1, "Zoë"], {"urgent": True}]
    assert json.loads(found["call"].body)[:2] == [[3], {}]
    assert json.loads(found[ROUTED].body)[:2] == [[2], {}]
    assert found[ROUTED].properties["priority"] == 5
    assert found[ROUTED].headers["expires"] == "2034-01-01T00:00:00+00:00"
    assert found[ROUTED].delivery_info["exchange"] == "news"
