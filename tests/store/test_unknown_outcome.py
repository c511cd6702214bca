"""An error says that the outcome is unknown only if a write may have been executed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import redis

from redis_queue import DelayQueue, RedisQueue, StoreUnavailableError, connect
from redis_queue.operate.inspector import Inspector
from redis_queue.store.script_files import load
from redis_queue.store.scripts import CALL_ATTEMPTS
from tests.support.ports import HOST, free_port
from tests.support.proxy import FaultProxy

pytestmark = pytest.mark.usefixtures("without_pauses")

Call = Callable[[redis.Redis], object]

UNKNOWN = "whether the call took effect is unknown"

READS: dict[str, Call] = {
    "script": lambda client: RedisQueue("orders", client).stats(),
    "large page": lambda client: DelayQueue("later", client).list(),
    "command": lambda client: Inspector(client).expired(RedisQueue("orders", client)),
    "registry": lambda client: Inspector(client).catalog.known(),
}
WRITES: dict[str, Call] = {
    "script": lambda client: RedisQueue("orders", client).put("x"),
    "several": lambda client: DelayQueue("later", client).cancel_many(["a", "b"]),
    "command": lambda client: RedisQueue("orders", client).pause(),
}


def error_of(call: Call, client: redis.Redis) -> str:
    with pytest.raises(StoreUnavailableError) as caught:
        call(client)
    return str(caught.value)


@pytest.mark.parametrize("call", [*READS.values(), *WRITES.values()])
@pytest.mark.parametrize("url", ["redis://{host}:{port}/0", "unix:///nowhere/{port}.sock"])
def test_a_refused_connection_is_not_unknown(call: Call, url: str) -> None:
    error = error_of(call, connect(url.format(host=HOST, port=free_port()), check=False))

    assert "cannot be reached" in error
    assert UNKNOWN not in error


@pytest.mark.parametrize("name", READS)
def test_a_lost_reply_of_a_read_is_not_unknown(name: str, proxy: FaultProxy, through: redis.Redis) -> None:
    proxy.mode = "drop_replies"
    through.connection_pool.connection_kwargs["socket_timeout"] = 0.05

    assert UNKNOWN not in error_of(READS[name], through)


@pytest.mark.parametrize("name", WRITES)
def test_a_write_without_a_reply_is_unknown(name: str, proxy: FaultProxy, through: redis.Redis) -> None:
    WRITES[name](through)
    command = b"HSET" if name == "command" else b"EVALSHA"
    proxy.drop_next_reply(CALL_ATTEMPTS, matching=command)

    assert UNKNOWN in error_of(WRITES[name], through)


def test_a_write_whose_retry_fails_is_unknown(proxy: FaultProxy, through: redis.Redis) -> None:
    queue = RedisQueue("orders", through)
    queue.put("first")
    proxy.drop_next_reply(matching=load("queue/put").sha.encode())
    # New connections are refused; the open one loses its reply.
    proxy.mode = "refuse"

    error = error_of(lambda _: queue.put("second"), through)

    assert "connecting to" in error
    assert UNKNOWN in error


def test_a_call_that_the_server_refuses_is_not_unknown(client: redis.Redis) -> None:
    client.config_set("min-replicas-to-write", 3)
    try:
        assert UNKNOWN not in error_of(lambda _: DelayQueue("later", client).push("x", delay=timedelta(1)), client)
    finally:
        client.config_set("min-replicas-to-write", 0)
