"""Both queues on Redis Cluster and with Sentinel, also during a failover."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis

from redis_queue import ConfigurationError, DelayQueue, PutBack, RedisQueue, StoreUnavailableError, connect
from redis_queue.delay.model import Push
from redis_queue.store.keys import Keys
from redis_queue.store.registry import Registry
from redis_queue.store.script_files import load
from redis_queue.store.scripts import CALL_ATTEMPTS, Scripts
from redis_queue.store.urls import url_of
from tests.support.cluster import RedisCluster
from tests.support.ports import HOST
from tests.support.sentinel import SentinelSet
from tests.support.servers import RedisServer, replication_of, wait_until_replicated
from tests.support.wait import must, wait_until

ORDERS = Keys("redis_queue", "queue", "orders")

Client = redis.Redis | redis.RedisCluster


def blocked(server: RedisServer) -> int:
    with server.client() as client:
        return int(client.info("clients")["blocked_clients"])


def persist(call: Callable[[], Any]) -> Any:
    """Return the result of *call*; repeat it while Redis is unavailable."""

    def attempt() -> list[Any]:
        try:
            return [call()]
        except StoreUnavailableError:
            return []

    return wait_until(attempt, description="Redis to be back")[0]


@pytest.fixture(params=["cluster_client", "sentinel_client"])
def each_client(request: pytest.FixtureRequest) -> Client:
    """A client of a Cluster, and one that found its server with Sentinel."""
    client: Client = request.getfixturevalue(request.param)
    return client


def test_every_method_of_a_queue(each_client: Client) -> None:
    client = each_client
    queue = RedisQueue("orders", client, max_deliveries=2)
    ids = queue.put_many([{"n": number} for number in range(5)])
    queue.put("again", dedupe_key=ids[0])
    assert [message.body for message in queue.peek(2)] == [{"n": 0}, {"n": 1}]
    first, second, third = queue.get_many(3)
    assert queue.extend_many([first, second, third], 90) == [True] * 3
    assert queue.still_mine(first)
    assert queue.ack(first)
    assert not queue.ack(first)
    assert queue.nack(second, dead=True, reason="bad")
    assert [(letter.id, letter.reason) for letter in queue.dead_letters()] == [(ids[1], "bad")]
    assert queue.redrive() == 1
    assert queue.nack(third)
    assert [must(queue.get()).body["n"] for _ in range(4)] == [2, 3, 4, 1]
    queue.put("delayed", delay=0.05)
    delayed = must(queue.get(timeout=5))
    assert delayed.body == "delayed"
    client.zadd(ORDERS.in_flight, {third.id: 0, delayed.id: 0})
    assert queue.put_back() == PutBack(returned=1, dead=1)
    queue.pause()
    assert queue.get(block=False) is None
    queue.resume()
    stats = queue.stats()
    assert (stats.put, stats.acked) == (6, 1)
    assert stats.ready + stats.delayed + stats.in_flight + stats.dead == 5
    queue.purge("ready", "delayed", "dead", "quarantine")
    assert Registry(Scripts(client), "redis_queue").all()[-1].name == "orders"


def test_every_method_of_a_delay_queue(each_client: Client) -> None:
    timed = DelayQueue("orders", each_client, shards=4, max_deliveries=2)
    timed.push_many([Push(number, id=f"e{number:02}", delay=0 if number < 20 else 60) for number in range(40)])
    assert len(timed) == 40
    assert sorted(entry.id for entry in timed) == [f"e{number:02}" for number in range(40)]
    assert timed.cancel_many(["e00", "e39", "unknown"]) == [True, True, False]
    assert timed.reschedule("e38", delay=90)
    assert timed.run_now("e37")
    assert sum(count for _, count in timed.forecast(2)) == 38
    entries = timed.claim(500)
    assert sorted(entry.id for entry in entries) == sorted([f"e{number:02}" for number in range(1, 20)] + ["e37"])
    assert timed.extend(entries[0])
    assert timed.ack_many(entries[:10]) == [True] * 10
    assert timed.nack_many(entries[10:], dead=True, reason="bad") == [True] * 10
    assert len(timed.dead_letters()) == 10
    assert timed.redrive() == 10
    assert len(timed.pop(500)) == 10
    entry = must(timed.get("e38"))
    assert timed.list(after=timed.cursor(entry)) == []
    assert timed.next_due() is not None
    assert timed.purge() == 18
    assert timed.stats().in_flight == 0


class TestCluster:
    @pytest.mark.usefixtures("cluster_client")
    def test_a_url_is_enough(self, cluster: RedisCluster) -> None:
        queue = RedisQueue("orders", cluster.url)
        assert url_of(queue.client).startswith("redis+cluster://127.0.0.1:")
        queue.put("hello")
        assert queue.ack(must(queue.get(block=False)))
        assert isinstance(queue.client, redis.RedisCluster)

    def test_shards_are_on_several_nodes(self, cluster: RedisCluster, cluster_client: redis.RedisCluster) -> None:
        DelayQueue("orders", cluster_client, shards=4).push_many(range(200))
        keys = [Keys("redis_queue", "delay", "orders", shard).waiting.decode() for shard in range(4)]
        assert len({cluster.primary_of(key).port for key in keys}) > 1
        sizes = [cluster_client.zcard(key) for key in keys]
        assert sum(sizes) == 200
        assert min(sizes) > 20

    def test_move_due_is_refused(self, cluster_client: redis.RedisCluster) -> None:
        timed = DelayQueue("orders", cluster_client, shards=4)
        timed.push("a", destination="elsewhere")
        with pytest.raises(ConfigurationError, match="Redis Cluster forbids; use claim"):
            timed.move_due()
        assert [entry.destination for entry in timed.claim()] == ["elsewhere"]

    @pytest.mark.usefixtures("cluster_client")
    def test_a_client_that_decodes_is_refused(self, cluster: RedisCluster) -> None:
        with (
            cluster.client(decode_responses=True) as decoding,
            pytest.raises(ConfigurationError, match="decode_responses"),
        ):
            RedisQueue("orders", decoding)

    @pytest.mark.parametrize("killed", [False, True])
    def test_a_put_wakes_a_waiting_get_also_if_its_primary_was_killed(
        self, cluster: RedisCluster, cluster_client: redis.RedisCluster, pool: ThreadPoolExecutor, killed: bool
    ) -> None:
        with cluster.client() as other:
            future = pool.submit(RedisQueue("orders", other, poll_interval=4).get, timeout=30)
            server = cluster.primary_of(ORDERS.wake.decode())
            wait_until(lambda: blocked(server) == 1, description="a blocked get")
            if killed:
                cluster.kill_primary_of(ORDERS.wake.decode())
            persist(lambda: RedisQueue("orders", cluster_client).put("hello"))
            assert must(future.result(15 if killed else 3)).body == "hello"

    def test_a_killed_primary_loses_no_confirmed_writes(
        self, cluster: RedisCluster, cluster_client: redis.RedisCluster, pool: ThreadPoolExecutor
    ) -> None:
        queue = RedisQueue("orders", cluster_client)
        timed = DelayQueue("orders", cluster_client, shards=4)
        queue.put_many(range(100))
        timed.push_many([Push(number, id=str(number)) for number in range(100)])
        held = queue.get_many(10)
        assert queue.ack_many(held[:5]) == [True] * 5
        wait_until_replicated(*filter(is_primary, cluster.servers), replicas=1)
        future = pool.submit(cluster.kill_primary_of, ORDERS.meta.decode())
        for number in range(100, 130):
            persist(lambda: queue.put(number, dedupe_key=f"late {number}"))  # noqa: B023
        future.result(30)
        assert persist(lambda: queue.ack_many(held[5:])) == [True] * 5
        found = persist(lambda: queue.get_many(500))
        assert [message.body for message in found if message.body < 100] == list(range(10, 100))
        assert {message.body for message in found if message.body >= 100} <= set(range(100, 130))
        assert 129 in {message.body for message in found}
        assert sorted(entry.payload for entry in persist(lambda: timed.claim(500))) == list(range(100))


def is_primary(server: RedisServer) -> bool:
    return server.answering and replication_of(server)["role"] == "master"


def sentinel_url(sentinel: SentinelSet) -> str:
    """Return the URL in the project's own form."""
    nodes = ",".join(f"{host}:{port}" for host, port in sentinel.nodes)
    return f"redis+sentinel://{nodes}/0?master_name={sentinel.master_name}"


class TestSentinel:
    def test_each_form_of_url_works(self, sentinel: SentinelSet, sentinel_client: redis.Redis) -> None:
        RedisQueue("orders", sentinel_url(sentinel)).put("ours")
        RedisQueue("orders", sentinel.url).put("the other name")
        celery = ";".join(f"sentinel://{host}:{port}" for host, port in sentinel.nodes)
        RedisQueue("orders", connect(celery, master_name=sentinel.master_name)).put("celery's")
        found = RedisQueue("orders", sentinel_client).get_many(5)
        assert [message.body for message in found] == ["ours", "the other name", "celery's"]

    @pytest.mark.usefixtures("sentinel_client")
    def test_an_unknown_primary_raises(self, sentinel: SentinelSet) -> None:
        with pytest.raises(StoreUnavailableError, match="nobody"):
            connect(sentinel_url(sentinel).replace(f"={sentinel.master_name}", "=nobody"))

    def test_a_failover_loses_no_replicated_writes_and_a_blocked_get_continues(
        self, sentinel: SentinelSet, sentinel_client: redis.Redis, pool: ThreadPoolExecutor
    ) -> None:
        queue = RedisQueue("orders", sentinel_url(sentinel))
        timed = DelayQueue("orders", queue.client)
        queue.put_many(range(50))
        timed.push_many(range(50))
        held = queue.get_many(10)
        assert queue.ack_many(held[:5]) == [True] * 5
        waiting = pool.submit(RedisQueue("empty", sentinel_url(sentinel)).get, timeout=40)
        wait_until(lambda: blocked(sentinel.primary) == 1, description="a blocked get")
        wait_until_replicated(sentinel.primary, replicas=2)
        new = sentinel.fail_over()
        persist(lambda: queue.put("after", dedupe_key="after"))
        assert queue.ack_many(held) == [False] * 5 + [True] * 5
        assert [message.body for message in queue.get_many(500)] == [*range(10, 50), "after"]
        assert sorted(entry.payload for entry in persist(lambda: timed.claim(500))) == list(range(50))
        with new.client() as client:
            assert client.exists(ORDERS.records)
        persist(lambda: RedisQueue("empty", queue.client).put("wake up"))
        assert must(waiting.result(15)).body == "wake up"

    def test_clients_leave_a_demoted_primary(
        self, sentinel: SentinelSet, sentinel_client: redis.Redis, pool: ThreadPoolExecutor
    ) -> None:
        queue = RedisQueue("orders", sentinel_url(sentinel))
        queue.put("before")
        waiting = pool.submit(RedisQueue("empty", sentinel_url(sentinel)).get, timeout=40)
        old = sentinel.primary
        wait_until(lambda: blocked(old) == 1, description="a blocked get")
        wait_until_replicated(old, replicas=2)
        with sentinel.sentinels[0].client() as watcher:
            watcher.execute_command("SENTINEL", "FAILOVER", sentinel.master_name)
        wait_until(lambda: sentinel.primary is not old, description="another primary")
        with old.client() as client:  # Sentinel would do it ten seconds later
            client.replicaof(HOST, sentinel.primary.port)
        persist(lambda: queue.put("after", dedupe_key="after"))
        assert [message.body for message in persist(lambda: queue.get_many(5))] == ["before", "after"]
        persist(lambda: RedisQueue("empty", queue.client).put("wake up"))
        assert must(waiting.result(15)).body == "wake up"


class TestClientWithRetries:
    """A client made by the user: redis-py would repeat a script after a lost reply, as a new call."""

    def test_a_cluster_client_does_not_repeat_scripts(
        self, cluster: RedisCluster, cluster_client: redis.RedisCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert cluster_client.ping()
        with redis.RedisCluster(host=cluster.nodes[0][0], port=cluster.nodes[0][1]) as client:
            queue = RedisQueue("orders", client)
            queue.put_many([1, 2])
            assert queue.ack(must(queue.get()))
            message = must(queue.get())
            execute, lost = client._execute_command, []

            def lossy(node: Any, *command: Any, **options: Any) -> Any:
                reply = execute(node, *command, **options)
                if command[1] == load("records/ack").sha and not lost:
                    lost.append(command)
                    raise redis.ConnectionError("the reply is lost")
                return reply

            monkeypatch.setattr(client, "_execute_command", lossy)
            assert queue.ack(message)
            assert lost

    def test_a_client_of_one_server_makes_few_attempts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tried: list[object] = []

        def refuse(connection: redis.Connection) -> None:
            tried.append(connection)
            raise ConnectionRefusedError

        monkeypatch.setattr(redis.Connection, "_connect", refuse)
        with pytest.raises(StoreUnavailableError):
            RedisQueue("orders", redis.Redis()).put(1)
        assert len(tried) == CALL_ATTEMPTS
