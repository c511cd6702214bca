"""Admission under load, faults and changes: nothing is stuck, mixed up or lost."""

import json
from typing import Any

import pytest
import redis

from redis_queue.celery.admission.admission import AdmissionKeys, places_without_message
from redis_queue.celery.kombu.keys import InFlightKeys
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.store.keys import FlowKeys
from redis_queue.store.script_files import load
from tests.support.celery.fetching import Taker, connected, wait_until_idle
from tests.support.celery.flows import KEYS, QUEUE, counts, flow_app, taken, taking_flows
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

NEVER = float("inf")


def drain(taker: Taker, count: int) -> list[Any]:
    """Settle what *taker* takes until there were *count* messages; return their arguments."""
    got: list[Any] = []
    while len(got) < count:
        now = taken(taker)
        assert now, f"only {len(got)} of {count} messages"
        got += now
        taker.settle()
    return got


def test_a_new_limit_reaches_all_keys_that_wait(server: RedisServer, client: redis.Redis) -> None:
    with taking_flows(server, processes=100) as (app, taker):
        flows = StoredTasks.of(app).flow
        flows.set("sync", limit=0)
        for number in range(700):
            app.tasks["sync"].delay(f"k{number}")
        assert taken(taker) == []
        flows.set("sync", limit=1)
        drain(taker, 700)
        assert counts(client) == {}


def test_each_of_many_tasks_gets_its_turn(server: RedisServer) -> None:
    with taking_flows(server, {f"queue:{QUEUE}": {"limit": 1}}) as (app, taker):
        for number in range(120):
            name = f"task{number}"
            app.tasks["work"].app.conf.redis_queue_flow[name] = {"limit": 5}
        app.__dict__.pop("redis_queue_flow_policy", None)
        for number in range(120):
            for _ in range(3):
                app.send_task(f"task{number}", (number,))
        seen = {row[0] for row in drain(taker, 300)}
        assert len(seen) > 110


def test_a_script_that_redis_does_not_know_mixes_up_no_tags(server: RedisServer, client: redis.Redis) -> None:
    with taking_flows(server, {f"queue:{QUEUE}": {"limit": 50}}, processes=3) as (app, taker):
        taker.leases.admission.in_use = True
        wait_until_idle(taker)
        client.script_flush()
        client.script_load(load("broker/fetch").source)
        for number in range(9):
            app.tasks["work"].delay("k", number)
        drain(taker, 9)
        assert counts(client) == {}
        assert not client.exists("unacked", "unacked_index")


def test_a_worker_that_took_a_message_lets_another_one_listen(server: RedisServer) -> None:
    with flow_app(server) as app, connected(server) as one, connected(server) as two:
        takers = [Taker(one, [QUEUE], 100), Taker(two, [QUEUE], 100)]
        for taker in takers:
            wait_until_idle(taker).look_at = NEVER
        for number in range(2):
            app.tasks["sync"].delay(f"k{number}")

            def arrived(expected: int = number + 1) -> bool:
                for taker in takers:
                    taker.turn()
                    fetch = taker.channel._fetch
                    if fetch is not None:
                        # Only a wake-up helps.
                        fetch.look_at = NEVER
                return sum(len(taker.messages) for taker in takers) >= expected

            wait_until(arrived, timeout=10, description="the message to be taken")
        assert [len(taker.messages) for taker in takers] == [1, 1]


def test_places_taken_by_no_message_are_found(server: RedisServer, client: redis.Redis) -> None:
    with taking_flows(server, {f"queue:{QUEUE}": {"limit": 1}}) as (app, taker):
        for number in range(2):
            app.tasks["work"].delay("k", number)
        assert taken(taker) == [["k", 0]]
        # A stock worker has settled it.
        client.delete("unacked", "unacked_index")
        taker.messages.clear()
        taker.leases.held.clear()
        taker.channel.qos._swept_at = 0.0
        taker.channel.qos.restore_visible()
        assert taken(taker) == [["k", 1]]


def test_messages_that_come_back_together_keep_their_order(server: RedisServer, client: redis.Redis) -> None:
    with taking_flows(server, {f"queue:{QUEUE}": {"limit": 20}}, processes=12) as (app, taker):
        for number in range(12):
            app.tasks["work"].delay("k", number)
        assert len(taken(taker)) == 12
        # Their worker died long ago.
        tags: Any = client.zrange("unacked_index", 0, -1)
        for key in ("unacked_index", "redis_queue:lease_ends:unacked_index"):
            client.zadd(key, dict.fromkeys(tags, 1.0))
        taker.messages.clear()
        taker.leases.held.clear()
        taker.leases.processes = 0
        taker.channel.qos._swept_at = 0.0
        taker.channel.qos.restore_visible(num=100)
        assert counts(client) == {"waiting": {"queue:flows": 12}}
        taker.leases.processes = 12
        app.tasks["work"].delay("k", 12)
        assert [number for _, number in drain(taker, 12)][:12] == list(range(12))


def test_a_full_redis_is_drained_and_changed(server: RedisServer, client: redis.Redis) -> None:
    with taking_flows(server, {f"queue:{QUEUE}": {"limit": 2}}, processes=2) as (app, taker):
        flows = StoredTasks.of(app).flow
        for number in range(20):
            app.tasks["work"].delay("k", number)
        assert len(taken(taker)) == 2
        client.config_set("maxmemory", "1")
        flows.pause(f"queue:{QUEUE}")
        flows.resume(f"queue:{QUEUE}")
        flows.set(f"queue:{QUEUE}", limit=1)
        drain(taker, 20)
        assert counts(client) == {}


def test_short_delays_and_tasks_that_poll_stay_out_of_the_gate(server: RedisServer, client: redis.Redis) -> None:
    with flow_app(server, {f"queue:{QUEUE}": {"limit": 1}}, redis_queue_min_delay=10) as app:
        app.tasks["work"].apply_async(("k",), countdown=5)
        # In a worker it would hold a place.
        assert StoredTasks.of(app).count() == 1
        app.send_task("celery.chord_unlock", countdown=5)
        assert counts(client) == {}
        (message,) = client.lrange(QUEUE, 0, -1)
        assert json.loads(message)["headers"]["eta"]


def test_apps_with_other_prefixes_in_the_broker_have_their_own_flows(server: RedisServer, client: redis.Redis) -> None:
    flows = {f"queue:{QUEUE}": {"limit": 1}}
    options = {"global_keyprefix": "b:"}
    with (
        flow_app(server, flows) as plain,
        flow_app(server, flows, broker_transport_options=options) as prefixed,
        connected(server) as connection,
    ):
        plain.tasks["work"].delay("plain")
        prefixed.tasks["work"].delay("prefixed")
        taker = Taker(connection, [QUEUE], 100, processes=10)
        assert taken(taker) == [["plain"]]
        assert StoredTasks.of(prefixed).flow.list()[0].waiting == 1
        assert client.exists(FlowKeys("redis_queue", "b:").backlog) == 1


def test_hostile_keys_stop_no_worker(server: RedisServer, client: redis.Redis) -> None:
    with taking_flows(server, processes=5) as (app, taker):
        root = KEYS.config.decode().removesuffix("config")
        for name in ("x", "0\0", "9\0flows\0\0\0\0\0", "0\0flows\0nothing"):
            client.zadd(f"{root}open:{QUEUE}", {name: 0})
            client.zadd(f"{root}timers:{QUEUE}", {name: 1})
            client.zadd(f"{root}ring:{name}", {"y": 0, "0\0flows\0nothing\0a\0b": 1})
        client.hset(KEYS.config.decode(), mapping={"sync": "x y z", f"queue:{QUEUE}": "- - nan inf -5 1e9 - k"})
        client.hset(KEYS.held.decode(), "flow-x", "nothing")
        app.tasks["sync"].delay("a")
        assert taken(taker) == [["a"]]
        taker.settle()


def test_workers_of_another_broker_keep_their_places(server: RedisServer, client: redis.Redis) -> None:
    with taking_flows(server, {f"queue:{QUEUE}": {"limit": 1}}) as (app, taker):
        client.hset(KEYS.held.decode(), mapping={"flow-there-001": "0\0flows\0\0\0", "flow-gone-001": "0\0flows\0\0\0"})
        client.zadd(f"{KEYS.taken}unacked_index", {"flow-there-001": 1})
        assert app
        assert places_without_message(taker.leases.admission.keys, client) == ["flow-gone-001"]


def test_who_may_not_read_another_index_frees_no_place(server: RedisServer, client: redis.Redis) -> None:
    keys = AdmissionKeys(InFlightKeys.under(KEYS.taken), KEYS)
    client.hset(KEYS.held.decode(), "flow-there-001", "0\0flows\0\0\0")
    client.zadd("unacked_index", {"flow-there-001": 1})
    client.acl_setuser("flows", True, nopass=True, keys=[KEYS.pattern], commands=["+hscan", "+zmscore"])
    with redis.Redis(unix_socket_path=str(server.socket), username="flows", password="any") as user:
        assert places_without_message(keys, user) == []


def test_a_place_that_many_cannot_use_goes_to_one_that_can(server: RedisServer, client: redis.Redis) -> None:
    with taking_flows(server, {f"queue:{QUEUE}": {"limit": 1, "key": "{number}"}}, prefetch=300, processes=300) as (
        app,
        taker,
    ):
        flows = StoredTasks.of(app).flow
        app.tasks["sync"].delay("first", 7)
        assert taken(taker) == [["first", 7]]
        # As many as one look at a place finds, and more, wait for it; the keys of all but the last are busy.
        for key in [*(f"k{number}" for number in range(119)), "z"]:
            app.tasks["sync"].delay(key, 7)
        assert len(taken(taker)) == 1
        for number in range(119):
            app.tasks["sync"].delay(f"k{number}", 1000 + number)
        assert len(taken(taker)) == 120
        first = next(message for message in taker.messages if json.loads(message.body)[0] == ["first", 7])
        taker.messages.remove(first)
        first.ack()
        assert ["z", 7] in taken(taker)
        assert flows.find(f"queue:{QUEUE}").running == 120


@pytest.mark.parametrize(
    "spoil",
    [
        lambda client: client.hset(client.keys("*weights*")[0], "a", "abc"),
        lambda client: client.hset(client.keys("*weights*")[0], "a", "nan"),
        lambda client: (
            client.delete(client.keys("*weights*")[0]) and client.set("{redis_queue:flow}:weights:queue:flows", "x")
        ),
        lambda client: client.hset(KEYS.running, "queue:flows", "abc"),
    ],
    ids=["weight", "not a number", "weights", "count"],
)
def test_values_of_other_programs_lose_no_message(server: RedisServer, client: redis.Redis, spoil: Any) -> None:
    with taking_flows(server, {f"queue:{QUEUE}": {"fair": "{key}", "limit": 50, "weights": {"a": 3}}}) as (app, taker):
        for number in range(3):
            app.tasks["work"].delay("a", number)
        spoil(client)
        drain(taker, 3)
        assert not client.exists("unacked")


@pytest.mark.parametrize("key", ["oldest", "backlog", "rates", "running", "owners", "owner_ends", "replaced", "owned"])
def test_keys_of_other_types_lose_no_message(server: RedisServer, client: redis.Redis, key: str) -> None:
    with taking_flows(server, {f"queue:{QUEUE}": {"limit": 50}}) as (app, taker):
        app.tasks["work"].delay("a", 1)
        before = client.dump(getattr(KEYS, key))
        client.delete(getattr(KEYS, key))
        client.set(getattr(KEYS, key), "of another program")
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            taken(taker)
        client.delete(getattr(KEYS, key))
        if before:
            client.restore(getattr(KEYS, key), 0, before)
        assert drain(taker, 1) == [["a", 1]]
