"""Redis refuses calls for lack of a permission: a clear error, and nothing is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue, StoreError, StoreRefusedError, connect
from tests.support.servers import RedisServer
from tests.support.store.stage import VERBS, Copy, Stage, Verb, load_scripts, lost, raised, verbs

ALL_BUT = "~* &* +@all -{}"
"""The rules of a user with all permissions but that for one command."""


class TestMissingPermission:
    def commands_of(self, client: redis.Redis, act: Callable[[], Any]) -> list[str]:
        """Return the commands that Redis executes for *act*."""
        client.config_resetstat()
        act()
        stats = client.info("commandstats")
        found = {name.removeprefix("cmdstat_").partition("|")[0] for name in stats}
        return sorted(found - {"config", "info", "client", "hello", "auth", "select"})

    def outcomes(
        self, client: redis.Redis, limited: Callable[[str], redis.Redis], verb: Verb
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
            user = stage.on(limited(ALL_BUT.format(command)), later=verb.later)
            yield command, raised(StoreError, lambda: verb.call(user))  # noqa: B023

    @verbs
    def test_each_missing_command_is_refused_clearly(
        self, client: redis.Redis, limited: Callable[[str], redis.Redis], verb: str
    ) -> None:
        for command, error in self.outcomes(client, limited, VERBS[verb]):
            if (verb, command) in (("move_due", "lpush"), ("deliver", "lpush")):
                # An entry whose push is refused stays in place, and the others move on.
                assert error is None
            elif verb != "ack_then_get" or error is not None:
                # Else the acks were made alone, and the next claim meets the error.
                assert type(error) is StoreRefusedError, (command, error)
                assert "lacks a permission" in str(error)
                assert isinstance(error.__cause__, redis.ResponseError)

    @verbs
    def test_no_missing_command_loses_anything(
        self, client: redis.Redis, limited: Callable[[str], redis.Redis], verb: str
    ) -> None:
        for command, _ in self.outcomes(client, limited, VERBS[verb]):
            assert lost(client, VERBS[verb]) == [], command

    def test_a_partly_refused_put_can_be_repeated(
        self, client: redis.Redis, limited: Callable[[str], redis.Redis]
    ) -> None:
        for number, command in enumerate(("lpush", "rpush", "zadd", "hset", "hincrby", "set")):
            for delay in (0, 0.001):
                key = f"{number}:{delay}"
                with contextlib.suppress(StoreError):
                    RedisQueue("orders", limited(ALL_BUT.format(command))).put(key, dedupe_key=key, delay=delay)
                RedisQueue("orders", client).put(key, dedupe_key=key, delay=delay)
        found = set()
        queue = RedisQueue("orders", client)
        while message := queue.get(timeout=0.1):
            found.add(message.id)
        assert found == {f"{number}:{delay}" for number in range(6) for delay in (0, 0.001)}

    def test_a_partly_refused_push_can_be_repeated(
        self, client: redis.Redis, limited: Callable[[str], redis.Redis]
    ) -> None:
        for command in ("zadd", "zrem", "hset", "hincrby", "set"):
            with contextlib.suppress(StoreError):
                DelayQueue("orders", limited(ALL_BUT.format(command))).push(command, id=command)
            DelayQueue("orders", client).push(command, id=command, on_conflict="keep")
        found = DelayQueue("orders", client).claim(10)
        assert {entry.id for entry in found} == {"zadd", "zrem", "hset", "hincrby", "set"}

    def test_a_user_without_permission_for_the_keys_is_refused(
        self, stage: Stage, limited: Callable[[str], redis.Redis]
    ) -> None:
        user = limited("~other:* &* +@all")
        for verb in VERBS.values():
            with pytest.raises(StoreRefusedError, match="lacks a permission"):
                verb.call(stage.on(user, later=verb.later))

    @pytest.mark.usefixtures("client")
    def test_a_user_without_permission_for_info_is_refused(
        self, redis_server: RedisServer, limited: Callable[[str], redis.Redis]
    ) -> None:
        limited(ALL_BUT.format("info"))
        with pytest.raises(StoreRefusedError, match="lacks a permission"):
            connect(redis_server.url, username="limited", password="pw")
