"""The sweep of leased channels: expired messages are put back, by the clock of Redis, not by that of the worker."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from kombu.connection import Connection

from redis_queue.celery import DurableTasks
from redis_queue.celery.admission.admission import AdmissionKeys
from redis_queue.celery.fetch.settlement import InFlightRecords
from redis_queue.celery.kombu.keys import InFlightKeys
from redis_queue.celery.leases import qos
from redis_queue.celery.leases.connections import SWEEP_LIMIT, worker_connection
from redis_queue.celery.leases.qos import lease_channels
from redis_queue.store.keys import BrokerKeys, FlowKeys
from tests.support.celery.fetching import FakeLeases, Held
from tests.support.servers import RedisServer

TIMEOUT = 60

LEASE = 10

ENDS = BrokerKeys("").lease_ends("unacked_index").decode()


@pytest.fixture
def channel(redis_server: RedisServer, client: redis.Redis) -> Iterator[Any]:
    """A channel with leases on an empty Redis."""
    assert client.dbsize() == 0
    options = {"visibility_timeout": TIMEOUT}
    with Connection(f"redis+socket://{redis_server.socket}", transport_options=options) as connection:
        lease_channels(connection.transport, FakeLeases())  # type: ignore[arg-type]
        yield connection.default_channel


def hold(client: redis.Redis, tag: str, age: float) -> None:
    """Add a message in flight, taken *age* seconds ago."""
    properties = {"delivery_tag": tag, "delivery_info": {"exchange": "", "routing_key": "q"}, "priority": 0}
    message = {"body": tag, "headers": {}, "properties": properties}
    client.hset("unacked", tag, json.dumps([message, "", "q"]))
    client.zadd("unacked_index", {tag: client.time()[0] - age})


def queued(client: redis.Redis) -> list[str]:
    """Return the messages that are in the queue again."""
    return [json.loads(row)["body"] for row in client.lrange("q", 0, -1)]


def lease(client: redis.Redis, tag: str, ago: float) -> None:
    """Add a message in flight whose lease began *ago* seconds ago."""
    hold(client, tag, ago)
    client.zadd(ENDS, {tag: client.time()[0] - ago + LEASE})


def test_messages_with_a_lease_are_put_back_when_it_ends_and_others_after_the_visibility_timeout(
    channel: Any, client: redis.Redis
) -> None:
    for age in (2, LEASE + 2, TIMEOUT + 2):
        hold(client, f"stock {age}", age)
        lease(client, f"ours {age}", age)
    channel.qos.restore_visible(num=None)
    assert sorted(queued(client)) == ["ours 12", "ours 62", "stock 62"]
    assert client.zrange(ENDS, 0, -1) == [b"ours 2"]


def test_a_renewed_lease_outlives_the_visibility_timeout(channel: Any, client: redis.Redis) -> None:
    hold(client, "running", TIMEOUT + 2)
    client.zadd(ENDS, {"running": client.time()[0] + 2})
    channel.qos.restore_visible(num=None)
    assert queued(client) == []


def test_a_lease_that_is_older_than_the_record_is_forgotten(channel: Any, client: redis.Redis) -> None:
    lease(client, "taken again", LEASE + 2)
    # A worker without leases has returned and taken it, and another one has settled a message.
    hold(client, "taken again", 1)
    client.zadd(ENDS, {"settled": 1})
    channel.qos.restore_visible(num=None)
    assert (queued(client), client.exists(ENDS)) == ([], 0)


def test_only_expired_messages_are_put_back(channel: Any, client: redis.Redis) -> None:
    for tag, age in (("fresh", 0), ("just", TIMEOUT - 2), ("out", TIMEOUT + 2), ("long", 9999)):
        hold(client, tag, age)
    channel.qos.restore_visible(num=None)
    assert sorted(queued(client)) == ["long", "out"]
    assert channel.qos.leases.counters.amounts == {"restored": 2}
    assert {tag.decode() for tag in client.zrange("unacked_index", 0, -1)} == {"fresh", "just"}
    assert client.hlen("unacked") == 2


@pytest.mark.parametrize("wrong", [-3600, 3600])
def test_clock_of_the_worker_is_ignored(
    channel: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    hold(client, "fresh", 0)
    hold(client, "out", TIMEOUT + 2)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + wrong)
    monkeypatch.setattr("kombu.transport.redis.time", lambda: now() + wrong)
    channel.qos.restore_visible(num=None)
    assert queued(client) == ["out"]


@pytest.mark.parametrize("wrong", [-90, 90])
def test_message_in_flight_has_the_time_of_redis_from_the_start(
    channel: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, wrong: int
) -> None:
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + wrong)
    monkeypatch.setattr("kombu.transport.redis.time", lambda: now() + wrong)
    channel.queue_declare("q")
    before = client.time()
    channel.connection.client.Producer().publish("body", routing_key="q")
    message = channel.basic_get("q")
    ((tag, score),) = client.zrange("unacked_index", 0, -1, withscores=True)
    assert tag.decode() == message.delivery_tag
    assert before[0] <= score <= client.time()[0] + 1
    assert channel.qos.leases.held == {message.delivery_tag: score}
    payload, *place = json.loads(client.hget("unacked", tag) or b"")
    assert (payload["properties"]["delivery_tag"], place) == (message.delivery_tag, ["", "q"])
    channel.qos._swept_at = 0.0
    channel.qos.restore_visible()
    assert client.llen("q") == 0
    # kombu puts it back in the same way.
    message.reject(requeue=True)
    assert channel.basic_get("q").delivery_info["redelivered"]


def test_a_message_is_recorded_and_settled_without_scripts(
    redis_server: RedisServer, client: redis.Redis, channel: Any
) -> None:
    client.execute_command("ACL", "SETUSER", "plain", "reset", "on", ">pw", "~*", "&*", "+@all", "-eval", "-script")
    client.script_flush()
    try:
        with redis_server.client(username="plain", password="pw") as plain:
            records = InFlightRecords(plain, AdmissionKeys(InFlightKeys.of(channel), FlowKeys("redis_queue")))
            before = client.time()[0]
            score = records.add("tag", "[]")
            assert before <= score <= client.time()[0] + 1
            assert client.zscore("unacked_index", "tag") == score
            assert client.hget("unacked", "tag") == b"[]"
            records.settle(["tag"])
            records.close()
        assert not client.exists("unacked", "unacked_index")
    finally:
        client.execute_command("ACL", "DELUSER", "plain")


def test_client_puts_nothing_back_by_its_own_clock(
    redis_server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(client, "fresh", 0)
    app = Celery("tests", broker=f"redis+socket://{redis_server.socket}", set_as_current=False)
    app.conf.broker_transport_options = {"visibility_timeout": TIMEOUT}
    DurableTasks(app, delays=False)
    now = time.time
    monkeypatch.setattr("kombu.transport.redis.time", lambda: now() + 90)
    # A Kubernetes probe does this.
    app.control.ping(timeout=0.2)
    app.close()
    assert queued(client) == []
    assert client.hexists("unacked", "fresh")


def test_app_sets_the_limit_of_a_sweep() -> None:
    app = Celery("tests", broker="redis://localhost:1", set_as_current=False)
    DurableTasks(app, delays=False)
    assert worker_connection(app, None).transport_options[SWEEP_LIMIT] is None
    app.conf.broker_transport_options = {SWEEP_LIMIT: 7}
    assert worker_connection(app, None).transport_options[SWEEP_LIMIT] == 7
    assert app.connection_for_write().transport_options[SWEEP_LIMIT] == 0


def test_sweeps_are_limited_in_rate(channel: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [1000.0]
    monkeypatch.setattr(qos, "monotonic", lambda: seconds[0])
    channel.qos.restore_visible()
    hold(client, "out", TIMEOUT + 2)
    for seconds[0] in (1001.0, 1009.9):
        channel.qos.restore_visible()
        assert queued(client) == []
    seconds[0] = 1010.1
    channel.qos.restore_visible()
    assert queued(client) == ["out"]


def test_at_most_the_limit_is_put_back_at_once(channel: Any, client: redis.Redis) -> None:
    for number in range(5):
        hold(client, f"out-{number}", TIMEOUT + 2)
    channel.qos.restore_visible(num=3)
    assert len(queued(client)) == 3


def test_mutex_of_a_killed_kombu_worker_does_not_block(channel: Any, client: redis.Redis) -> None:
    hold(client, "out", TIMEOUT + 2)
    client.set("unacked_mutex", "somebody who just started", ex=300)
    channel.qos.restore_visible()
    assert queued(client) == ["out"]


def test_expired_messages_are_put_back_under_the_prefix_of_the_broker(redis_server: RedisServer) -> None:
    options = {"visibility_timeout": TIMEOUT, "global_keyprefix": "shop:"}
    with (
        Connection(f"redis+socket://{redis_server.socket}", transport_options=options) as connection,
        redis_server.client() as client,
    ):
        leases = FakeLeases(InFlightKeys.of(connection.default_channel))
        lease_channels(connection.transport, leases)  # type: ignore[arg-type]
        client.flushall()
        hold(client, "out", TIMEOUT + 2)
        for key in ("unacked", "unacked_index"):
            client.rename(key, f"shop:{key}")
        # A message of another app, which has no prefix.
        hold(client, "foreign", TIMEOUT + 2)
        connection.default_channel.qos.restore_visible()
        assert [json.loads(row)["body"] for row in client.lrange("shop:q", 0, -1)] == ["out"]
        assert client.hkeys("unacked") == [b"foreign"]


def test_own_messages_are_not_put_back(channel: Any, client: redis.Redis) -> None:
    hold(client, "own", TIMEOUT + 2)
    hold(client, "out", TIMEOUT + 2)
    channel.qos.leases.hold([Held("own")], 1.0, 1.0)
    channel.qos.restore_visible()
    assert queued(client) == ["out"]


def test_unreadable_messages_are_quarantined_and_block_no_others(channel: Any, client: redis.Redis) -> None:
    for tag in ("bad", "odd", "out"):
        hold(client, tag, TIMEOUT + 2)
    client.hset("unacked", mapping={"bad": b"\xff not JSON", "odd": b"[1]"})
    channel.qos.restore_visible()
    assert queued(client) == ["out"]
    assert sorted(channel.qos.leases.aside) == [b"[1]", b"\xff not JSON"]


def test_a_lease_that_is_renewed_during_the_sweep_goes_on(
    channel: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease(client, "renewed", LEASE + 2)
    records = channel.qos._records
    find = records.find

    def renew_and_find(tag: str) -> Any:
        client.zadd(ENDS, {tag: client.time()[0] + LEASE})
        return find(tag)

    monkeypatch.setattr(records, "find", renew_and_find)
    channel.qos.restore_visible(num=None)
    assert queued(client) == []


def test_two_sweeps_at_the_same_time_return_a_message_once(
    channel: Any, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(client, "out", TIMEOUT + 2)
    records = channel.qos._records
    find = records.find

    def find_and_be_late(tag: str) -> Any:
        record = find(tag)
        monkeypatch.setattr(records, "find", find)
        channel.qos.restore_by_tag(tag)
        return record

    monkeypatch.setattr(records, "find", find_and_be_late)
    channel.qos.restore_visible(num=None)
    assert queued(client) == ["out"]
    assert channel.qos.leases.counters.amounts == {}
