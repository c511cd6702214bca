"""Redis refuses calls for lack of a permission, memory, replicas or disk: a clear error, and nothing is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from redis_queue import (
    DelayQueue,
    RedisQueue,
    StoreError,
    StoreRefusedError,
    connect,
)
from tests.support.servers import RedisServer, client_options
from tests.support.store.stage import LATER, VERBS, Copy, Stage, Verb, load_scripts, lost, raised, snapshot, verbs


class TestMissingPermission:
    @pytest.fixture
    def limit(self, redis_server: RedisServer, client: redis.Redis) -> Iterator[Callable[[str], redis.Redis]]:
        """Create a user that may run all commands but one, and return its client."""
        clients: list[redis.Redis] = []

        def make(command: str) -> redis.Redis:
            client.execute_command(
                "ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "&*", "+@all", f"-{command}"
            )
            limited = redis.Redis.from_url(redis_server.url, username="limited", password="pw", **client_options())
            clients.append(limited)
            return limited

        yield make
        for limited in clients:
            limited.close()
        client.execute_command("ACL", "DELUSER", "limited")

    def commands_of(self, client: redis.Redis, act: Callable[[], Any]) -> list[str]:
        """Return the commands that Redis executes for *act*."""
        client.config_resetstat()
        act()
        stats = client.info("commandstats")
        found = {name.removeprefix("cmdstat_").partition("|")[0] for name in stats}
        return sorted(found - {"config", "info", "client", "hello", "auth", "select"})

    def outcomes(
        self, client: redis.Redis, limit: Callable[[str], redis.Redis], verb: Verb
    ) -> Iterator[tuple[str, StoreError | None]]:
        """Call *verb* without permission for each of its commands in turn; yield the command and the error, if any."""
        load_scripts(client)
        stage = Stage(client)
        copy = Copy(client)
        later = stage.on(client, later=verb.later)
        commands = self.commands_of(client, lambda: verb.call(later))
        assert "evalsha" in commands
        assert len(commands) > 1
        for command in commands:
            copy.restore()
            yield command, raised(StoreError, lambda: verb.call(stage.on(limit(command), later=verb.later)))  # noqa: B023

    @verbs
    def test_each_missing_command_is_refused_clearly(
        self, client: redis.Redis, limit: Callable[[str], redis.Redis], verb: str
    ) -> None:
        for command, error in self.outcomes(client, limit, VERBS[verb]):
            if (verb, command) in (("move_due", "lpush"), ("deliver", "lpush")):
                # An entry whose push is refused stays in place, and the others move on.
                assert error is None
            else:
                assert type(error) is StoreRefusedError, (command, error)
                assert "lacks a permission" in str(error)
                assert isinstance(error.__cause__, redis.ResponseError)

    @verbs
    def test_no_missing_command_loses_anything(
        self, client: redis.Redis, limit: Callable[[str], redis.Redis], verb: str
    ) -> None:
        for command, _ in self.outcomes(client, limit, VERBS[verb]):
            assert lost(client, VERBS[verb]) == [], command

    def test_a_partly_refused_put_can_be_repeated(
        self, client: redis.Redis, limit: Callable[[str], redis.Redis]
    ) -> None:
        for number, command in enumerate(("lpush", "rpush", "zadd", "hset", "hincrby", "set")):
            for delay in (0, 0.001):
                key = f"{number}:{delay}"
                with contextlib.suppress(StoreError):
                    RedisQueue("orders", limit(command)).put(key, dedupe_key=key, delay=delay)
                RedisQueue("orders", client).put(key, dedupe_key=key, delay=delay)
        found = set()
        queue = RedisQueue("orders", client)
        while message := queue.get(timeout=0.1):
            found.add(message.id)
        assert found == {f"{number}:{delay}" for number in range(6) for delay in (0, 0.001)}

    def test_a_partly_refused_push_can_be_repeated(
        self, client: redis.Redis, limit: Callable[[str], redis.Redis]
    ) -> None:
        for command in ("zadd", "zrem", "hset", "hincrby", "set"):
            with contextlib.suppress(StoreError):
                DelayQueue("orders", limit(command)).push(command, id=command)
            DelayQueue("orders", client).push(command, id=command, on_conflict="keep")
        found = DelayQueue("orders", client).claim(10)
        assert {entry.id for entry in found} == {"zadd", "zrem", "hset", "hincrby", "set"}

    def test_a_user_without_permission_for_the_keys_is_refused(self, redis_server: RedisServer, stage: Stage) -> None:
        client = stage.queue.client
        client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~other:*", "&*", "+@all")
        with redis.Redis.from_url(redis_server.url, username="limited", password="pw", **client_options()) as limited:
            for verb in VERBS.values():
                with pytest.raises(StoreRefusedError, match="lacks a permission"):
                    verb.call(stage.on(limited, later=verb.later))
        client.execute_command("ACL", "DELUSER", "limited")

    def test_a_user_without_permission_for_info_is_refused(
        self, redis_server: RedisServer, client: redis.Redis
    ) -> None:
        client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">pw", "~*", "&*", "+@all", "-info")
        with pytest.raises(StoreRefusedError, match="lacks a permission"):
            connect(redis_server.url, username="limited", password="pw")
        client.execute_command("ACL", "DELUSER", "limited")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server with a changeable memory limit."""
    with RedisServer("--maxmemory-policy", "noeviction") as server:
        yield server


class TestOutOfMemory:
    @pytest.fixture
    def full(self, server: RedisServer) -> Iterator[Stage]:
        """Both queues with entries, on a server without free memory."""
        with server.client() as client:
            client.config_set("maxmemory", "0")
            client.flushall()
            load_scripts(client)
            stage = Stage(client)
            client.config_set("maxmemory", "1")
            yield stage
            client.config_set("maxmemory", "0")

    @pytest.mark.parametrize("verb", ["put", "put delayed", "push", "push over", "move_due", "deliver", "redrive"])
    def test_calls_that_need_memory_are_refused_and_change_nothing(self, full: Stage, verb: str) -> None:
        client: Any = full.queue.client
        before = snapshot(client)
        with pytest.raises(StoreRefusedError, match="out of memory"):
            VERBS[verb].call(full)
        assert snapshot(client) == before

    def test_a_new_queue_is_refused_too(self, full: Stage) -> None:
        client: Any = full.queue.client
        for call in (lambda: RedisQueue("new", client).put(1), lambda: DelayQueue("new", client).push(1)):
            with pytest.raises(StoreRefusedError, match="out of memory"):
                call()
        assert not client.keys("*new*")

    def test_the_queue_can_be_emptied(self, full: Stage) -> None:
        queue = full.on(full.queue.client, later=1000).queue
        assert queue.nack(full.held, reason="busy")
        held = queue.get(block=False)
        assert held is not None
        assert held.body == "held"
        assert queue.extend(held)
        assert queue.nack(held, delay=0.001, reason="again")
        found = queue.get_many(10)
        assert [message.body for message in found] == ["ready", "ready 2"]
        assert queue.nack(found[1], dead=True)
        assert queue.ack(found[0])
        assert [letter.id for letter in queue.dead_letters()] == ["dead", "ready2"]
        assert queue.purge("dead") == 2

    def test_expired_leases_are_put_back(self, full: Stage) -> None:
        later = full.on(full.queue.client, later=LATER)
        assert later.queue.put_back().returned == 1
        assert later.timed.put_back().returned == 1
        assert later.queue.get_many(1)[0].body == "held"
        assert [entry.payload for entry in later.timed.claim(5)] == ["due", "waiting", "held"]

    def test_delayed_messages_can_be_claimed(self, full: Stage) -> None:
        later = full.on(full.queue.client, later=LATER)
        found = [message.body for _ in range(3) for message in later.queue.get_many(1)]
        assert sorted(found) == ["delayed", "ready", "ready 2"]

    def test_the_delay_queue_can_be_emptied(self, full: Stage) -> None:
        timed = full.timed
        assert timed.release(full.held_entry, reason="busy")
        found = timed.claim(5)
        assert sorted(entry.payload for entry in found) == ["due", "held"]
        assert timed.ack(found[0])
        assert timed.release(found[1], dead=True)
        assert [outcome.taken_out for outcome in timed.cancel_many(["waiting", "dead"])] == [True, True]
        assert timed.reschedule("waiting", delay=1) is False
        # Each revoke does this before it cancels.
        timed.calls.note_revoked(["waiting"])

    def test_unreadable_messages_are_quarantined(self, full: Stage) -> None:
        client: Any = full.queue.client
        client.config_set("maxmemory", "0")
        client.hset(full.queue._records.keys.records, "ready", b"garbage")
        client.hset(full.queue._records.keys.records, "ready2", b"v1 5 json 0 3\n{x}")
        client.hset(full.timed._shards[0].keys.records, "due", b"garbage")
        client.config_set("maxmemory", "1")
        assert full.queue.get(block=False) is None
        assert {item.id for item in full.queue.quarantined()} == {"ready", "ready2"}
        assert full.timed.claim() == []
        assert [item.id for item in full.timed.quarantined()] == ["due"]

    def test_puts_work_again_with_free_memory(self, full: Stage) -> None:
        client: Any = full.queue.client
        with pytest.raises(StoreRefusedError):
            full.queue.put("new")
        client.config_set("maxmemory", "0")
        full.queue.put("new")
        assert [message.body for message in full.queue.get_many(5)] == ["ready", "ready 2", "new"]
