"""Unique tasks whose senders or workers die, or whose leases are lost, at rare moments."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
import redis

from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.unique.owners import field_of
from tests.support.celery.fetching import Taker, connected
from tests.support.celery.flows import KEYS, taken
from tests.support.celery.uniques import (
    UNCONFIRMED,
    KilledError,
    app_of,
    dispatch,
    interrupt,
    outdate,
    owned,
    owners,
    send,
    taking,
    traces,
)
from tests.support.servers import RedisServer

pytestmark = pytest.mark.celery

END = field_of("end", "order:7")
LATEST = field_of("latest", "order:7")
DAY_MS = 86_400_000


def token_of(taker: Taker) -> str:
    """Return the token of the message that was taken last."""
    return str(taker.messages[-1].headers["redis_queue_unique"][1])


class TestStart:
    def test_the_time_of_a_key_begins_anew(self, server: RedisServer, client: redis.Redis) -> None:
        with app_of(server) as app, taking(server) as taker:
            send(app, "end", 7)
            seconds, _ = client.time()
            assert client.zadd(KEYS.owner_ends, {END: (seconds + 100) * 1000}, xx=True, ch=True)
            assert taken(taker) == [[7]]
            (owner,) = owners(app).list()
            assert owner.until - datetime.now(timezone.utc) > timedelta(hours=23)

    def test_a_task_whose_time_has_passed_owns_its_key_again(self, server: RedisServer, client: redis.Redis) -> None:
        with app_of(server) as app, taking(server) as taker:
            first = send(app, "end", 7)
            outdate(client, "end", "order:7")
            assert taken(taker) == [[7]]
            assert send(app, "end", 7) == first

    def test_all_that_was_to_replace_it_is_dropped(
        self, server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with app_of(server) as app, taking(server) as taker:
            stored = StoredTasks.of(app)
            first = send(app, "latest", 7, "a", countdown=60)
            stored.run_now(first)
            dispatch(app)
            interrupt(monkeypatch, KilledError, UNCONFIRMED, lambda: send(app, "latest", 7, "b", countdown=60))
            outdate(client, "latest", "order:7")
            assert owners(app).acquire(LATEST, "abc", task_id="x", ttl_ms=DAY_MS, replaces=True).replaces
            assert taken(taker) == [[7, "a"]]
            stored.run_now(first)
            dispatch(app)
            assert taken(taker) == [[7, "a"]]

    def test_what_it_was_to_replace_is_dropped(
        self, server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with app_of(server) as app, taking(server) as taker, connected(server) as connection:
            first = send(app, "latest", 7, "a", queue="other")
            interrupt(monkeypatch, KilledError, UNCONFIRMED, lambda: send(app, "latest", 7, "b", countdown=60))
            StoredTasks.of(app).run_now(first)
            dispatch(app)
            assert taken(taker) == [[7, "b"]]
            assert taken(Taker(connection, ["other"], 100)) == []
            taker.settle()
            assert not traces(client)


class TestSettlement:
    def test_alone(self, server: RedisServer, client: redis.Redis) -> None:
        with app_of(server) as app, taking(server) as taker:
            send(app, "end", 7)
            assert taken(taker) == [[7]]
            taker.leases.settle_alone([message.delivery_tag for message in taker.messages])
            assert not traces(client)

    def test_a_late_one_frees_no_key(self, server: RedisServer, client: redis.Redis) -> None:
        with app_of(server) as app, taking(server) as taker:
            send(app, "end", 7)
            assert taken(taker) == [[7]]
            # A stock worker returns the message.
            client.zrem("unacked_index", taker.messages[0].delivery_tag)
            taker.settle()
            assert owned(app) == {("end", "order:7"): "running"}

    def test_a_task_that_was_sent_again_leaves_nothing(self, server: RedisServer, client: redis.Redis) -> None:
        with app_of(server) as app, taking(server) as taker:
            first = send(app, "end", 7)
            assert taken(taker) == [[7]]
            assert owners(app).acquire(END, "abc", task_id=first, ttl_ms=DAY_MS, running=token_of(taker)).owns
            assert owners(app).confirm(END, "abc")
            assert client.zcard(KEYS.replaced) == 1, "should it come again"
            taker.settle()
            assert not client.exists(KEYS.replaced)
            assert owned(app) == {("end", "order:7"): "delayed"}


class TestReturn:
    def test_a_task_that_was_sent_again_does_not_wait_again(self, server: RedisServer, client: redis.Redis) -> None:
        with app_of(server) as app, taking(server) as taker:
            first = send(app, "end", 7)
            assert taken(taker) == [[7]]
            assert owners(app).acquire(END, "abc", task_id=first, ttl_ms=DAY_MS, running=token_of(taker)).owns
            assert owners(app).confirm(END, "abc")
            assert owners(app).withdraw(END, "abc", sent=True)
            taker.messages.pop().reject(requeue=True)
            assert not owned(app)
            assert taken(taker) == []
            assert not traces(client)


def test_a_task_cancelled_after_its_replacement_was_due_blocks_its_key_for_seconds(
    server: RedisServer, client: redis.Redis
) -> None:
    with app_of(server) as app:
        first = send(app, "latest", 7, countdown=60)
        assert owners(app).acquire(LATEST, "abc", task_id="x", ttl_ms=DAY_MS, replaces=True).replaces
        outdate(client, "latest", "order:7")
        # A call with any key looks at the owners whose time has passed.
        send(app, "end", 99)
        assert StoredTasks.of(app).cancel(first)
        owner = owners(app).get("latest", "order:7")
        assert owner is not None
        assert owner.until - datetime.now(timezone.utc) < timedelta(seconds=15)


def test_a_repeated_call_has_one_answer(server: RedisServer) -> None:
    with app_of(server) as app:
        options = {"ttl_ms": DAY_MS, "replaces": True}
        one, again = (owners(app).acquire(LATEST, "abc", task_id="x", **options) for _ in range(2))
        assert one == again
        assert owners(app).confirm(LATEST, "abc")
        two, again = (owners(app).acquire(LATEST, "def", task_id="y", **options) for _ in range(2))
        assert two == again
        assert (two.replaces, two.task_id, two.state) == (True, "x", "delayed")


def test_what_is_replaced_may_wait_longer(server: RedisServer, client: redis.Redis) -> None:
    with app_of(server, redis_queue_unique={"plain": {"ttl": 100, "on_conflict": "replace"}}) as app:
        send(app, "plain", countdown=3600)
        assert owners(app).acquire(field_of("plain", ""), "abc", task_id="x", ttl_ms=1000, replaces=True).replaces
        outdate(client, "plain", "")
        send(app, "end", 99)
        owner = owners(app).get("plain")
        assert owner is not None
        assert owner.until - datetime.now(timezone.utc) > timedelta(minutes=55)


def test_a_call_forgets_what_has_ended(server: RedisServer, client: redis.Redis) -> None:
    with app_of(server) as app:
        send(app, "end", 7)
        outdate(client, "end", "order:7")
        client.zadd(KEYS.replaced, {"abc": 1})
        send(app, "end", 8)
        assert client.hkeys(KEYS.owners) == [field_of("end", "order:8").encode()]
        assert not client.exists(KEYS.replaced)


def test_a_message_that_lost_its_key_does_not_free_it(server: RedisServer, client: redis.Redis) -> None:
    with app_of(server) as app:
        assert owners(app).acquire(END, "abc", task_id="x", ttl_ms=DAY_MS).owns
        (owner,) = owners(app).list()
        assert owner.until - datetime.now(timezone.utc) < timedelta(seconds=15), "its sender may die"
        outdate(client, "end", "order:7")
        second = send(app, "end", 7)
        assert not any(owners(app).withdraw(END, "abc", sent=sent) for sent in (False, True))
        assert send(app, "end", 7) == second


def test_a_message_that_was_withdrawn_does_not_run(server: RedisServer, client: redis.Redis) -> None:
    with app_of(server) as app, taking(server) as taker:
        first = send(app, "latest", 7, "a")
        assert owners(app).acquire(LATEST, "abc", task_id="x", ttl_ms=DAY_MS, replaces=True).replaces
        assert owners(app).withdraw(LATEST, "abc", sent=False)
        assert client.zrange(KEYS.replaced, 0, -1) == [b"abc"], "should it have been sent after all"
        assert send(app, "latest", 7, "b") == first
        assert taken(taker) == [[7, "b"]]
