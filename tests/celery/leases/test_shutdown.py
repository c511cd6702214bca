"""Warm shutdown: messages whose tasks did not start go back to their queues, and finished tasks are settled at once."""

import json
from contextlib import suppress

import pytest
import redis

from redis_queue.store.script_files import load
from tests.support.celery.fetching import Taker, connected, publish, publish_all
from tests.support.celery.leasing import Leasing
from tests.support.celery.leasing_names import WAIT
from tests.support.marks import thorough
from tests.support.servers import RedisServer
from tests.support.wait import wait_until


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("pool", ["solo", "prefork", "gevent", *thorough("threads", "eventlet")])
def test_tasks_that_did_not_start_are_returned(
    redis_server: RedisServer, client: redis.Redis, pool: str, *, late: bool
) -> None:
    leasing = Leasing(redis_server, client, settings={"worker_prefetch_multiplier": 4, "task_acks_late": late})
    ids = {leasing.send(WAIT).id for _ in range(4)}
    with leasing.worker("one", pool=pool, timeout=30) as one:
        leasing.wait_for_starts(1)
        one.request_shutdown()
        one.wait_for_output("Warm shutdown")
        # Some pools start another task before they are closed.
        for _ in ids:
            leasing.end_task("one")
        assert one.wait() == 0
    returned = [json.loads(item)["headers"]["id"] for item in client.lrange(leasing.queue, 0, -1)]
    assert sorted([*leasing.started, *returned]) == sorted(ids)
    assert not client.exists("unacked", "unacked_index")


@pytest.mark.parametrize("confirmed", [True, False])
def test_message_that_was_settled_for_a_task_that_never_started_is_returned(
    redis_server: RedisServer, client: redis.Redis, *, confirmed: bool
) -> None:
    with connected(redis_server) as connection:
        publish_all(connection, 2)
        taker = Taker(connection, ["q"], prefetch=2)
        taker.take(2)
        first, second = taker.messages
        for message in (first, second):
            taker.channel.qos.settle_before_start(message.delivery_tag)

        def settled() -> bool:
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.01)
            return first.delivery_tag not in taker.leases.settlement

        if confirmed:
            wait_until(settled, description="the reply")
        # Its task has started.
        second.ack()
    assert (client.llen("q"), client.exists("unacked", "unacked_index")) == (1, 0)
    assert not taker.leases.settlement
    with connected(redis_server) as connection:
        taker = Taker(connection, ["q"], prefetch=2)
        assert taker.take(1) == [0]
        taker.settle()


def test_acknowledgements_are_sent_at_once_after_the_consumer_has_ended(
    redis_server: RedisServer, client: redis.Redis
) -> None:
    # Nobody reads the reply of a Redis that lacks the script.
    client.script_load(load("broker/settle").source)
    with connected(redis_server) as connection:
        publish_all(connection, 2)
        taker = Taker(connection, ["q"], prefetch=2)
        taker.take(2)
        taker.consumer.cancel()
        # Nothing polls the connection any longer.
        for left in (1, 0):
            taker.messages.pop().ack()
            wait_until(lambda left=left: client.hlen("unacked") == left, description="one less")  # type: ignore[misc]


def test_acknowledgements_over_a_lost_connection_are_kept(redis_server: RedisServer, client: redis.Redis) -> None:
    with connected(redis_server) as connection:
        publish(connection, "done")
        taker = Taker(connection, ["q"], prefetch=1)
        taker.take(1)
        taker.consumer.cancel()
        (message,) = taker.messages
        taker.channel._fetch.commands.close()
        message.ack()
        assert message.delivery_tag in taker.leases.settlement
    assert client.llen("q") == 0
    assert client.hlen("unacked") == 1


@pytest.mark.parametrize("pool", ["threads", *thorough("prefork", "gevent", "eventlet")])
def test_tasks_are_settled_while_others_still_run(redis_server: RedisServer, client: redis.Redis, pool: str) -> None:
    leasing = Leasing(redis_server, client)
    for _ in range(2):
        leasing.send(WAIT)
    with leasing.worker("one", "--concurrency", "2", pool=pool, timeout=30) as one:
        leasing.wait_for_starts(2)
        one.request_shutdown()
        one.wait_for_output("Warm shutdown")
        leasing.end_task("one")
        leasing.wait_for_ends(1)
        wait_until(lambda: client.hlen("unacked") == 1, description="the first one to be settled")
        leasing.end_task("one")
        assert one.wait() == 0
    assert not client.exists("unacked", "unacked_index")
