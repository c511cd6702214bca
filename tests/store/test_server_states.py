"""Servers that refuse calls for a while: a typed error, nothing half done, and the same call works afterwards."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest
import redis

from redis_queue import RedisQueue, RedisQueueError, StoreRefusedError, StoreUnavailableError
from redis_queue.store import links
from redis_queue.store.redis_errors import is_refused, lacks_command
from redis_queue.store.scripts import Scripts
from tests.support.binaries import KINDS
from tests.support.cluster import SLOTS
from tests.support.ports import HOST
from tests.support.servers import RedisServer
from tests.support.store.server_states import READS, STATES, State, loading
from tests.support.store.stage import VERBS, Copy, Snapshot, Stage, differences, load_scripts, snapshot
from tests.support.store.stage import state as state_of
from tests.support.wait import wait_until

pytestmark = pytest.mark.usefixtures("without_pauses")


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """A server that the tests bring into each state."""
    with RedisServer("--rdbchecksum", "no") as server:
        yield server


class Refusal(NamedTuple):
    """The class and the message of an error."""

    kind: type[RedisQueueError]
    text: str


def answer(stage: Stage, verb: str) -> Any:
    """Return the answer of *verb*, or its refusal."""
    try:
        return VERBS[verb].call(stage.on(stage.queue.client, later=VERBS[verb].later))
    except RedisQueueError as error:
        return Refusal(type(error), str(error))


def all_answers(stage: Stage, copy: Copy, verbs: list[str]) -> dict[str, tuple[Any, Snapshot]]:
    """Return the answer and the effect of each verb, each from the same initial state."""
    client: Any = stage.queue.client
    found = {}
    for verb in verbs:
        copy.restore()
        found[verb] = answer(stage, verb), state_of(client)
    copy.restore()
    return found


@pytest.mark.parametrize("name", STATES)
def test_every_call_raises_changes_nothing_and_works_afterwards(server: RedisServer, name: str) -> None:
    state = STATES[name]
    with server.client() as client:
        client.flushall()
        load_scripts(client)
        check(client, state.enter(server), state, list(VERBS))


def check(client: redis.Redis, entering: AbstractContextManager[None], state: State, verbs: list[str]) -> None:
    """Call *verbs* in *state* and afterwards; compare the answers."""
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
def one_node_cluster() -> Iterator[RedisServer]:
    with RedisServer("--cluster-enabled", "yes", tcp=True) as one_node_cluster, one_node_cluster.client() as client:
        client.execute_command("CLUSTER ADDSLOTS", *range(SLOTS))
        wait_until(lambda: cluster_state(client) == "ok", description="the cluster to be ok")
        yield one_node_cluster


class TestClusterDown:
    """A cluster without an owner for one slot."""

    @contextlib.contextmanager
    def down(self, client: redis.Redis) -> Iterator[None]:
        """Remove an unused slot from the cluster for a while."""
        client.execute_command("CLUSTER DELSLOTS", 0)
        wait_until(lambda: cluster_state(client) == "fail", description="the cluster to be down")
        try:
            yield
        finally:
            client.execute_command("CLUSTER ADDSLOTS", 0)
            wait_until(lambda: cluster_state(client) == "ok", description="the cluster to be ok")

    def test_every_call_raises_and_works_afterwards(self, one_node_cluster: RedisServer) -> None:
        # Moves into lists of other slots are not possible in a cluster.
        verbs = [verb for verb in VERBS if verb not in ("move_due", "deliver")]
        with one_node_cluster.client() as client:
            client.flushall()
            load_scripts(client)
            check(client, self.down(client), State(loading, StoreUnavailableError, "not ready"), verbs)

    def test_a_blocking_get_waits_until_the_cluster_is_ok(
        self, one_node_cluster: RedisServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = RedisQueue("orders", f"redis+cluster://{HOST}:{one_node_cluster.port}")
        with one_node_cluster.client() as client, ThreadPoolExecutor() as pool:
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
    """Return the state of the cluster according to its node."""
    return str(client.execute_command("CLUSTER INFO")["cluster_state"])


def test_a_burst_of_calls_keeps_few_connections(
    redis_server: RedisServer, client: redis.Redis, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "MAX_IDLE", 3)

    def waiting() -> int:
        return int(client.info("clients")["blocked_clients"])

    before = client.info("clients")["connected_clients"]
    with redis_server.client() as other:
        link = links.DirectLink(other)
        calls = [pool.submit(link.send, "BLPOP", "elements", 20) for _ in range(12)]
        wait_until(lambda: waiting() == 12, description="a connection for each call")
        client.rpush("elements", *range(12))
        assert len([call.result() for call in calls]) == 12
        wait_until(lambda: client.info("clients")["connected_clients"] == before + 3, description="the others to close")
        link.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "command",
    [("HSTRLEN", "key", "secret"), ("CLIENT", "NONE"), ("EVAL", "return redis.call('HSTRLEN', 'key', '')", 0)],
)
def test_a_missing_command_is_no_outage_and_shows_no_arguments(kind: str, command: tuple[Any, ...]) -> None:
    with RedisServer("--rename-command", "HSTRLEN", "", kind=kind) as server, server.client() as client:
        with pytest.raises(redis.ResponseError) as raised:
            client.execute_command(*command)
        assert lacks_command(raised.value)
        assert is_refused(raised.value)
        with pytest.raises(StoreRefusedError, match="this Redis lacks a command") as ours:
            Scripts(client).command(*command)
        assert "secret" not in str(ours.value)
