"""Servers that take no calls for a while: a typed error, nothing half done, and afterwards the same call works."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest
import redis

from redis_queue import RedisQueue, RedisQueueError, StoreUnavailableError
from tests.support.cluster import SLOTS
from tests.support.loading import loading
from tests.support.ports import HOST
from tests.support.servers import RedisServer
from tests.support.store.server_states import READS, STATES, State
from tests.support.store.stage import VERBS, Copy, Snapshot, Stage, differences, load_scripts, snapshot
from tests.support.store.stage import state as state_of
from tests.support.wait import wait_until

pytestmark = pytest.mark.usefixtures("without_pauses")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server that is brought into all those states."""
    with RedisServer("--rdbchecksum", "no") as server:
        yield server


class Refusal(NamedTuple):
    """What a call raised."""

    kind: type[RedisQueueError]
    text: str


def answer(stage: Stage, verb: str) -> Any:
    """Return what *verb* answers, or its refusal."""
    try:
        return VERBS[verb].call(stage.on(stage.queue.client, later=VERBS[verb].later))
    except RedisQueueError as error:
        return Refusal(type(error), str(error))


def all_answers(stage: Stage, copy: Copy, verbs: list[str]) -> dict[str, tuple[Any, Snapshot]]:
    """Return what each verb answers and leaves behind, each from the same beginning."""
    client: Any = stage.queue.client
    found = {}
    for verb in verbs:
        copy.restore()
        found[verb] = answer(stage, verb), state_of(client)
    copy.restore()
    return found


@pytest.mark.parametrize("name", STATES)
def test_every_call_is_told_why_changes_nothing_and_works_afterwards(server: RedisServer, name: str) -> None:
    state = STATES[name]
    with server.client() as client:
        client.flushall()
        load_scripts(client)
        check(client, state.enter(server), state, list(VERBS))


def check(client: redis.Redis, entering: AbstractContextManager[None], state: State, verbs: list[str]) -> None:
    """Call *verbs* in *state* and afterwards."""
    stage = Stage(client)
    before = snapshot(client)
    usual = all_answers(stage, Copy(client), verbs)
    with entering:
        found = {verb: answer(stage, verb) for verb in verbs}
    assert differences(before, snapshot(client)) == []
    answered = {verb for verb, result in found.items() if not isinstance(result, Refusal)}
    assert answered == (READS if state.reads else set())
    assert {verb: found[verb] for verb in answered} == {verb: usual[verb][0] for verb in answered}
    for verb in found.keys() - answered:
        assert found[verb].kind is state.error, (verb, found[verb])
        assert re.search(state.words, found[verb].text), (verb, found[verb])
    assert all_answers(stage, Copy(client), verbs) == usual


@pytest.fixture(scope="module")
def lone() -> Iterator[RedisServer]:
    """A cluster of one."""
    with RedisServer("--cluster-enabled", "yes", tcp=True) as lone, lone.client() as client:
        client.execute_command("CLUSTER ADDSLOTS", *range(SLOTS))
        wait_until(lambda: cluster_state(client) == "ok", description="the cluster to be well")
        yield lone


class TestClusterDown:
    """A cluster that misses a slot."""

    @contextlib.contextmanager
    def down(self, client: redis.Redis) -> Iterator[None]:
        """Take a slot away for a while, one that nobody uses."""
        client.execute_command("CLUSTER DELSLOTS", 0)
        wait_until(lambda: cluster_state(client) == "fail", description="the cluster to be down")
        try:
            yield
        finally:
            client.execute_command("CLUSTER ADDSLOTS", 0)
            wait_until(lambda: cluster_state(client) == "ok", description="the cluster to be well")

    def test_every_call_is_told_so_and_works_afterwards(self, lone: RedisServer) -> None:
        # What moves into lists of other slots is not for a cluster.
        verbs = [verb for verb in VERBS if verb not in ("move_due", "deliver")]
        with lone.client() as client:
            client.flushall()
            load_scripts(client)
            check(client, self.down(client), State(loading, StoreUnavailableError, "not ready"), verbs)

    def test_a_get_waits_until_it_is_well_again(self, lone: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
        queue = RedisQueue("orders", f"redis+cluster://{HOST}:{lone.port}")
        with lone.client() as client, ThreadPoolExecutor() as pool:
            client.flushall()
            queue.put("kept")
            with self.down(client):
                future = pool.submit(queue.get, timeout=20)
                wait_until(lambda: "Redis is away" in caplog.text, description="an attempt")
                with pytest.raises(StoreUnavailableError):
                    queue.put("refused")
            message = future.result(10)
        assert message is not None
        assert message.body == "kept"


def cluster_state(client: redis.Redis) -> str:
    """Return what *client*'s server thinks of its cluster."""
    return str(client.execute_command("CLUSTER INFO")["cluster_state"])
