"""Unique tasks whose senders or workers die, or whose leases are lost, at rare moments."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery, chain
from celery._state import _task_stack
from celery.exceptions import Retry
from kombu.exceptions import EncodeError

from redis_queue import Unique
from redis_queue.admission.owners import AcquireReply, Owners, field_of
from redis_queue.celery.admission.sender import FlowSender
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import FlowHeader
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.delay.entries import MarkedEntries
from redis_queue.errors import StoreUnavailableError
from redis_queue.model import CancelOutcome, Entry
from redis_queue.operate.access import access_to
from tests.support.celery.fetching import Taker, connected
from tests.support.celery.flows import KEYS, QUEUE, taken, url_of
from tests.support.celery.uniques import (
    OF_OWNERS,
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

END = field_of("end", "order:7")
LATEST = field_of("latest", "order:7")
DAY_MS = 86_400_000


def token_of(taker: Taker) -> str:
    """Return the token of the message that was taken last."""
    return str(taker.messages[-1].headers["redis_queue_unique"][1])


def claimed(app: Celery, task_id: str) -> Entry:
    """Let a dispatcher claim the stored task *task_id*."""
    StoredTasks.of(app).run_now(task_id)
    (entry,) = StoredTasks.of(app).queue.claim()
    return entry


def arrive(app: Celery, entry: Entry) -> None:
    """Let a worker move the message of *entry* from another broker, to which a dispatcher sent it, into its gate."""
    message = Envelope.unpack(entry.payload, entry.id, entry.headers)
    assert FlowSender(app).send(message, QUEUE, must(FlowHeader.of(message.headers)), is_new=False)


@contextmanager
def stock(server: RedisServer) -> Iterator[Celery]:
    """Make an app without redis_queue."""
    with Celery("stock", broker=url_of(server), set_as_current=False) as app:
        app.conf.task_default_queue = QUEUE
        yield app


@contextmanager
def running(app: Celery, message: Any) -> Iterator[Any]:
    """Act as a worker that runs *message*; yield its task."""
    task = app.tasks[message.headers["task"]]
    args, kwargs, _ = message.payload
    _task_stack.push(task)
    info = {"delivery_info": message.delivery_info, "called_directly": False, "is_eager": False}
    task.push_request(**{**message.headers, "args": args, "kwargs": kwargs, **info})
    try:
        yield task
    finally:
        task.pop_request()
        _task_stack.pop()


def retry(app: Celery, message: Any) -> None:
    """Let the task of *message* send itself again."""
    with running(app, message) as task, pytest.raises(Retry):
        task.retry(countdown=60)


def before(monkeypatch: pytest.MonkeyPatch, kind: type, name: str, act: Callable[[], Any]) -> None:
    """Let *act* happen before the next call of the method *name* of *kind*."""
    method = getattr(kind, name)

    def late(self: Any, *args: Any, **options: Any) -> Any:
        monkeypatch.setattr(kind, name, method)
        act()
        return method(self, *args, **options)

    monkeypatch.setattr(kind, name, late)


class TestStart:
    def test_the_time_of_a_key_begins_anew(self, app: Celery, taker: Taker, client: redis.Redis) -> None:
        send(app, "end", 7)
        seconds, _ = client.time()
        assert client.zadd(KEYS.owner_ends, {END: (seconds + 100) * 1000}, xx=True, ch=True)
        assert taken(taker) == [[7]]
        (owner,) = owners(app).list()
        assert owner.until - datetime.now(timezone.utc) > timedelta(hours=23)

    def test_a_task_whose_time_has_passed_owns_its_key_again(
        self, app: Celery, taker: Taker, client: redis.Redis
    ) -> None:
        first = send(app, "end", 7)
        outdate(client, "end", "order:7")
        assert taken(taker) == [[7]]
        assert send(app, "end", 7) == first

    def test_all_that_was_to_replace_it_is_dropped(
        self, app: Celery, taker: Taker, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = send(app, "latest", 7, "a", countdown=60)
        dispatch(app, first)
        interrupt(monkeypatch, KilledError, UNCONFIRMED, lambda: send(app, "latest", 7, "b", countdown=60))
        outdate(client, "latest", "order:7")
        assert owners(app).acquire(LATEST, "abc", task_id="x", ttl_ms=DAY_MS, replaces=True).replaces
        assert taken(taker) == [[7, "a"]]
        dispatch(app, first)
        assert taken(taker) == [[7, "a"]]

    def test_what_it_was_to_replace_is_dropped(
        self, server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with app_of(server) as app, taking(server) as taker, connected(server) as connection:
            first = send(app, "latest", 7, "a", queue="other")
            interrupt(monkeypatch, KilledError, UNCONFIRMED, lambda: send(app, "latest", 7, "b", countdown=60))
            dispatch(app, first)
            assert taken(taker) == [[7, "b"]]
            assert taken(Taker(connection, ["other"], 100)) == []
            settle_all(taker, client)


class TestSettlement:
    def test_alone(self, app: Celery, taker: Taker, client: redis.Redis) -> None:
        send(app, "end", 7)
        assert taken(taker) == [[7]]
        taker.leases.settle_alone([message.delivery_tag for message in taker.messages])
        assert not traces(client)

    def test_a_late_one_frees_no_key(self, app: Celery, taker: Taker, client: redis.Redis) -> None:
        send(app, "end", 7)
        assert taken(taker) == [[7]]
        # A stock worker returns the message.
        client.zrem("unacked_index", taker.messages[0].delivery_tag)
        taker.settle()
        assert owned(app) == {("end", "order:7"): "running"}

    def test_a_task_that_was_sent_again_leaves_nothing(self, app: Celery, taker: Taker, client: redis.Redis) -> None:
        first = send(app, "end", 7)
        assert taken(taker) == [[7]]
        assert owners(app).acquire(END, "abc", task_id=first, ttl_ms=DAY_MS, running=token_of(taker)).owns
        assert owners(app).confirm(END, "abc")
        assert client.zcard(KEYS.replaced) == 1, "should it come again"
        taker.settle()
        assert not client.exists(KEYS.replaced)
        assert owned(app) == {("end", "order:7"): "delayed"}


class TestReturn:
    def test_a_task_that_was_sent_again_does_not_wait_again(
        self, app: Celery, taker: Taker, client: redis.Redis
    ) -> None:
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
    app: Celery, client: redis.Redis
) -> None:
    first = send(app, "latest", 7, countdown=60)
    assert owners(app).acquire(LATEST, "abc", task_id="x", ttl_ms=DAY_MS, replaces=True).replaces
    outdate(client, "latest", "order:7")
    # A call with any key looks at the owners whose time has passed.
    send(app, "end", 99)
    assert StoredTasks.of(app).cancel(first)
    owner = must(owners(app).get("latest", "order:7"))
    assert owner.until - datetime.now(timezone.utc) < timedelta(seconds=15)


def test_a_repeated_call_has_one_effect_and_one_answer(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = iter((1, 1, 2, 3, 3, 4, 5, 6, 6))
    monkeypatch.setattr(owners(app)._calls, "next_number", lambda: next(numbers))

    def acquire(token: str, task_id: str) -> AcquireReply:
        return owners(app).acquire(LATEST, token, task_id=task_id, ttl_ms=DAY_MS, replaces=True)

    first = acquire("abc", "x")
    outdate(client, "latest", "order:7")
    assert (acquire("abc", "x"), owned(app)) == (first, {})
    assert acquire("bcd", "x").owns
    assert owners(app).confirm(LATEST, "bcd")
    assert owners(app).release("latest", "order:7")
    assert owners(app).confirm(LATEST, "bcd")
    assert acquire("cde", "x").owns
    assert owners(app).confirm(LATEST, "cde")
    found, again = acquire("def", "y"), acquire("def", "y")
    assert found == again
    assert (found.replaces, found.task_id, found.state) == (True, "x", "delayed")


def test_what_is_replaced_may_wait_longer(server: RedisServer, client: redis.Redis) -> None:
    with app_of(server, redis_queue_unique={"plain": {"ttl": 100, "on_conflict": "replace"}}) as app:
        send(app, "plain", countdown=3600)
        assert owners(app).acquire(field_of("plain", ""), "abc", task_id="x", ttl_ms=1000, replaces=True).replaces
        outdate(client, "plain", "")
        send(app, "end", 99)
        assert must(owners(app).get("plain")).until - datetime.now(timezone.utc) > timedelta(minutes=55)


def test_a_call_forgets_what_has_ended(app: Celery, client: redis.Redis) -> None:
    send(app, "end", 7)
    outdate(client, "end", "order:7")
    client.zadd(KEYS.replaced, {"abc": 1})
    send(app, "end", 8)
    assert client.hkeys(KEYS.owners) == [field_of("end", "order:8").encode()]
    assert not client.exists(KEYS.replaced)


def test_a_message_that_lost_its_key_does_not_free_it(app: Celery, client: redis.Redis) -> None:
    assert owners(app).acquire(END, "abc", task_id="x", ttl_ms=DAY_MS).owns
    (owner,) = owners(app).list()
    assert owner.until - datetime.now(timezone.utc) < timedelta(seconds=15), "its sender may die"
    outdate(client, "end", "order:7")
    second = send(app, "end", 7)
    assert not any(owners(app).withdraw(END, "abc", sent=sent) for sent in (False, True))
    assert send(app, "end", 7) == second


def test_a_message_that_was_withdrawn_does_not_run(app: Celery, taker: Taker, client: redis.Redis) -> None:
    first = send(app, "latest", 7, "a")
    assert owners(app).acquire(LATEST, "abc", task_id="x", ttl_ms=DAY_MS, replaces=True).replaces
    assert owners(app).withdraw(LATEST, "abc", sent=False)
    assert client.zrange(KEYS.replaced, 0, -1) == [b"abc"], "should it have been sent after all"
    assert send(app, "latest", 7, "b") == first
    assert taken(taker) == [[7, "b"]]


class TestRevoke:
    """A task is revoked or cancelled while it is sent, replaced or revoked."""

    @pytest.mark.parametrize("task", ["end", "start", "latest", "hourly"])
    def test_what_a_dispatcher_may_have_sent_does_not_run(self, app: Celery, taker: Taker, task: str) -> None:
        first = send(app, task, 7, "a", countdown=60)
        entry = claimed(app, first)
        # The dispatcher has sent it, and hangs for longer than its lease.
        StoredTasks.of(app).queue.nack(entry, reason="test")
        app.control.revoke(first)
        assert not owned(app)
        second = send(app, task, 7, "b")
        assert second != first
        for _ in range(2):
            arrive(app, entry)
        assert taken(taker) == [[7, "b"]]
        taker.settle()
        assert owned(app) == ({("hourly", "order:7"): "running"} if task == "hourly" else {})

    def test_what_is_being_sent_keeps_its_key(self, app: Celery, taker: Taker) -> None:
        # A retry of another call waits under the same id.
        send(app, "start", 8, task_id="x")
        assert taken(taker) == [[8]]
        send(app, "start", 7, task_id="x", countdown=60)
        retry(app, taker.messages[0])
        taker.settle()
        entry = claimed(app, "x")
        assert StoredTasks.of(app).cancel("x") == CancelOutcome.MAYBE_SENT
        assert owned(app) == {("start", "order:7"): "delayed"}
        arrive(app, entry)
        assert taken(taker) == [[7]]

    def test_a_retry_behind_another_call_frees_its_key(self, app: Celery, taker: Taker, client: redis.Redis) -> None:
        send(app, "start", 8, task_id="x")
        assert taken(taker) == [[8]]
        send(app, "start", 7, task_id="x", countdown=60)
        retry(app, taker.messages[0])
        assert len(owned(app)) == 2
        app.control.revoke("x")
        assert not StoredTasks.of(app).count()
        settle_all(taker, client)

    def test_a_dead_letter_frees_its_key(self, app: Celery) -> None:
        first = send(app, "end", 7, countdown=60)
        StoredTasks.of(app).queue.nack(claimed(app, first), reason="test", dead=True)
        assert StoredTasks.of(app).cancel(first) == CancelOutcome.MAYBE_SENT
        assert not owned(app)

    def test_what_was_replaced_meanwhile_frees_its_key(
        self, app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = send(app, "latest", 7, "a", countdown=60)
        before(monkeypatch, MarkedEntries, "cancel_unique", lambda: send(app, "latest", 7, "b", countdown=60))
        assert StoredTasks.of(app).cancel(first)
        assert not StoredTasks.of(app).count()
        assert not traces(client)

    @pytest.mark.parametrize("sent_before", [False, True])
    def test_a_replacement_that_was_never_confirmed_is_removed_as_well(
        self, app: Celery, taker: Taker, monkeypatch: pytest.MonkeyPatch, sent_before: bool
    ) -> None:
        first = send(app, "latest", 7, "a", countdown=60)
        if sent_before:
            dispatch(app, first)
        interrupt(monkeypatch, KilledError, UNCONFIRMED, lambda: send(app, "latest", 7, "b", countdown=60))
        assert StoredTasks.of(app).cancel(first)
        assert not owned(app)
        assert not taken(taker)
        second = send(app, "latest", 7, "c")
        assert second != first
        assert taken(taker) == [[7, "c"]]

    def test_one_that_takes_long_leaves_the_key_to_what_is_being_sent(
        self, app: Celery, taker: Taker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = send(app, "end", 7, countdown=60)
        entry = claimed(app, first)
        assert not StoredTasks.of(app).cancel_many([f"other-{number}" for number in range(300)] + [first])[-1]
        (owner,) = owners(app).list()
        assert owner.until - datetime.now(timezone.utc) > timedelta(hours=23)
        arrive(app, entry)
        assert taken(taker) == [[7]]

    def test_one_that_redis_refuses_changes_nothing(
        self, app: Celery, taker: Taker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = send(app, "end", 7, countdown=60)

        def refuse(*_: Any, **__: Any) -> None:
            raise StoreUnavailableError

        cancel = {(MarkedEntries, "cancel_unique"): refuse}
        interrupt(monkeypatch, StoreUnavailableError, cancel, lambda: StoredTasks.of(app).cancel(first))
        assert owned(app) == {("end", "order:7"): "delayed"}
        dispatch(app, first)
        assert taken(taker) == [[7]]

    def test_without_the_app(self, app: Celery, client: redis.Redis) -> None:
        first, other = send(app, "end", 7, countdown=60), send(app, "plain", countdown=60)
        access = access_to(client, "redis_queue")
        removed = access.removal(access.delay_queue()).cancel_many([first, other])
        assert [removal.outcome for removal in removed] == [CancelOutcome.CANCELLED] * 2
        assert not traces(client)
        assert send(app, "end", 7) != first


class TestSecondCopy:
    """A message that another broker delivers twice: a dispatcher was killed before it noted that it had sent it."""

    @pytest.mark.parametrize("task", ["end", "start"])
    def test_its_retry_replaces_that_of_the_first(self, app: Celery, taker: Taker, task: str) -> None:
        first = send(app, task, 7, countdown=60)
        entry = claimed(app, first)
        StoredTasks.of(app).queue.ack(entry)
        for _ in range(2):
            arrive(app, entry)
        assert taken(taker) == [[7], [7]]
        for message in taker.messages:
            retry(app, message)
        assert [task.id for task in StoredTasks.of(app).list()] == [first]
        assert send(app, task, 7) == first
        taker.settle()
        dispatch(app, first)
        assert taken(taker) == [[7]]
        taker.settle()
        assert not owned(app)

    @pytest.mark.parametrize("returns", [False, True])
    def test_it_does_not_run_once_it_was_replaced(
        self, app: Celery, taker: Taker, client: redis.Redis, returns: bool
    ) -> None:
        first = send(app, "latest", 7, "a", countdown=60)
        entry = claimed(app, first)
        StoredTasks.of(app).queue.ack(entry)
        arrive(app, entry)
        if returns:
            assert taken(taker) == [[7, "a"]]
            taker.messages.pop().reject(requeue=True)
        assert send(app, "latest", 7, "b") == first
        dispatch(app)
        assert taken(taker) == [[7, "b"]]
        taker.settle()
        arrive(app, entry)
        assert taken(taker) == []
        assert not owned(app)
        token = Envelope.unpack(entry.payload, entry.id, entry.headers).headers["redis_queue_unique"][1]
        score = client.zscore(KEYS.replaced, token)
        seconds, _ = client.time()
        assert score is not None
        assert score / 1000 - seconds < 3700, "it is forgotten soon"

    def test_it_does_not_run_beside_its_retry(self, app: Celery, taker: Taker) -> None:
        entry = claimed(app, send(app, "end", 7, countdown=60))
        StoredTasks.of(app).queue.ack(entry)
        arrive(app, entry)
        assert taken(taker) == [[7]]
        retry(app, taker.messages[0])
        taker.settle()
        arrive(app, entry)
        assert taken(taker) == []
        assert owned(app) == {("end", "order:7"): "delayed"}

    def test_its_retry_waits_for_that_of_the_first(
        self, app: Celery, taker: Taker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = send(app, "start", 7, countdown=60)
        entry = claimed(app, first)
        StoredTasks.of(app).queue.ack(entry)
        for _ in range(2):
            arrive(app, entry)
        assert taken(taker) == [[7], [7]]
        one, two = taker.messages
        asked, acquire = threading.Event(), Owners.acquire

        def ask(self: Owners, *args: Any, **options: Any) -> AcquireReply:
            answer = acquire(self, *args, **options)
            if answer.is_open:
                asked.set()
            return answer

        monkeypatch.setattr(Owners, "acquire", ask)
        with ThreadPoolExecutor(1) as other:
            found: list[Future[None]] = []

            def begin() -> None:
                found.append(other.submit(retry, app, two))
                assert asked.wait(10), "it has to wait for the key"

            before(monkeypatch, Owners, "confirm", begin)
            retry(app, one)
            found[0].result()
        taker.settle()
        dispatch(app, first)
        assert taken(taker) == [[7]]
        assert not owned(app)


class TestRetry:
    """Celery drops a task whose retry raises, and what waits for it would wait for ever."""

    def test_one_for_which_others_wait_is_not_replaced(self, server: RedisServer, client: redis.Redis) -> None:
        with app_of(server, task_ignore_result=False, result_backend="cache+memory://") as app, taking(server) as taker:
            chain(app.tasks["latest"].si(7, "chain"), app.tasks["plain"].si(1)).apply_async()
            assert taken(taker) == [[7, "chain"]]
            (message,) = taker.messages
            behind = message.payload[2]["chain"]
            with running(app, message) as task:
                task.request.chain, task.request.callbacks, task.request.errbacks = behind, None, None
                with pytest.raises(Retry):
                    task.retry(countdown=60)
            taker.settle()
            send(app, "latest", 7, "other")
            for entry in StoredTasks.of(app).list():
                dispatch(app, entry.id)
            assert sorted(taken(taker)) == [[7, "chain"], [7, "other"]]
            assert [len(message.payload[2]["chain"] or ()) for message in taker.messages].count(1) == 1

    @pytest.mark.parametrize("task", ["latest", "end"])
    @pytest.mark.parametrize("retries", [1, 2])
    def test_one_of_a_task_that_another_task_sent_keeps_its_key(
        self, server: RedisServer, client: redis.Redis, task: str, retries: int
    ) -> None:
        with app_of(server, task_ignore_result=False, result_backend="cache+memory://") as app, taking(server) as taker:
            send(app, "plain", 1)
            assert taken(taker) == [[1]]
            with running(app, taker.messages[0]):
                first = send(app, task, 7)
            taker.settle()
            for _ in range(retries):
                assert taken(taker) == [[7]]
                retry(app, taker.messages[0])
                taker.settle()
                assert client.hget(KEYS.owner_ids.decode(), first)
                # Nobody else runs meanwhile.
                assert send(app, task, 7) == first
                dispatch(app, first)
            assert taken(taker) == [[7]]
            taker.settle()
            assert not owned(app)

    @pytest.mark.parametrize("task_id", ["x" * 300, "a\tb"])
    @pytest.mark.parametrize("countdown", [0, 60])
    def test_an_id_that_no_call_has_is_kept(self, server: RedisServer, task_id: str, countdown: int) -> None:
        with app_of(server) as app, taking(server) as taker, stock(server) as other:
            other.send_task("end", (7, "a"), task_id=task_id)
            taker.take(1)
            with running(app, taker.messages[0]) as task, pytest.raises(Retry):
                task.retry(countdown=countdown)

    def test_a_key_that_cannot_be_made_drops_nothing(self, server: RedisServer) -> None:
        with app_of(server) as app, taking(server) as taker, stock(server) as other:

            @app.task(name="made", shared=False, unique=Unique(lambda order: str(order["id"])))  # type: ignore[untyped-decorator]
            def made(order: dict[str, int]) -> None:
                """Do nothing."""

            other.send_task("made", ({"no": 1},))
            taker.take(1)
            retry(app, taker.messages[0])
            assert StoredTasks.of(app).count() == 1

    def test_a_dead_one_under_an_id_of_its_own_frees_its_key(self, app: Celery, taker: Taker) -> None:
        send(app, "start", 8, task_id="x")
        assert taken(taker) == [[8]]
        send(app, "start", 7, task_id="x", countdown=60)
        retry(app, taker.messages[0])
        taker.settle()
        (own,) = [entry.id for entry in StoredTasks.of(app).list() if entry.id != "x"]
        StoredTasks.of(app).queue.nack(claimed(app, own), reason="test", dead=True)
        assert send(app, "start", 8, "new") != "x"


class TestCall:
    def test_a_task_that_sends_itself_while_it_owns_its_key_is_told(
        self, app: Celery, taker: Taker, caplog: pytest.LogCaptureFixture
    ) -> None:
        first = send(app, "end", 7)
        assert taken(taker) == [[7]]
        with running(app, taker.messages[0]):
            assert [send(app, "end", 7) for _ in range(2)] == [first, first]
        (record,) = [record for record in caplog.records if "sends itself" in record.message]
        assert record.message.startswith("task end sends itself while it owns the key 'order:7' until its end")

    def test_one_that_cannot_be_written_leaves_nothing(self, app: Celery, client: redis.Redis) -> None:
        for countdown in (0, 60):
            with pytest.raises(EncodeError):
                send(app, "end", 7, object(), countdown=countdown)
        assert not any(client.exists(key) for key in OF_OWNERS)

    def test_the_result_of_a_kept_one_is_ignored_as_that_of_the_first(self, server: RedisServer) -> None:
        with app_of(server, result_backend="cache+memory://") as app:
            first, second = (app.tasks["end"].apply_async((7,)) for _ in range(2))
            assert first.id == second.id
            assert first.get(timeout=1) is second.get(timeout=1) is None

    def test_the_clock_of_its_host_does_not_matter(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        with app_of(server, redis_queue_unique={"plain": {"ttl": 60}}) as app:
            now = app.now
            monkeypatch.setattr(app, "now", lambda: now() + timedelta(seconds=90))
            due = datetime.now(timezone.utc) + timedelta(seconds=200)
            send(app, "plain", 1, eta=due)
            assert timedelta(seconds=59) < must(owners(app).get("plain")).until - due < timedelta(seconds=62)
