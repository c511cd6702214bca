"""Deferral: a deferred task keeps its message unchanged and is never lost; the decorator refuses invalid arguments."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from billiard.einfo import ExceptionInfo
from celery import Celery, shared_task
from celery.app.trace import build_tracer
from celery.exceptions import Ignore
from celery.worker.request import Request
from kombu.message import Message

from redis_queue import ConfigurationError, HeldLock, InvalidValueError, Lock, LockTakenError, current_lock
from redis_queue.celery import DelayedTasks, Dispatcher, serialized
from redis_queue.celery.consume.deferral import DEFERS, Deferred, defer, deferrable, wake
from redis_queue.celery.message.attempt import CALL, SENT
from redis_queue.celery.message.destinations import Destinations
from redis_queue.celery.message.reading import envelope_of_entry
from tests.support.celery.brokers import Broker
from tests.support.proxy import FaultProxy

pytestmark = pytest.mark.celery


def take(app: Celery) -> Message:
    """Take the next message from the app's queue, like a worker."""
    with app.connection_for_read() as connection:
        queue = app.amqp.queues[app.conf.task_default_queue].bind(connection.default_channel)
        message = queue.get(no_ack=True)
    assert isinstance(message, Message)
    return message


def shown(message: Message) -> dict[str, Any]:
    """Return the parts of a message that a worker sees."""
    properties = {
        name: value
        for name, value in message.properties.items()
        if name in ("correlation_id", "reply_to", "priority", "delivery_mode")
    }
    return {
        "body": bytes(message.body, "utf-8") if isinstance(message.body, str) else bytes(message.body),
        "type": (message.content_type, message.content_encoding),
        "headers": {name: value for name, value in message.headers.items() if name not in ("redelivered", CALL)},
        "properties": properties,
        "route": (message.delivery_info["exchange"], message.delivery_info["routing_key"]),
    }


@pytest.mark.parametrize("options", [{}, {"serializer": "pickle"}, {"compression": "zlib"}])
def test_message_is_returned_unchanged(broker: Broker, redis_url: str, client: redis.Redis, options: Any) -> None:
    app = broker.app(redis_queue_url=redis_url, accept_content=["json", "pickle"])
    delayed = DelayedTasks(app)
    result = app.send_task(
        "shop.remind",
        ("é", 1),
        {"a": {"b": [1]}},
        headers={"tenant": "a"},
        priority=3,
        expires=600,
        time_limit=300,
        shadow="other name",
        link=app.signature("shop.next", queue="elsewhere"),
        chord={"task": "shop.total", "args": [], "kwargs": {}, "options": {}},
        group_id="group",
        group_index=4,
        retries=2,
        root_id="root",
        parent_id="parent",
        **options,
    )
    came = take(app)
    defer(delayed, came, 60)
    entry = delayed.get(result.id)
    assert entry is not None
    assert (entry.retries, entry.deliveries) == (2, 0)
    assert delayed.run_now(result.id)
    dispatch(app, delayed)
    assert shown(take(app)) == shown(came)


def dispatch(app: Celery, delayed: DelayedTasks) -> None:
    """Dispatch due entries."""
    dispatcher = Dispatcher(app, delayed.queue)
    dispatcher.run()
    dispatcher.close()


class TestConflicts:
    @pytest.fixture
    def app(self, client: redis.Redis, redis_url: str) -> Celery:
        """An app on the shared server."""
        app = Celery("defer", broker=f"redis+socket://{redis_url.removeprefix('unix://').partition('?')[0]}")
        app.conf.redis_queue_url = redis_url
        return app

    @pytest.fixture
    def delayed(self, app: Celery) -> DelayedTasks:
        """Its DelayedTasks."""
        return DelayedTasks(app)

    def test_waiting_call_with_the_same_id_stays_and_both_run(self, app: Celery, delayed: DelayedTasks) -> None:
        app.send_task("shop.remind", ("old",), task_id="one-customer")
        came = take(app)
        app.send_task("shop.remind", ("new",), task_id="one-customer", countdown=60)
        defer(delayed, came, 1)
        assert {entry.id: entry.args for entry in delayed.list()} == {
            "one-customer": "('new',)",
            "one-customer~retry": "('old',)",
        }
        assert delayed.run_now("one-customer")
        assert delayed.run_now("one-customer~retry")
        dispatch(app, delayed)
        assert {take(app).headers["id"] for _ in range(2)} == {"one-customer"}

    def test_waiting_attempt_of_the_same_call_stays(self, app: Celery, delayed: DelayedTasks) -> None:
        app.send_task("shop.remind", ("x",), task_id="one-customer", countdown=60)
        delayed.run_now("one-customer")
        dispatch(app, delayed)
        came = take(app)
        defer(delayed, came, 60)
        defer(delayed, came, 3600)
        (entry,) = delayed.list()
        assert entry.due_at < datetime.now(timezone.utc) + timedelta(seconds=120)

    @pytest.mark.parametrize("same", [True, False])
    def test_entry_held_by_a_dispatcher_is_replaced_if_it_is_the_same_call(
        self, app: Celery, delayed: DelayedTasks, same: bool
    ) -> None:
        result = app.send_task("shop.remind", ("x",), countdown=60)
        delayed.run_now(result.id)
        (held,) = delayed.queue.claim(1)
        # Published but not acked yet: the worker may be faster than the dispatcher.
        headers = envelope_of_entry(app, held, Destinations(app)).headers if same else {}
        app.send_task("shop.remind", ("x",), task_id=result.id, headers={CALL: headers[CALL]} if same else None)
        defer(delayed, take(app), 60)
        assert delayed.queue.ack(held) is not same
        assert [entry.id for entry in delayed.list()] == [result.id if same else f"{result.id}~retry"]

    def test_only_an_unchanged_deferred_entry_is_woken(self, app: Celery, delayed: DelayedTasks) -> None:
        changes: dict[str, Any] = {
            "waits": lambda _: None,
            "replaced": lambda id_: app.send_task("shop.remind", task_id=id_, countdown=3600),
            "put off": lambda id_: delayed.reschedule(id_, countdown=3600),
        }
        for id_, change in changes.items():
            app.send_task("shop.remind", task_id=id_)
            defer(delayed, take(app), 60.5)
            change(id_)
        assert [wake(delayed, id_) for id_ in [*changes, "unknown"]] == [True, False, False, False]
        found = [delayed.get(id_) for id_ in changes]
        now = datetime.now(timezone.utc)
        assert [entry is not None and entry.due_at > now for entry in found] == [False, True, True]


def remind(*_: Any) -> None:
    """A task body that does nothing."""


class Recorded(Request):  # type: ignore[misc]
    """A custom class of requests."""

    seen: list[Any]

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> None:
        """Record the arguments."""
        error = exc_info.exception.exc
        type(self).seen.append((type(error), getattr(error, "requeue", None)))


class TestUnavailableStore:
    @pytest.fixture
    def request_of(self, client: redis.Redis, redis_url: str, proxy: FaultProxy) -> Any:
        """Makes the request of a task whose store is reached through the proxy."""
        app = Celery("defer", broker=f"redis+socket://{redis_url.removeprefix('unix://').partition('?')[0]}")
        app.conf.redis_queue_url = proxy.url
        DelayedTasks(app)
        app.task(remind, name="shop.remind", shared=False)

        def make(**options: Any) -> Any:
            app.send_task("shop.remind", **options)
            message = take(app)
            Recorded.seen = []
            return deferrable(Recorded)(message, app=app, task=app.tasks["shop.remind"])

        return make

    @pytest.mark.parametrize("early", [False, True])
    def test_unavailable_store_loses_no_task(self, request_of: Any, proxy: FaultProxy, early: bool) -> None:
        request = request_of()
        request.acknowledged = early
        proxy.mode = "refuse"
        proxy.cut()
        request.on_failure(info(Deferred("customer:1", 1.0)))
        ((kind, requeue),) = Recorded.seen
        # Returned to the broker; if the broker has lost it too, the task fails visibly.
        assert (kind.__name__, requeue) == (("StoreUnavailableError", None) if early else ("Reject", True))

    def test_other_failures_propagate(self, request_of: Any) -> None:
        request = request_of()
        request.on_failure(info(Ignore()))
        assert Recorded.seen == [(Ignore, None)]

    def test_mark_is_not_in_headers_that_a_retry_copies(self, request_of: Any) -> None:
        request = request_of(headers={"tenant": "a"})
        assert request.request_dict["properties"][DEFERS]
        assert {**request._context.headers, SENT: 0} == {"tenant": "a", SENT: 0}
        assert DEFERS not in request.message.properties


def info(error: Exception) -> Any:
    """Return *error* as the pool reports it."""
    try:
        raise error
    except type(error):
        return ExceptionInfo()


@pytest.fixture
def proxy(redis_server: Any) -> Any:
    """A proxy in front of the shared server."""
    with FaultProxy(redis_server.address) as proxy:
        yield proxy


class TestWithoutAWorker:
    @pytest.fixture
    def app(self, client: redis.Redis, redis_url: str) -> Celery:
        """An app without a broker."""
        app = Celery("eager", broker="memory://", set_as_current=False)
        app.conf.update(redis_queue_url=redis_url, task_always_eager=True, task_eager_propagates=True)
        return app

    @pytest.fixture
    def taken(self, client: redis.Redis) -> Iterator[HeldLock]:
        """The lock of customer 1, held by another thread."""
        found: list[HeldLock | None] = []
        thread = threading.Thread(target=lambda: found.append(Lock("customer:1", client).acquire()))
        thread.start()
        thread.join()
        assert found[0] is not None
        with found[0]:
            yield found[0]

    def test_a_direct_or_eager_call_holds_the_lock_or_raises(self, app: Celery, request: pytest.FixtureRequest) -> None:
        @app.task(shared=False)
        @serialized(key="customer:{customer}")
        def run(customer: int, again: bool = False) -> str:
            lock = current_lock()
            assert lock is not None
            # A task that calls itself would wait for its own lock.
            return run(customer) if again else lock.lock.name

        assert run(1) == run.delay(1).get() == run(customer=1, again=True) == "customer:1"
        request.getfixturevalue("taken")
        for call in (run, run.delay):
            with pytest.raises(LockTakenError, match="another holder has the lock 'customer:1'"):
                call(1)
        assert run(2) == "customer:2"

    def test_direct_and_delayed_calls_of_a_bound_task_give_the_same_key(self, app: Celery) -> None:
        @app.task(bind=True, shared=False)
        @serialized(key=lambda customer, size=1: f"c{customer}:{size}")
        def bound(self: Any, customer: int, size: int = 1) -> str:
            lock = current_lock()
            assert lock is not None
            return lock.lock.name

        assert bound(3) == "c3:1"
        assert bound.delay(3, size=2).get() == "c3:2"

    def test_celery_still_checks_the_arguments(self, app: Celery) -> None:
        @app.task(shared=False)
        @serialized(key="customer:{customer}")
        def run(customer: int) -> None: ...

        app.conf.task_always_eager = False
        with pytest.raises(TypeError, match="positional argument"):
            run.delay(1, 2, 3)

    def test_invalid_arguments_are_a_clear_error_of_the_decorator(self, app: Celery) -> None:
        def run(customer: int) -> None: ...

        with pytest.raises(InvalidValueError, match="unknown argument 'client': run takes customer"):
            serialized(key="{client}")(run)
        with pytest.raises(InvalidValueError, match="retry_in=nan"):
            serialized(key="x", retry_in=float("nan"))(run)
        with pytest.raises(InvalidValueError, match="lease=0"):
            serialized(key="x", lease=0)(run)
        for task in (app.task(run, shared=False), shared_task(run)):
            with pytest.raises(ConfigurationError, match="put it below"):
                serialized(key="x")(task)
        with pytest.raises(InvalidValueError, match="of 7: must be a function"):
            serialized(key="x")(7)  # type: ignore[type-var]

    @pytest.mark.parametrize("delayed", [False, True])
    def test_a_worker_that_would_drop_the_message_fails_the_task(self, app: Celery, delayed: bool) -> None:
        @app.task(shared=False, name="shop.once")
        @serialized(key="x")
        def once() -> None:
            raise AssertionError

        if delayed:
            DelayedTasks(app)
        # Like a worker without the extension.
        trace = build_tracer(once.name, once, app=app)
        result = trace("id", (), {}, {"id": "id", "is_eager": False, "properties": {}}).retval
        assert isinstance(result, ExceptionInfo)
        error = getattr(result.exception, "exc", result.exception)
        assert isinstance(error, ConfigurationError)
        assert str(error) == "shop.once is serialized: " + (
            "define it before the worker starts" if delayed else "its app needs DelayedTasks(app)"
        )

    def test_started_task_is_not_deferred(self, app: Celery, taken: HeldLock) -> None:
        @app.task(bind=True, shared=False, name="shop.twice", autoretry_for=(Exception,))
        @serialized(key="customer:{customer}")
        def twice(self: Any, customer: int) -> str:
            with pytest.raises(LockTakenError):
                self._orig_run(1)
            return "went on"

        DelayedTasks(app)
        trace = build_tracer(twice.name, twice, app=app)
        request = {"id": "id", "is_eager": False, "properties": {DEFERS: True}}
        assert trace("id", (2,), {}, dict(request)).retval == "went on"
        refused = trace("id", (1,), {}, dict(request)).retval
        assert isinstance(refused, ExceptionInfo)
        error = getattr(refused.exception, "exc", refused.exception)
        assert isinstance(error, Deferred)
        assert error.lock == "customer:1"

    def test_a_bare_function_does_not_know_its_app(self) -> None:
        def run() -> None: ...

        with pytest.raises(ConfigurationError, match=r"run\(\) is serialized: call its task"):
            serialized(key="x")(run)()
