"""A client with a wrong clock: a countdown counts from the clock of the store."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
import redis

from redis_queue.celery import Dispatcher, DurableTasks
from tests.support.celery.brokers import Broker
from tests.support.wait import must, wait_until


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize("broker", ["redis"], indirect=True)
def test_skew_of_an_hour_is_ignored(
    broker: Broker, redis_url: str, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    app = broker.app(redis_queue_url=redis_url)
    delayed = DurableTasks(app, leases=False)
    monkeypatch.setattr(app, "now", lambda: datetime.now(timezone.utc) + timedelta(hours=hours))
    soon, later = app.send_task("shop.remind", countdown=0.2), app.send_task("shop.remind", countdown=60)

    entry = must(delayed.get(later.id))
    assert abs(entry.due_at - datetime.now(timezone.utc) - timedelta(seconds=60)) < timedelta(seconds=10)
    work = Dispatcher(app, delayed.queue)
    wait_until(lambda: work.run().sent == 1, description="the first task to be due")
    (message,) = broker.take(app.conf.task_default_queue)
    assert message.headers["id"] == soon.id
    # A worker with a wrong clock would hold a message with an eta, or run it early.
    assert message.headers["eta"] is None
