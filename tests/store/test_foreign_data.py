"""Keys of another type or of a newer version raise an error that names them, and nothing is lost or half done."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue, SchemaError, WrongTypeError
from redis_queue.store.keys import Keys, PrefixKeys
from redis_queue.store.registry import Registry
from redis_queue.store.script_files import load
from redis_queue.store.scripts import Scripts
from tests.support.store.stage import LATER, VERBS, Copy, Stage, Verb, differences, raised, snapshot, verbs

TYPES = {
    **dict.fromkeys(("meta", "records", "leases", "errors", "lateness", "minutes", "dispatchers"), "hash"),
    **dict.fromkeys(("waiting", "in_flight", "dead", "revoked", "discarded"), "zset"),
    **dict.fromkeys(("ready", "quarantine", "wake"), "list"),
    **dict.fromkeys(("leader", "slot"), "string"),
}


class TestWrongType:
    def test_of_a_command_asks_for_no_more_than_its_key(self, client: redis.Redis) -> None:
        client.set(b"text", "x")
        client.config_resetstat()
        with pytest.raises(WrongTypeError, match="text is a string"):
            Scripts(client).command("HMGET", b"text", *map(str, range(500)))
        assert client.info("commandstats")["cmdstat_type"]["calls"] == 1

    def replace(self, client: redis.Redis, key: bytes, kind: str = "string") -> str:
        """Replace *key* by one of another type, *kind* if possible; return that type."""
        write: dict[str, Callable[[], Any]] = {
            "string": lambda: client.set(key, "intruder"),
            "list": lambda: client.rpush(key, "intruder"),
            "hash": lambda: client.hset(key, "intruder", "x"),
            "zset": lambda: client.zadd(key, {"intruder": 1}),
            "stream": lambda: client.xadd(key, {"intruder": "x"}),
        }
        own = TYPES[key.decode().partition("}:")[2].partition(":")[0]]
        kind = next(other for other in (kind, "string", "list") if other != own)
        client.delete(key)
        write[kind]()
        return kind

    def keys_of(self, stage: Stage, verb: Verb) -> dict[str, bytes]:
        shard = stage.queue._records if verb.which == "queue" else stage.timed._shards[0]
        place = {"purge": shard.keys.ready, "purge dead": shard.keys.dead}
        where = next((place[name] for name, known in VERBS.items() if known is verb and name in place), b"")
        special = {"slot": shard.keys.slot(shard._numbered._caller.name), "place": where}
        return {name: special.get(name) or getattr(shard.keys, name) for name in load(verb.script).keys}

    @pytest.mark.parametrize("kind", ["string", "list", "hash", "zset", "stream"])
    @verbs
    def test_a_key_of_another_type_is_named_and_nothing_changes(
        self, client: redis.Redis, verb: str, kind: str
    ) -> None:
        act = VERBS[verb]
        stage = Stage(client)
        copy = Copy(client)
        later = stage.on(client, later=act.later)
        half_done: dict[str, list[str]] = {}
        refused = []
        for name, key in self.keys_of(later, act).items():
            copy.restore()
            intruder = self.replace(client, key, kind)
            before = snapshot(client)
            error = raised(WrongTypeError, lambda: act.call(later))
            if error is not None:
                refused.append(name)
                assert f"{key.decode()} is a {intruder}" in str(error)
                if changed := differences(before, snapshot(client)):
                    half_done[name] = changed
        assert half_done == {}
        assert refused

    def test_a_get_that_leaves_messages_changes_nothing_on_error(self, client: redis.Redis) -> None:
        stage = Stage(client)
        keys = stage.queue._records.keys
        self.replace(client, keys.wake)
        before = snapshot(client)
        with contextlib.suppress(WrongTypeError):
            assert stage.queue.get(block=False) is not None
            return
        assert snapshot(client) == before

    def test_an_unreadable_record_stays_until_it_can_be_quarantined(self, client: redis.Redis) -> None:
        stage = Stage(client)
        keys = stage.queue._records.keys
        client.hset(keys.records, "ready", b"v1 5 json 0 3\n{x}")
        client.hset(keys.records, "ready2", b"garbage")
        self.replace(client, keys.quarantine)
        with pytest.raises(WrongTypeError, match="quarantine is a string"):
            stage.queue.get_many(10)
        client.delete(keys.quarantine)
        found = stage.on(client, later=LATER).queue
        found.put_back()
        found.get_many(10)
        assert {item.id for item in found.quarantined()} == {"ready", "ready2"}

    def test_a_call_with_several_ids_changes_nothing_on_error(self, client: redis.Redis) -> None:
        stage = Stage(client)
        self.replace(client, stage.timed._shards[0].keys.dead)
        before = snapshot(client)
        with pytest.raises(WrongTypeError, match="dead is a string"):
            stage.timed.cancel_many(["waiting", "unknown"])
        assert snapshot(client) == before

    @pytest.mark.parametrize(
        ("part", "call"),
        [
            ("meta", lambda queue: queue.pause()),
            ("meta", lambda queue: queue.resume()),
            ("wake", lambda queue: queue.resume()),
            ("quarantine", lambda queue: queue.purge("quarantine")),
        ],
        ids=["pause", "resume, meta", "resume, wake", "purge"],
    )
    def test_plain_commands_name_the_key_too(
        self, client: redis.Redis, part: str, call: Callable[[RedisQueue], Any]
    ) -> None:
        stage = Stage(client)
        key: bytes = getattr(stage.queue._records.keys, part)
        self.replace(client, key)
        with pytest.raises(WrongTypeError, match="is a string") as caught:
            call(stage.queue)
        assert key.decode() in str(caught.value)

    def test_the_registry_names_its_key_too(self, client: redis.Redis) -> None:
        client.set(PrefixKeys("redis_queue").registry, "intruder")
        for call in (
            lambda: RedisQueue("orders", client).put(1),
            lambda: DelayQueue("orders", client).push(1),
            lambda: Registry(Scripts(client), "redis_queue").all(),
        ):
            with pytest.raises(WrongTypeError, match="redis_queue:registry is a string"):
                call()
        assert client.keys() == [PrefixKeys("redis_queue").registry]

    def test_an_unrelated_key_under_the_prefix_is_left_alone(self, client: redis.Redis, stage: Stage) -> None:
        client.set("{redis_queue:queue:orders}:mine", "precious")
        client.set("redis_queue", "precious")
        stage.queue.purge("ready", "delayed", "dead", "quarantine")
        assert client.mget("{redis_queue:queue:orders}:mine", "redis_queue") == [b"precious", b"precious"]


class TestNewerSchema:
    @pytest.mark.parametrize(
        "verb", ["put", "put delayed", "get", "get_many", "push", "push over", "claim", "move_due"]
    )
    def test_data_of_a_newer_version_is_left_alone(self, client: redis.Redis, stage: Stage, verb: str) -> None:
        for kind, shard in (("queue", None), ("delay", 0)):
            keys = Keys("redis_queue", kind, "orders", shard)  # type: ignore[arg-type]
            client.hset(keys.meta, "schema", 2)
            for id_ in client.hkeys(keys.records):
                client.hset(keys.records, id_, b"v2 something else")
        before = snapshot(client)
        with pytest.raises(SchemaError, match="newer redis_queue"):
            VERBS[verb].call(stage)
        assert snapshot(client) == before

    def test_the_schema_is_written_with_the_first_message(self, client: redis.Redis) -> None:
        RedisQueue("orders", client).put(1)
        DelayQueue("orders", client).push(1)
        assert client.hget(Keys("redis_queue", "queue", "orders").meta, "schema") == b"1"
        assert client.hget(Keys("redis_queue", "delay", "orders", 0).meta, "schema") == b"1"
