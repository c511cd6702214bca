"""The sweep of leased channels: what ran out goes back, by the clock of Redis, whatever the worker's clock says."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from kombu.connection import Connection

from redis_queue.celery.leases import qos
from redis_queue.celery.leases.qos import lease_channels
from tests.celery.trusting import Trusting
from tests.support.servers import RedisServer

pytestmark = pytest.mark.celery

TIMEOUT = 60


@pytest.fixture
def channel(redis_server: RedisServer, client: redis.Redis) -> Iterator[Any]:
    """A channel of an empty Redis whose leases are kept."""
    assert client.dbsize() == 0
    options = {"visibility_timeout": TIMEOUT}
    with Connection(f"redis+socket://{redis_server.socket}", transport_options=options) as connection:
        lease_channels(connection.transport, Trusting())  # type: ignore[arg-type]
        yield connection.default_channel


def hold(client: redis.Redis, tag: str, age: float) -> None:
    """Put a message in flight that was taken *age* seconds ago."""
    properties = {"delivery_tag": tag, "delivery_info": {"exchange": "", "routing_key": "q"}, "priority": 0}
    message = {"body": tag, "headers": {}, "properties": properties}
    client.hset("unacked", tag, json.dumps([message, "", "q"]))
    client.zadd("unacked_index", {tag: client.time()[0] - age})


def back(client: redis.Redis) -> list[str]:
    """Return what is in the queue again."""
    return [json.loads(row)["body"] for row in client.lrange("q", 0, -1)]


def test_what_ran_out_goes_back_and_nothing_else(channel: Any, client: redis.Redis) -> None:
    for tag, age in (("fresh", 0), ("just", TIMEOUT - 2), ("out", TIMEOUT + 2), ("long", 9999)):
        hold(client, tag, age)
    channel.qos.restore_visible(num=None)
    assert sorted(back(client)) == ["long", "out"]
    assert {tag.decode() for tag in client.zrange("unacked_index", 0, -1)} == {"fresh", "just"}
    assert client.hlen("unacked") == 2


@pytest.mark.parametrize("wrong", [-3600, 3600])
def test_the_clock_of_the_worker_does_not_matter(
    channel: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    hold(client, "fresh", 0)
    hold(client, "out", TIMEOUT + 2)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + wrong)
    monkeypatch.setattr("kombu.transport.redis.time", lambda: now() + wrong)
    channel.qos.restore_visible(num=None)
    assert back(client) == ["out"]


def test_it_looks_no_more_often_than_it_should(
    channel: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = [1000.0]
    monkeypatch.setattr(qos.time, "monotonic", lambda: seconds[0])
    channel.qos.restore_visible()
    hold(client, "out", TIMEOUT + 2)
    for seconds[0] in (1001.0, 1009.9):
        channel.qos.restore_visible()
        assert back(client) == []
    seconds[0] = 1010.1
    channel.qos.restore_visible()
    assert back(client) == ["out"]


def test_no_more_than_the_limit_goes_back_at_once(channel: Any, client: redis.Redis) -> None:
    for number in range(5):
        hold(client, f"out-{number}", TIMEOUT + 2)
    channel.qos.restore_visible(num=3)
    assert len(back(client)) == 3


def test_only_one_looks_at_a_time_and_a_dead_one_does_not_block_for_long(channel: Any, client: redis.Redis) -> None:
    hold(client, "out", TIMEOUT + 2)
    client.set("unacked_mutex", "somebody", ex=300)
    channel.qos.restore_visible()
    assert back(client) == []
    assert qos.MUTEX_EXPIRE <= TIMEOUT / 3
