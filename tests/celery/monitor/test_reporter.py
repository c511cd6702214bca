"""The reporter counts each run once, also if only a part of a report was written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from redis_queue.celery import DurableTasks
from redis_queue.celery.monitor import snapshot
from redis_queue.celery.monitor.activity import Activity
from redis_queue.celery.monitor.failure_log import FailureLog
from redis_queue.celery.monitor.step import Reporter
from redis_queue.celery.settings import KeepFailures
from redis_queue.monitor.history import RunHistory
from redis_queue.monitor.model import WorkerRow
from redis_queue.store.connection import connect
from redis_queue.store.keys import MonitorKeys
from tests.support.clock import when
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

PREFIX = "redis_queue"
KEYS = MonitorKeys(PREFIX)


class OneWorker:
    """A worker that runs nothing at the moment."""

    def worker(self, _skew: float) -> WorkerRow:
        return WorkerRow("one@host", when(0), when(0))

    def running(self, _skew: float) -> list[Any]:
        return []


def request(id_: str) -> Any:
    info = {"exchange": "", "routing_key": "mail"}
    return SimpleNamespace(
        request_dict={"task": "shop.mail", "id": id_, "delivery_info": info}, time_start=1.0, message=None
    )


@pytest.mark.parametrize("key", [KEYS.totals, KEYS.runs, KEYS.failures], ids=lambda key: key.decode())
def test_a_part_that_cannot_be_written_stops_no_other(
    redis_server: RedisServer, client: redis.Redis, key: bytes
) -> None:
    client.set(key, "of another program")
    activity = Activity("one@host", lambda _: "mail", lambda *_: None)
    activity.ended(request("1"), "failed", 0.1)
    log = FailureLog("one@host", lambda _: "mail", KeepFailures(10, 1.0))
    log.note_message("unreadable", SimpleNamespace(headers={}, body=b"", delivery_info={}), "why")
    with Celery("reporting", set_as_current=False) as app:
        app.conf.redis_queue_url = redis_server.url
        DurableTasks(app, leases=False)
        reporter = Reporter(app, activity, OneWorker(), log)  # type: ignore[arg-type]
        reporter.start()
        parts = {KEYS.current: KEYS.totals, KEYS.workers: KEYS.runs, KEYS.failed_at: KEYS.failures}
        for part, source in parts.items():
            if source != key:
                wait_until(lambda part=part: client.exists(part), description=part.decode())
        client.delete(key)
        reporter.stop()
    assert sum(period.tally.executed for period in RunHistory(client, PREFIX).minutes(2)) == 1
    assert client.hlen(KEYS.runs) == 1


def test_counts_are_not_repeated_if_the_state_cannot_be_written(redis_server: RedisServer, client: redis.Redis) -> None:
    client.set(KEYS.workers, "of another program")
    activity = Activity("one@host", lambda _: "mail", lambda *_: None)
    for number in range(3):
        activity.ended(request(str(number)), "succeeded", 0.1)
    with Celery("reporting", set_as_current=False) as app:
        app.conf.redis_queue_url = redis_server.url
        DurableTasks(app, leases=False)
        reporter = Reporter(app, activity, OneWorker(), FailureLog("one@host", lambda _: "mail", None))  # type: ignore[arg-type]
        reporter.start()
        wait_until(lambda: client.hlen(KEYS.current), description="the counts")
        client.delete(KEYS.workers)
        reporter.stop()
    assert client.hexists(KEYS.workers, "one@host") is False
    assert sum(period.tally.executed for period in RunHistory(client, PREFIX).minutes(2)) == 3


def test_another_sentinel_set_is_not_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (connect(f"redis+sentinel://{host}/0?master_name=main", check=False) for host in ("a", "b"))
    connection = SimpleNamespace(transport=SimpleNamespace(driver_type="redis"), default_channel=None)
    monkeypatch.setattr(snapshot, "client_of", lambda _: theirs)
    monkeypatch.setattr(snapshot.Store, "of", lambda _: SimpleNamespace(client=ours))
    assert snapshot._names_of(SimpleNamespace(app=None, connection=connection)) is None
