"""Unique tasks in the process of a test: which calls are sent, and when their keys are free again."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import Celery, chain, chord, group
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError

from redis_queue import (
    ConfigurationError,
    DuplicateTaskError,
    InvalidDelayError,
    InvalidValueError,
    StoreUnavailableError,
)
from redis_queue.admission.owners import Owners, field_of
from redis_queue.celery import DurableTasks
from redis_queue.celery.admission.sender import FlowSender
from redis_queue.celery.entries import MessageWriter
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import UNIQUE, FlowHeader, UniqueHeader
from redis_queue.celery.publish import unique_calls
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.celery.worker import check_flows
from tests.support.celery.fetching import Taker, connected
from tests.support.celery.flows import KEYS, QUEUE, counts, taken, url_of
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
    settle_all,
    taking,
    traces,
)
from tests.support.servers import RedisServer
from tests.support.wait import must


class TestDuplicate:
    @pytest.mark.parametrize("task", ["end", "start", "hourly"])
    def test_a_second_call_returns_the_result_of_the_first(self, app: Celery, taker: Taker, task: str) -> None:
        first = send(app, task, 7, "a")
        assert [send(app, task, 7, text) for text in "bc"] == [first, first]
        assert app.send_task(task, kwargs={"order": 7}).id == first
        assert send(app, task, 7, countdown=60) == first
        other = send(app, task, 8)
        assert other != first
        assert sorted(taken(taker)) == [[7, "a"], [8]]
        assert not StoredTasks.of(app).count()

    def test_it_raises(self, app: Celery, taker: Taker) -> None:
        first = send(app, "strict", 7)
        with pytest.raises(DuplicateTaskError, match=f"strict: the task {first} with the key 'order:7'") as raised:
            send(app, "strict", 7)
        assert raised.value.task_id == first
        assert taken(taker) == [[7]]
        taker.settle()
        assert send(app, "strict", 7) != first

    def test_a_call_that_is_sent_while_another_one_is_keeps_its_own_key_and_delay(self, server: RedisServer) -> None:
        def route(name: str, *_: Any, **__: Any) -> None:
            if name == "end":
                send(app, "hourly", 8, countdown=60)
                app.send_task("plain", countdown=60)

        with app_of(server) as app, taking(server) as taker:
            app.conf.task_routes = (route,)
            first = send(app, "end", 7)
            assert owned(app) == {("end", "order:7"): "waiting", ("hourly", "order:8"): "delayed"}
            stored = {task.task: task.headers for task in StoredTasks.of(app).list()}
            assert (UNIQUE in stored["hourly"], UNIQUE in stored["plain"]) == (True, False)
            assert taken(taker) == [[7]]
            assert send(app, "end", 7) == first

    def test_without_a_key_all_calls_of_a_task_have_one(self, app: Celery, taker: Taker) -> None:
        assert send(app, "single", 1) == send(app, "single", 2)
        assert owned(app) == {("single", ""): "waiting"}
        assert taken(taker) == [[1]]

    def test_a_replaced_call_has_new_arguments_under_its_id(
        self, app: Celery, taker: Taker, client: redis.Redis
    ) -> None:
        first = send(app, "latest", 7, "a")
        assert [send(app, "latest", 7, text) for text in "bc"] == [first, first]
        assert counts(client) == {"waiting": {"queue:flows": 3}}
        assert taken(taker) == [[7, "c"]]
        assert taker.messages[0].headers["id"] == first
        settle_all(taker, client)

    def test_a_replaced_delayed_call_has_a_new_time(self, app: Celery, taker: Taker, client: redis.Redis) -> None:
        stored = StoredTasks.of(app)
        first = send(app, "latest", 7, "a", countdown=60)
        for number in range(20):
            assert send(app, "latest", 7, str(number), countdown=3600) == first
        (task,) = stored.list()
        assert task.id == first
        assert (task.due_at - datetime.now(timezone.utc)).total_seconds() > 3000
        assert not client.exists(KEYS.replaced), "what was replaced in the store leaves nothing"
        dispatch(app, first)
        assert taken(taker) == [[7, "19"]]
        settle_all(taker, client)

    def test_a_replaced_delayed_call_that_was_sent_to_another_broker_does_not_run(
        self, app: Celery, taker: Taker, client: redis.Redis
    ) -> None:
        stored = StoredTasks.of(app)
        first = send(app, "latest", 7, "a", countdown=60)
        stored.run_now(first)
        # A dispatcher sends it, and has not acknowledged it yet.
        (entry,) = stored.queue.claim()
        assert send(app, "latest", 7, "b", countdown=60) == first
        # A worker moves it into its flow.
        message = Envelope.unpack(entry.payload, entry.id, entry.headers)
        header = must(FlowHeader.of(message.headers))
        FlowSender(app).send(message, QUEUE, header, is_new=False)
        assert taken(taker) == []
        dispatch(app, first)
        assert taken(taker) == [[7, "b"]]
        settle_all(taker, client)

    @pytest.mark.parametrize("now_first", [True, False])
    def test_delayed_and_immediate_calls_replace_each_other(
        self, app: Celery, taker: Taker, client: redis.Redis, now_first: bool
    ) -> None:
        delays = ({}, {"countdown": 60}) if now_first else ({"countdown": 60}, {})
        first = send(app, "latest", 7, "a", **delays[0])
        assert send(app, "latest", 7, "b", **delays[1]) == first
        got = taken(taker)
        taker.settle()
        dispatch(app, first)
        assert [*got, *taken(taker)] == [[7, "b"]]
        settle_all(taker, client)

    def test_a_call_that_runs_is_not_replaced(self, server: RedisServer) -> None:
        with app_of(server, redis_queue_unique={"plain": {"on_conflict": "replace"}}) as app, taking(server) as taker:
            first = send(app, "plain", 1)
            assert taken(taker) == [[1]]
            assert send(app, "plain", 2) == first
            assert taken(taker) == [[1]]


class TestEnd:
    def test_until_it_starts(self, app: Celery, taker: Taker, client: redis.Redis) -> None:
        first = send(app, "start", 7)
        assert taken(taker) == [[7]]
        assert not owned(app)
        second = send(app, "start", 7)
        assert first != second == send(app, "start", 7)
        assert taken(taker) == [[7], [7]]
        settle_all(taker, client)

    def test_until_it_ends(self, app: Celery, taker: Taker, client: redis.Redis) -> None:
        first = send(app, "end", 7)
        assert taken(taker) == [[7]]
        assert owned(app) == {("end", "order:7"): "running"}
        assert send(app, "end", 7) == first
        settle_all(taker, client)
        assert send(app, "end", 7) != first

    def test_for_a_time(self, app: Celery, taker: Taker, client: redis.Redis) -> None:
        first = send(app, "hourly", 7)
        assert taken(taker) == [[7]]
        taker.settle()
        assert send(app, "hourly", 7) == first
        outdate(client, "hourly", "order:7")
        assert send(app, "hourly", 7) != first

    def test_a_rejected_message_waits_again(self, app: Celery, taker: Taker, client: redis.Redis) -> None:
        for task in ("end", "start"):
            first = send(app, task, 7)
            assert taken(taker) == [[7]]
            taker.messages.pop().reject(requeue=True)
            assert owned(app) == {(task, "order:7"): "waiting"}
            assert send(app, task, 7) == first
            assert taken(taker) == [[7]]
            settle_all(taker, client)

    def test_a_returned_message_does_not_take_the_key_of_another_one(self, app: Celery, taker: Taker) -> None:
        send(app, "start", 7, "a")
        assert taken(taker) == [[7, "a"]]
        second = send(app, "start", 7, "b")
        taker.messages.pop().reject(requeue=True)
        (owner,) = owners(app).list()
        assert owner.task_id == second
        assert sorted(taken(taker)) == [[7, "a"], [7, "b"]]

    def test_a_cancelled_or_revoked_task_frees_its_key(self, app: Celery, client: redis.Redis) -> None:
        assert StoredTasks.of(app).cancel(send(app, "end", 7, countdown=60, task_id="queue_unique"))
        assert not traces(client)
        app.control.revoke(send(app, "start", 7, countdown=60))
        assert not traces(client)

    @pytest.mark.parametrize("task", ["end", "start", "latest", "strict", "hourly"])
    def test_a_revoke_frees_the_key_of_a_task_that_waits(
        self, app: Celery, taker: Taker, client: redis.Redis, task: str
    ) -> None:
        first = send(app, task, 7, "revoked")
        app.control.revoke([first, "unknown"])
        assert owned(app) == {}
        assert send(app, task, 7, "new") != first
        assert taken(taker) == [[7, "new"]]
        taker.settle()
        assert task == "hourly" or not traces(client)

    def test_a_revoke_frees_the_key_of_a_delayed_task_that_was_sent(self, app: Celery, taker: Taker) -> None:
        first = send(app, "end", 7, "revoked", countdown=60)
        dispatch(app, first)
        app.control.revoke(first)
        assert send(app, "end", 7, "new") != first
        assert taken(taker) == [[7, "new"]]

    def test_a_revoked_task_that_waits_has_the_state_revoked(self, server: RedisServer) -> None:
        with app_of(server, result_backend="cache+memory://", task_ignore_result=False) as app:
            first = send(app, "end", 7)
            app.control.revoke(first)
            assert app.AsyncResult(first).state == "REVOKED"

    def test_a_revoke_leaves_the_key_to_a_task_that_runs(self, app: Celery, taker: Taker, client: redis.Redis) -> None:
        first = send(app, "end", 7)
        assert taken(taker) == [[7]]
        app.control.revoke(first)
        assert send(app, "end", 7) == first
        settle_all(taker, client)

    def test_a_revoke_leaves_a_task_for_which_others_wait_to_a_worker(self, server: RedisServer) -> None:
        # The worker that discards it tells the chord.
        with app_of(server, result_backend="cache+memory://", task_ignore_result=False) as app, taking(server) as taker:
            result = chord([app.tasks["end"].s(7)])(app.tasks["plain"].si())
            (part,) = result.parent.children if result.parent else ()
            app.control.revoke(part.id)
            assert owned(app) == {("end", "order:7"): "waiting"}
            assert taken(taker) == [[7]]

    @pytest.mark.parametrize("task", ["end", "latest"])
    def test_a_dead_letter_frees_its_key(self, server: RedisServer, task: str) -> None:
        with app_of(server, redis_queue_overdue="skip:1") as app, taking(server) as taker:
            queue = StoredTasks.of(app).queue
            first = send(app, task, 7, "late", eta=datetime.now(timezone.utc) - timedelta(seconds=30))
            dispatch(app)
            assert [letter.id for letter in queue.dead_letters()] == [first]
            second = send(app, task, 7, "new")
            assert (second == first) == (task == "latest")
            queue.redrive()
            dispatch(app)
            # A dead letter that is sent again runs without its key, unless its task has been replaced.
            assert taken(taker) == [[7, "new"], *([[7, "late"]] if task == "end" else [])]

    def test_it_is_free_after_its_time(self, server: RedisServer, client: redis.Redis) -> None:
        with app_of(server, redis_queue_unique={"plain": {"ttl": 100}}) as app:
            send(app, "plain", countdown=1000)
            (owner,) = owners(app).list()
            seconds, _ = client.time()
            assert 1090 < owner.until.timestamp() - seconds <= 1101
            outdate(client, "plain", "")
            assert send(app, "plain") != owner.task_id

    def test_a_user_frees_it(self, app: Celery, taker: Taker, client: redis.Redis) -> None:
        first = send(app, "end", 7)
        assert owners(app).release("end", "order:7")
        assert not owners(app).release("end", "order:7")
        assert owners(app).get("end", "order:7") is None
        assert send(app, "end", 7) != first
        assert taken(taker) == [[7], [7]]
        settle_all(taker, client)


class TestBrokenSender:
    """A sender died, or hangs, while its message was being sent."""

    def acquired(self, app: Celery, task: str, **options: Any) -> str:
        """Own a key of a message that is not sent."""
        found = owners(app).acquire(field_of(task, "order:7"), "abc", task_id="lost", ttl_ms=5000, **options)
        assert found.owns
        return found.task_id

    def test_its_key_is_free_soon(self, app: Celery, taker: Taker, client: redis.Redis) -> None:
        self.acquired(app, "end")
        assert owned(app) == {("end", "order:7"): "sending"}
        outdate(client, "end", "order:7")
        send(app, "end", 7)
        assert taken(taker) == [[7]]

    def test_another_call_waits_for_its_end(self, app: Celery, client: redis.Redis) -> None:
        self.acquired(app, "end")
        ends = client.zscore(KEYS.owner_ends, field_of("end", "order:7"))
        seconds, microseconds = client.time()
        assert ends is not None
        assert 0 < float(ends) / 1000 - (seconds + microseconds / 1e6) <= 10
        again = owners(app).acquire(field_of("end", "order:7"), "def", task_id="second", ttl_ms=5000)
        assert (again.is_open, again.owns) == (True, False)

    @pytest.mark.parametrize("countdown", [None, 60])
    def test_what_it_sent_late_does_not_run(
        self, app: Celery, taker: Taker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, countdown: float | None
    ) -> None:
        acquire, other = Owners.acquire, []

        def slow(self: Owners, field: str, *args: Any, **options: Any) -> Any:
            found = acquire(self, field, *args, **options)
            if not other:
                outdate(client, "end", "order:7")
                other.append("")
                other[0] = send(app, "end", 7, "quick")
            return found

        monkeypatch.setattr(Owners, "acquire", slow)
        assert send(app, "end", 7, "slow", countdown=countdown) == other[0]
        for task in StoredTasks.of(app).list():
            dispatch(app, task.id)
        assert taken(taker) == [[7, "quick"]]
        settle_all(taker, client)

    def test_what_it_was_to_replace_runs(self, server: RedisServer, client: redis.Redis) -> None:
        for late in (True, False):
            with app_of(server) as app, taking(server) as taker:
                first = send(app, "latest", 7)
                assert self.acquired(app, "latest", replaces=True) == first
                if late:
                    outdate(client, "latest", "order:7")
                assert taken(taker) == [[7]]
                assert not owned(app)
                assert client.zrange(KEYS.replaced, 0, -1) == [b"abc"], "should it have been sent after all"
                taker.settle()
            client.flushall()

    def test_what_it_was_to_replace_can_be_replaced(self, app: Celery, taker: Taker, client: redis.Redis) -> None:
        first = send(app, "latest", 7, "a")
        self.acquired(app, "latest", replaces=True)
        outdate(client, "latest", "order:7")
        assert send(app, "latest", 7, "c") == first
        assert taken(taker) == [[7, "c"]]

    def test_a_send_that_fails_frees_its_key(
        self, app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with pytest.raises(Exception, match="serializable"):
            send(app, "end", 7, object())
        assert not owned(app)
        client.config_set("maxmemory", "1")
        with pytest.raises(OperationalError, match="out of memory"):
            send(app, "end", 7)
        client.config_set("maxmemory", "0")
        assert not owned(app)


class TestReplacement:
    """A message that is to replace another one, at each moment of its sending."""

    @pytest.mark.parametrize("moved", [True, False])
    def test_killed_between_store_and_confirmation(
        self, app: Celery, taker: Taker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, moved: bool
    ) -> None:
        first = send(app, "latest", 7, "a", countdown=60)
        if moved:
            dispatch(app, first)
        interrupt(monkeypatch, KilledError, UNCONFIRMED, lambda: send(app, "latest", 7, "b", countdown=60))
        outdate(client, "latest", "order:7")
        assert send(app, "end", 99) != first
        dispatch(app, first)
        got = [args for args in taken(taker) if args != [99]]
        assert len(got) == 1
        assert got[0][0] == 7
        taker.settle()
        assert not owned(app)

    def test_refused_after_it_was_stored(self, app: Celery, taker: Taker, monkeypatch: pytest.MonkeyPatch) -> None:
        store = MessageWriter.store

        def fail(self: MessageWriter, *messages: Any) -> None:
            store(self, *messages)
            raise StoreUnavailableError

        first = send(app, "latest", 7, "a", countdown=60)
        interrupt(
            monkeypatch,
            OperationalError,
            {(MessageWriter, "store"): fail},
            lambda: send(app, "latest", 7, "b", countdown=60),
        )
        dispatch(app, first)
        assert taken(taker) in ([[7, "a"]], [[7, "b"]])
        taker.settle()
        assert not owned(app)

    def test_sent_although_the_reply_was_lost(
        self, app: Celery, taker: Taker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prepare = FlowSender.prepare

        def failing(self: FlowSender, *args: Any, **options: Any) -> Callable[[], bool]:
            send_message = prepare(self, *args, **options)

            def fail() -> bool:
                send_message()
                raise StoreUnavailableError

            return fail

        send(app, "latest", 7, "a")
        interrupt(
            monkeypatch,
            OperationalError,
            {(FlowSender, "prepare"): failing},
            lambda: app.tasks["latest"].apply_async((7, "b"), retry=False),
        )
        assert taken(taker) == [[7, "b"]]
        settle_all(taker, client)

    def test_taken_before_it_is_confirmed(
        self, server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with app_of(server, redis_queue_unique={"plain": {"on_conflict": "replace"}}) as app, taking(server) as taker:
            first = send(app, "plain", 1)
            interrupt(monkeypatch, KilledError, UNCONFIRMED, lambda: send(app, "plain", 2, countdown=60))
            dispatch(app, first)
            assert len(taken(taker)) == 1
            taker.settle()
            assert not taken(taker)
            assert not owned(app)

    @pytest.mark.parametrize("task", ["end", "start"])
    def test_started_before_it_is_confirmed(
        self, app: Celery, taker: Taker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, task: str
    ) -> None:
        confirm = Owners.confirm

        def late(self: Owners, *args: Any, **options: Any) -> bool:
            dispatch(app, StoredTasks.of(app).list()[0].id)
            assert taken(taker) == [[7]]
            return confirm(self, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Owners, "confirm", late)
            send(app, task, 7, countdown=60)
        assert not StoredTasks.of(app).count(), "it is not sent again"
        settle_all(taker, client)

    def test_cancelled_meanwhile(self, app: Celery, client: redis.Redis) -> None:
        field = field_of("latest", "order:7")
        first = send(app, "latest", 7, countdown=60)
        assert owners(app).acquire(field, "abc", task_id="x", ttl_ms=86_400_000, replaces=True).owns
        assert StoredTasks.of(app).cancel(first)
        outdate(client, "latest", "order:7")
        assert owners(app).acquire(field, "def", task_id="y", ttl_ms=86_400_000).task_id == "y"

    def test_a_time_goes_on(self, server: RedisServer, client: redis.Redis) -> None:
        rules = {"plain": {"until": timedelta(hours=1), "on_conflict": "replace"}}
        with app_of(server, redis_queue_unique=rules) as app, taking(server) as taker:
            send(app, "plain", 1)
            assert owners(app).acquire(field_of("plain", ""), "abc", task_id="x", ttl_ms=1000, replaces=True).replaces
            assert taken(taker) == [[1]]
            (owner,) = owners(app).list()
            assert owner.until - datetime.now(timezone.utc) > timedelta(minutes=55)

    def test_what_others_wait_for_is_not_replaced(self, server: RedisServer) -> None:
        with app_of(server, task_ignore_result=False, result_backend="cache+memory://") as app, taking(server) as taker:
            latest, plain = app.tasks["latest"], app.tasks["plain"]
            chain(latest.si(7, "chain"), plain.si(1)).apply_async()
            send(app, "latest", 7, "a")
            send(app, "latest", 7, "b")
            assert sorted(taken(taker)) == [[7, "b"], [7, "chain"]]


class TestEndsOfKeys:
    def test_a_cancel_that_comes_too_late_leaves_the_key(self, app: Celery) -> None:
        stored, queue = StoredTasks.of(app), StoredTasks.of(app).queue
        first = send(app, "end", 7, eta=datetime.now(timezone.utc))
        claimed = queue.claim()
        assert [entry.id for entry in claimed] == [first]
        assert not stored.cancel(first)
        (owner,) = owners(app).list()
        assert owner.state == "delayed"
        assert owner.until - datetime.now(timezone.utc) > timedelta(hours=23)

    def test_a_retry_that_was_never_sent_blocks_the_key_for_seconds(self, app: Celery, taker: Taker) -> None:
        first = send(app, "end", 7)
        taken(taker)
        token = taker.messages[0].headers["redis_queue_unique"][1]
        field = field_of("end", "order:7")
        assert owners(app).acquire(field, "abc", task_id=first, ttl_ms=86_400_000, running=token).owns
        # Its process was killed by a time limit, and the worker settles the message.
        taker.settle()
        (owner,) = owners(app).list()
        assert owner.until - datetime.now(timezone.utc) < timedelta(seconds=15)

    def test_a_message_that_expires_owns_its_key_no_longer(self, app: Celery) -> None:
        send(app, "end", 7, expires=100)
        send(app, "end", 8, expires=datetime.now(timezone.utc) + timedelta(seconds=100))
        for owner in owners(app).list():
            assert timedelta(0) < owner.until - datetime.now(timezone.utc) <= timedelta(seconds=101)

    def test_the_delay_counts_once(self, server: RedisServer) -> None:
        with app_of(server, redis_queue_unique={"plain": {"ttl": 100}}) as app, taking(server) as taker:
            first = send(app, "plain", countdown=86_400)
            (waiting,) = owners(app).list()
            assert waiting.until - datetime.now(timezone.utc) > timedelta(hours=23)
            dispatch(app, first)
            assert taken(taker) == [[]]
            (running,) = owners(app).list()
            assert running.until - datetime.now(timezone.utc) < timedelta(seconds=200)

    def test_a_message_that_was_never_confirmed_frees_its_key(
        self, app: Celery, taker: Taker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        interrupt(monkeypatch, KilledError, UNCONFIRMED, lambda: send(app, "end", 7, countdown=60))
        outdate(client, "end", "order:7")
        (task,) = StoredTasks.of(app).list()
        dispatch(app, task.id)
        assert taken(taker) == []
        assert not traces(client)

    def test_a_call_that_waits_for_others_in_vain_raises(
        self, server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(unique_calls, "MAX_WAIT", 0.05)
        with app_of(server) as app:
            owners(app).acquire(field_of("end", "order:7"), "abc", task_id="lost", ttl_ms=5000)
            with pytest.raises(OperationalError, match="other calls with the key 'order:7' are being sent"):
                send(app, "end", 7)

    def test_a_call_whose_key_is_lost_again_and_again_raises_after_one_period(
        self, server: RedisServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        times = iter(range(0, 30, 5))
        monkeypatch.setattr(unique_calls, "monotonic", lambda: next(times))
        monkeypatch.setattr(Owners, "confirm", lambda *_, **__: False)
        with app_of(server) as app, pytest.raises(OperationalError, match="are being sent"):
            send(app, "end", 7, countdown=60)

    def test_the_id_of_protocol_1_is_kept(self, server: RedisServer, client: redis.Redis) -> None:
        with app_of(server, task_protocol=1) as app, taking(server) as taker:
            first = send(app, "end", 7, countdown=60)
            dispatch(app, first)
            assert len(taker.take(1)) == 1
            assert send(app, "end", 7) == first

    def test_a_task_id_is_text(self, app: Celery) -> None:
        id_ = UUID(int=5)
        assert send(app, "end", 7, task_id=id_) == str(id_)
        with pytest.raises(InvalidValueError, match="task_id="):
            send(app, "end", 8, task_id="a\ud800")

    def test_a_duplicate_behind_another_task_does_not_raise(self, app: Celery) -> None:
        first = send(app, "strict", 7)
        assert send(app, "strict", 7, parent_id="before") == first


class TestOtherBroker:
    @pytest.mark.parametrize("task", ["end", "latest"])
    def test_a_message_that_another_broker_delivers_waits_for_admission(
        self, app: Celery, taker: Taker, client: redis.Redis, task: str
    ) -> None:
        stored = StoredTasks.of(app)
        first = send(app, task, 7, "old", countdown=60)
        (entry,) = stored.queue.list()
        assert isinstance(entry.payload, bytes)
        envelope = Envelope.unpack(entry.payload, entry.id, entry.headers)
        header = must(FlowHeader.of(envelope.headers))
        stored.queue.purge("waiting")
        if task == "latest":
            assert send(app, task, 7, "new") == first
            dispatch(app)
        assert FlowSender(app).send(envelope, QUEUE, header, is_new=False)
        assert taken(taker) == [[7, "new" if task == "latest" else "old"]]
        settle_all(taker, client)


class TestCanvas:
    def test_tasks_of_a_group_count(self, app: Celery, taker: Taker) -> None:
        task = app.tasks["end"]
        group(task.s(number % 2) for number in range(6)).apply_async()
        assert sorted(taken(taker)) == [[0], [1]]

    def test_what_others_wait_for_is_sent_although_its_key_is_taken(
        self, server: RedisServer, client: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        with app_of(server, task_ignore_result=False, result_backend="cache+memory://") as app, taking(server) as taker:
            task, plain = app.tasks["end"], app.tasks["plain"]
            send(app, "end", 7, "first")
            with caplog.at_level(logging.WARNING):
                chain(task.si(7, "chain"), plain.si(1)).apply_async()
            assert "others wait for it" in caplog.text
            chord([task.si(7, "chord"), plain.si(2)])(plain.si(3))
            task.apply_async((7, "link"), link=plain.si(4))
            task.apply_async((7, "duplicate"))
            assert sorted(map(str, taken(taker))) == sorted(
                map(str, ([7, "first"], [7, "chain"], [7, "chord"], [2], [7, "link"]))
            )
            settle_all(taker, client)

    def test_the_last_task_of_a_chain_counts(self, app: Celery, taker: Taker) -> None:
        first = send(app, "end", 7)
        assert app.tasks["end"].si(7).apply_async().id == first
        assert taken(taker) == [[7]]

    def test_send_many_stores_each_key_once(self, app: Celery) -> None:
        task, delayed = app.tasks["end"], DurableTasks(app)
        results = delayed.send_many([task.s(number % 3) for number in range(9)], countdown=60)
        assert len({result.id for result in results}) == 3 == delayed.count()
        assert len({result.id for result in delayed.send_many([task.s(number % 2 + 3) for number in range(4)])}) == 2

    def test_send_many_stores_a_message_before_it_confirms_its_key(
        self, app: Celery, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        task, delayed, stored = app.tasks["end"], DurableTasks(app), list[int]()
        confirm = Owners.confirm

        def look(self: Owners, *args: Any, **options: Any) -> bool:
            stored.append(delayed.count())
            return confirm(self, *args, **options)

        monkeypatch.setattr(Owners, "confirm", look)
        delayed.send_many([task.s(number) for number in range(3)], countdown=60)
        assert stored == [1, 2, 3]


class TestOtherDestinations:
    def test_another_broker_knows_no_keys(self, server: RedisServer, client: redis.Redis) -> None:
        with RedisServer() as other, other.client() as of_other, app_of(server) as app:
            with connected(other) as connection:
                for _ in range(2):
                    send(app, "end", 7, connection=connection)
            assert of_other.llen(QUEUE) == 2
            assert not traces(client)

    def test_a_topic_exchange_knows_no_keys(
        self, server: RedisServer, client: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = Queue("topics", Exchange("news", "topic"), "news.#")
        with app_of(server, task_queues=[queue]) as app:
            with caplog.at_level(logging.WARNING):
                for _ in range(2):
                    send(app, "end", 7, queue="topics", routing_key="news.one")
            assert "it is not unique" in caplog.text
            assert client.llen("topics") == 2
            assert not owned(app)

    def test_a_broker_of_another_kind_is_refused(self, server: RedisServer) -> None:
        with (
            app_of(server, broker_url="memory://", redis_queue_url=url_of(server)) as app,
            pytest.raises(ConfigurationError, match="need a Redis or RabbitMQ broker"),
        ):
            send(app, "end", 7)

    def test_a_store_elsewhere_keeps_keys_and_messages(self, server: RedisServer, client: redis.Redis) -> None:
        with RedisServer() as other, app_of(server, redis_queue_url=url_of(other)) as app, other.client() as store:
            assert send(app, "end", 7) == send(app, "end", 7)
            assert owned(app) == {("end", "order:7"): "waiting"}
            assert not client.keys()
            assert traces(store)


class TestInput:
    @pytest.mark.parametrize(
        ("setting", "message"),
        [
            (5, "redis_queue_unique=5: must be a mapping"),
            ({"plain": 5}, "redis_queue_unique['plain']: 5: must be a mapping"),
            ({"plain": {"keys": "x"}}, "redis_queue_unique['plain']: unknown option 'keys': did you mean 'key'"),
            ({"": {}}, "must be 1 to"),
        ],
    )
    def test_wrong_settings_are_refused(self, server: RedisServer, setting: Any, message: str) -> None:
        with app_of(server, redis_queue_unique=setting) as app, pytest.raises(ConfigurationError) as raised:
            send(app, "plain")
        assert message in str(raised.value)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"redis_queue_unique": {"plane": {}}}, "redis_queue_unique['plane']: unknown task: did you mean 'plain'"),
            ({"redis_queue_unique": {"plain": {"key": "{shop}"}}}, "unique of task plain: key='{shop}': unknown"),
            ({"task_acks_late": False}, "task end: acks_late=False contradicts unique until its end"),
        ],
    )
    def test_a_worker_does_not_start(self, server: RedisServer, settings: dict[str, Any], message: str) -> None:
        with app_of(server, **settings) as app, pytest.raises(ConfigurationError) as raised:
            check_flows(app)
        assert message in str(raised.value)

    def test_another_type_at_the_decorator_is_refused(self, app: Celery) -> None:
        app.tasks["plain"].unique = "order:{order}"
        with pytest.raises(ConfigurationError, match=r"task plain: unique='order:\{order\}': must be a redis"):
            send(app, "plain")

    def test_the_setting_has_precedence(self, server: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
        with app_of(server, redis_queue_unique={"end": {"key": "all"}}) as app, caplog.at_level(logging.WARNING):
            assert send(app, "end", 1) == send(app, "end", 2)
            assert caplog.text.count("redis_queue_unique has precedence over unique= of its decorator") == 1

    @pytest.mark.parametrize("order", [[], {}, "x" * 300, "a\nb", ""])
    def test_a_key_that_cannot_be_one_is_refused(self, server: RedisServer, client: redis.Redis, order: Any) -> None:
        with app_of(server, redis_queue_unique={"plain": {"key": "{order}"}}) as app:
            with pytest.raises(InvalidValueError, match="key"):
                send(app, "plain", order)
            assert not client.keys("*")

    def test_a_wrong_delay_is_refused_before_the_key_is_owned(self, app: Celery) -> None:
        with pytest.raises(InvalidDelayError):
            send(app, "end", 7, countdown=float("nan"))
        assert not owned(app)

    @pytest.mark.parametrize(
        "value",
        [
            5,
            [],
            ["s", "ab", 5, "task"],
            ["x", "ab", 5, "task", "key"],
            ["s", "AB", 5, "task", "key"],
            ["s", "ab", True, "task", "key"],
            ["s", "ab", 10**30, "task", "key"],
            ["s", "ab", 5, "", "key"],
            ["s", "ab", 5, "task", 7],
            ["s", "ab", 5, "task", "k" * 300],
        ],
    )
    def test_a_header_of_another_program_means_nothing(self, value: Any) -> None:
        assert UniqueHeader.of({"redis_queue_unique": value}) is None
        assert UniqueHeader.of(value) is None

    def test_a_header_is_read_as_it_was_written(self) -> None:
        header = UniqueHeader("e", "ab12", 5000, "shop.sync", "ördér")
        assert UniqueHeader.of({"redis_queue_unique": json.loads(json.dumps(header.value))}) == header
