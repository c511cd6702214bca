"""A call that skips Celery puts the same message into the same place as Celery itself."""

from __future__ import annotations

import base64
import functools
import json
import os
import re
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from itertools import product
from typing import Any
from uuid import UUID

import pytest
import redis
from celery import Celery, Task, group, signals
from celery.result import GroupResult
from celery.utils.saferepr import saferepr
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from kombu import pools
from kombu.compression import decompress
from kombu.messaging import Producer

from redis_queue.celery import DurableTasks
from redis_queue.celery.message.headers import CALL, ETA, SENT
from redis_queue.celery.publish.batch import PartlySentError
from redis_queue.celery.publish.kinds import Kinds, short_repr
from redis_queue.celery.publish.lists import BrokerLists
from redis_queue.celery.publish.send import SentMessage
from tests.support.celery.brokers import close_results, declared, exchange_of, running, stored_messages
from tests.support.servers import RedisServer, client_options
from tests.support.wait import wait_until

ADD, SET, ELSEWHERE = "shop.add", "shop.set", "elsewhere.task"
QUIET = {"result_backend": "disabled://"}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "plain": QUIET,
    "results": {},
    "protocol 1": {**QUIET, "task_protocol": 1},
    "yaml": {**QUIET, "task_serializer": "yaml"},
    "pickle": {**QUIET, "task_serializer": "pickle"},
    "compressed": {**QUIET, "task_compression": "zlib"},
    "prefix": {**QUIET, "broker_transport_options": {"global_keyprefix": "shop:"}},
    "steps": {**QUIET, "broker_transport_options": {"priority_steps": [0, 5], "sep": ":"}},
    "routes": {**QUIET, "task_routes": {ADD: {"queue": "routed", "priority": 3}}},
    "inherited": {**QUIET, "task_inherit_parent_priority": True},
}


class Shop:
    """An app and the same one with DurableTasks, each in a database of its own."""

    def __init__(
        self, redis_server: RedisServer, change: Callable[[Celery], Any] | None = None, **settings: Any
    ) -> None:
        urls = [redis_server.url.replace("db=0", f"db={number}") for number in (1, 2)]
        self.databases = [redis.Redis.from_url(url, **client_options()) for url in urls]
        self.apps = [shop_app(f"redis+socket://{redis_server.socket}?virtual_host={n}", **settings) for n in (1, 2)]
        self.app = self.apps[1]
        for app in self.apps if change else ():
            change(app)
        self.delayed = DurableTasks(self.app, leases=False)

    def close(self) -> None:
        for app, database in zip(self.apps, self.databases, strict=True):
            close_results(app)
            app.close()
            database.close()
        # Apps with one broker share connections.
        pools.reset()

    def compare(self, call: Callable[[Celery], Any], times: int = 1) -> Any:
        """Make *call* with each app; return the messages in the lists, which are the same, as is an error."""
        found: list[Any] = []
        for app, database in zip(self.apps, self.databases, strict=True):
            try:
                results = [result for _ in range(times) for result in _each(call(app))]
                outcome: Any = [result.ignored for result in results]
            except Exception as error:  # noqa: BLE001 - both raise the same one
                results, outcome = [], (type(error), str(error))
            found.append((messages_in(database, [result.id for result in results]), outcome))
        assert found[1] == found[0]
        return found[1][0]


def _each(result: Any) -> list[Any]:
    """Return the results of a group, or the one of another call."""
    return result.results if isinstance(result, GroupResult) else [result]


def shop_app(url: str, **settings: Any) -> Celery:
    """Return an app whose broker, results and store are at *url*."""
    app = Celery("shop", set_as_current=False)
    common = {"broker_url": url, "result_backend": url, "task_default_queue": "shop", "redis_queue_url": url}
    queues = (
        declared("shop"),
        declared("routed"),
        declared("direct", exchange_of("goods", "direct"), routing_key="goods"),
        declared("topic", exchange_of("topics", "topic"), routing_key="shop.#"),
        declared("all", exchange_of("all", "fanout")),
    )
    app.conf.update({**common, "task_queues": queues, **settings})

    @app.task(name=ADD, shared=False)
    def add(*args: Any, **kwargs: Any) -> None:
        """Have no options."""

    @app.task(name=SET, shared=False, ignore_result=True, time_limit=60, serializer="json")
    def set_(*args: Any, **kwargs: Any) -> None:
        """Have options."""

    return app


def messages_in(database: redis.Redis, ids: list[str]) -> dict[str, list[tuple[bytes, bytes]]]:
    """Remove and return the messages of all lists, without what differs in any two messages."""
    found: dict[str, list[tuple[bytes, bytes]]] = {}
    for key in sorted(map(bytes, database.keys("*"))):
        if database.type(key) == b"list":
            elements: list[Any] = database.lrange(key, 0, -1)
            found[key.decode()] = [comparable(element, ids) for element in elements]
            database.delete(key)
    return found


def comparable(element: bytes, ids: list[str]) -> tuple[bytes, bytes]:
    """Return an element of a list without what differs in any two messages, and its body."""
    message = json.loads(element)
    body, head = base64.b64decode(message["body"]), element.replace(message["body"].encode(), b"")
    if compression := message["headers"].get("compression"):
        body = decompress(body, compression)
    for position, id_ in enumerate(ids):
        head, body = (part.replace(str(id_).encode(), b"id %d" % position) for part in (head, body))
    head = re.sub(rb'"(delivery_tag|reply_to|expiration)": "[^"]*"', rb'"\1": ""', head)
    return re.sub(rb', "%s": \d+' % SENT.encode(), b"", head), body


@pytest.fixture(params=["plain"])
def shop(request: pytest.FixtureRequest, redis_server: RedisServer, client: redis.Redis) -> Iterator[Shop]:
    """The two apps with empty databases."""
    shop = Shop(redis_server, **CONFIGURATIONS[request.param])
    yield shop
    shop.close()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The messages that Celery makes for an app with DurableTasks."""
    found: list[Any] = []
    of = SentMessage.of
    monkeypatch.setattr(SentMessage, "of", lambda message, send: (found.append(message), of(message, send))[1])
    return found


texts = st.text(max_size=20) | st.sampled_from(["it's", "é'\"\\", "x" * 1100, "\ud800", "\0", "\n", "0" * 1015])
plain_values = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | texts
SPECIAL = (datetime(2030, 1, 1, tzinfo=timezone.utc), UUID(int=7), Decimal("1.50"), b"raw", b"\xff", {"a": (1, [2])})
values = st.recursive(
    plain_values | st.sampled_from(SPECIAL),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3) | st.tuples(inner, inner),
    max_leaves=6,
)
positional = st.none() | st.lists(values, max_size=3) | st.tuples() | st.tuples(values) | st.tuples(values, values)
named = st.none() | st.dictionaries(texts, values, max_size=3)
# Apart: where a call of a kind with those of both could be taken for another one, most calls must have a kind.
OF_A_KIND: dict[str, Any] = {
    "queue": st.sampled_from(["shop", "direct", "topic", "all", "made-up"]),
    "priority": st.integers(0, 9),
    "delivery_mode": st.sampled_from([1, 2]),
    "ignore_result": st.booleans(),
    "time_limit": st.just(9),
    "soft_time_limit": st.just(3),
    "retry": st.booleans(),
    "root_id": texts,
    "parent_id": texts,
    "group_id": texts,
    "group_index": st.integers(0, 5),
    "countdown": st.sampled_from([0, 0.0, None]),
    "add_to_parent": st.booleans(),
    "serializer": st.just("json"),
}
OF_NO_KIND: dict[str, Any] = {
    "serializer": st.sampled_from(["pickle", "yaml", "msgpack"]),
    "compression": st.sampled_from(["zlib", "bzip2"]),
    "headers": st.just({"tenant": "é"}),
    "expires": st.just(datetime(2090, 1, 1, tzinfo=timezone.utc)),
    "shadow": st.sampled_from(["", "other"]),
    "retry_policy": st.just({"max_retries": 1}),
    "retries": st.integers(0, 2),
    "time_limit": st.just(5.5),
    "priority": st.just(True),
    "reply_to": st.just("me"),
    "link": st.just([]),
    "stamped_headers": st.just(["stamp"]),
}
ROUTES = (
    {"exchange": "goods", "routing_key": "goods"},
    {"exchange": "topics", "routing_key": "shop.a"},
    {"exchange": "", "routing_key": "elsewhere"},
    {"routing_key": "shop.b"},
)
given_options = st.builds(
    lambda own, rest, route: {**own, **rest, **route, **({"stamp": "s"} if "stamped_headers" in rest else {})},
    st.fixed_dictionaries({}, optional=OF_A_KIND),
    st.just({}) | st.just({}) | st.fixed_dictionaries({}, optional=OF_NO_KIND),
    st.just({}) | st.sampled_from(ROUTES),
)
names = st.sampled_from([ADD, SET, ELSEWHERE])


def send(app: Celery, name: str, args: Any, kwargs: Any, **options: Any) -> Any:
    """Call a task of *app*, or one that it does not have."""
    if name in app.tasks:
        return app.tasks[name].apply_async(args, kwargs, **options)
    return app.send_task(name, args, kwargs, **options)


@pytest.mark.parametrize("shop", CONFIGURATIONS, indirect=True)
@given(name=names, calls=st.lists(st.tuples(positional, named), min_size=3, max_size=3), options=given_options)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_call_puts_the_message_of_celery_into_its_list(
    shop: Shop, name: str, calls: list[Any], options: dict[str, Any]
) -> None:
    for args, kwargs in calls:
        shop.compare(lambda app, args=args, kwargs=kwargs: send(app, name, args, kwargs, **options))
        shop.compare(lambda app, args=args, kwargs=kwargs: app.send_task(name, args=args, kwargs=kwargs, **options))


def send_group(app: Celery, members: list[Any], **options: Any) -> GroupResult:
    """Send a group of an app's tasks; *members* are name, arguments and options of each."""
    signatures = [app.tasks[name].signature(args, kwargs, **own) for name, args, kwargs, own in members]
    return group(signatures, app=app).apply_async(task_id="group", **options)


# Without exchanges: which queues they have depends on what was sent before.
EXTRA = {name: OF_NO_KIND[name] for name in ("compression", "expires", "shadow", "priority", "link")}
own_options = st.fixed_dictionaries({}, optional={**OF_A_KIND, **EXTRA, "queue": st.sampled_from(["shop", "new"])})
members = st.tuples(st.sampled_from([ADD, SET]), positional, named, st.just({}) | own_options)


@pytest.mark.parametrize("shop", CONFIGURATIONS, indirect=True)
@given(several=st.lists(members, min_size=1, max_size=3), options=st.sampled_from([{}, {}, {"priority": 3}]))
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_group_puts_the_messages_of_celery_into_their_lists(
    shop: Shop, several: list[Any], options: dict[str, Any]
) -> None:
    try:
        for (name, args, kwargs, own), app in product(several, shop.apps):
            send(app, name, args, kwargs, **{**own, **options})
    except Exception:  # noqa: BLE001 - a group that fails in its middle is told as a batch tells it
        reject()
    finally:
        for database in shop.databases:
            messages_in(database, [])
    order = [member for member in several for _ in range(3)] + several
    for _ in range(2):
        shop.compare(lambda app: send_group(app, order, **options))


def test_a_task_is_not_sent_like_one_that_another_signature_sent(shop: Shop) -> None:
    def call(app: Celery) -> Any:
        add = app.tasks[ADD]
        by_add = lambda _, args=None, kwargs=None, **given: add.apply_async(args, kwargs, **given, priority=3)  # noqa: E731
        calling = app.task(name="calls", shared=False, apply_async=by_add)(_each)
        several = [group([add.s(1)], app=app).set(task_id="group"), add.s(2), calling.s(3), add.s(4)]
        results = shop.delayed.send_many(several) if app is shop.app else [one.apply_async() for one in several]
        return GroupResult("all", [found for result in results for found in _each(result)])

    assert all(shop.compare(call) for _ in range(3))


def stored(app: Celery, id_: str) -> Any:
    """Remove and return the stored message of a task, without what differs in any two messages."""
    (envelope,) = stored_messages(app)
    DurableTasks.of(app).cancel(id_)
    headers = [(name, type(value) if name in (CALL, ETA, SENT) else value) for name, value in envelope.headers.items()]
    rest = (envelope.content_type, envelope.content_encoding, envelope.exchange, envelope.routing_key, envelope.declare)
    found = repr((headers, list(envelope.properties.items()), rest)).replace(id_, "own id")
    compression = envelope.headers.get("compression")
    body = decompress(envelope.body, compression) if compression else envelope.body
    return found, body.replace(id_.encode(), b"own id"), envelope.expires_at is None


@pytest.mark.parametrize("shop", CONFIGURATIONS, indirect=True)
@given(name=names, calls=st.lists(st.tuples(positional, named), min_size=3, max_size=3), options=given_options)
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_call_with_a_delay_stores_the_message_of_celery(
    shop: Shop, name: str, calls: list[Any], options: dict[str, Any]
) -> None:
    def outcome(args: Any, kwargs: Any) -> Any:
        try:
            result = send(shop.app, name, args, kwargs, **{**options, "countdown": 60})
        except Exception as error:  # noqa: BLE001 - both raise the same one
            return type(error), str(error)
        return stored(shop.app, result.id), result.ignored

    for args, kwargs in calls:
        found = outcome(args, kwargs)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Kinds, "call", lambda *_: None)
            assert outcome(args, kwargs) == found


@given(
    value=st.lists(values) | st.lists(plain_values).map(tuple) | st.dictionaries(plain_values, plain_values),
    size=st.sampled_from([1024, 20, 1]),
    levels=st.sampled_from([{}, {"maxlevels": 1}, {"maxlevels": 0}]),
)
@settings(max_examples=300, deadline=None)
def test_short_repr_is_that_of_celery(value: Any, size: int, levels: dict[str, int]) -> None:
    assert short_repr(value, size, levels) == saferepr(value, size, **levels)


@pytest.mark.parametrize("shop", ["plain", "results", "prefix", "steps", "routes"], indirect=True)
@pytest.mark.parametrize("countdown", [None, 60])
def test_celery_makes_only_the_first_message_of_a_kind(shop: Shop, made: list[Any], countdown: int | None) -> None:
    task = shop.app.tasks[ADD]
    # Celery's pool makes its connection when a message is sent.
    task.delay("first")
    for number in range(5):
        task.apply_async((number,), {"n": number}, countdown=countdown)
        with shop.app.producer_or_acquire() as producer:
            task.apply_async([number], countdown=countdown, producer=producer)
        shop.app.send_task(ELSEWHERE, (number,), countdown=countdown)
        shop.app.send_task(ELSEWHERE, args=[number], kwargs={}, countdown=countdown)
        shop.delayed.send_many([task.s(number)] * 2, countdown=countdown)
    assert [message.headers["task"] for message in made] == [ADD, ADD, ELSEWHERE]


def test_calls_of_thousands_of_kinds_are_those_of_celery(shop: Shop) -> None:
    for number in range(1001):
        shop.app.send_task(ELSEWHERE, (number,), queue="made-up", priority=number)
    messages_in(shop.databases[1], [])
    assert len(shop.delayed.capture._kinds._known) <= 1000
    for _ in range(3):
        shop.compare(lambda app: app.send_task(ELSEWHERE, (1,), queue="made-up", priority=1000))


def test_threads_do_not_make_each_other_forget(shop: Shop, made: list[Any]) -> None:
    def work(queue: str) -> list[str]:
        found: list[str] = []
        for number in range(20):
            found += [result.id for result in shop.delayed.send_many([task.s(number).set(queue=queue)] * 10)]
            found.append(task.apply_async((number,), queue=queue).id)
        return found

    task = shop.app.tasks[ADD]
    queues = [f"queue-{number}" for number in range(8)]
    task.delay("first")
    for queue in queues:
        task.apply_async(("first",), queue=queue)
    with ThreadPoolExecutor(8) as pool:
        sent = dict(zip(queues, pool.map(work, queues), strict=True))
    for queue in queues:
        elements: list[Any] = shop.databases[1].lrange(queue, 0, -1)
        assert [json.loads(element)["headers"]["id"] for element in elements[-2::-1]] == sent[queue]
    assert len(made) == 1 + len(queues)


def in_a_child(call: Callable[[], Any]) -> None:
    """Run *call* in a forked process."""
    child = os.fork()
    if not child:
        code = 1
        try:
            call()
            code = 0
        except BaseException:  # noqa: BLE001 - the parent sees the exit code
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_process_sends_over_a_connection_of_its_own(shop: Shop, made: list[Any]) -> None:
    task = shop.app.tasks[ADD]

    def send_some() -> None:
        for number in range(3):
            task.delay("child", number)
        shop.delayed.send_many([task.s("child", 3), task.s("child", 4)])
        assert len(made) == 2

    for number in range(2):
        task.delay("parent", number)
    in_a_child(send_some)
    task.delay("parent", 2)
    found: list[Any] = shop.databases[1].lrange("shop", 0, -1)
    order = [json.loads(base64.b64decode(json.loads(element)["body"]))[0] for element in found[::-1]]
    assert order == [["parent", 0], ["parent", 1], *(["child", number] for number in range(5)), ["parent", 2]]


def by_override(app: Celery, patch: pytest.MonkeyPatch) -> None:
    """Override send_task in the class of the app."""
    del patch

    def send_task(self: Celery, name: str, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return Celery.send_task(self, name, args, kwargs, headers={"tenant": args[0]}, **options)

    app.__class__ = type("Shop", (Celery,), {"send_task": send_task})


def by_attribute(app: Celery, patch: pytest.MonkeyPatch) -> None:
    """Replace send_task of this app only."""
    send_task = app.send_task

    def with_priority(name: str, args: Any, kwargs: Any, **options: Any) -> Any:
        return send_task(name, args, kwargs, **{**options, "priority": args[0]})

    patch.setattr(app, "send_task", with_priority)


def by_wrapper(app: Celery, patch: pytest.MonkeyPatch) -> None:
    """Wrap apply_async of a task, as monitoring does."""
    task: Any = type(app.tasks[ADD])
    apply_async = task.apply_async

    @functools.wraps(apply_async)
    def wrapped(self: Task, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        return apply_async(self, args, kwargs, **{**options, "headers": {"trace": str(args)}})

    patch.setattr(task, "apply_async", wrapped)


def by_message(app: Celery, patch: pytest.MonkeyPatch) -> None:
    """Wrap the creation of messages of this app only."""
    create = app.amqp.create_task_message

    def create_task_message(task_id: str, name: str, args: Any = None, *rest: Any, **options: Any) -> Any:
        message = create(task_id, name, args, *rest, **options)
        message.headers["tenant"] = args[0]
        return message

    patch.setattr(app.amqp, "create_task_message", create_task_message)


def by_publish(app: Celery, patch: pytest.MonkeyPatch) -> None:
    """Wrap kombu's publish, as monitoring does."""
    del app
    publish = Producer.publish

    @functools.wraps(publish)
    def wrapped(self: Any, body: Any, *args: Any, headers: Any = None, **options: Any) -> Any:
        return publish(self, body, *args, headers={**headers, "tenant": str(body[0][0])}, **options)

    patch.setattr(Producer, "publish", wrapped)


def by_shadow_name(app: Celery, patch: pytest.MonkeyPatch) -> None:
    """Give each call except the first its own shadow name."""

    def shadow_name(self: Task, args: Any, *_: Any) -> str | None:
        return f"{self.name} {args[0]}" if args[0] else None

    patch.setattr(type(app.tasks[ADD]), "shadow_name", shadow_name)


def by_model(app: Celery, patch: pytest.MonkeyPatch) -> None:
    """Convert arguments like Celery with pydantic=True."""
    dump = staticmethod(lambda args, kwargs: ([{"model": arg} for arg in args], kwargs))
    patch.setattr(type(app.tasks[ADD]), "_dump_pydantic_arguments", dump, raising=False)


def by_settings(app: Celery, patch: pytest.MonkeyPatch) -> None:
    """Change settings that Celery reads for each call."""
    del patch
    app.conf.task_send_sent_event = True
    app.amqp.argsrepr_maxsize = 2


def by_task(app: Celery, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(app.tasks[ADD], "ignore_result", True)


def by_registration(app: Celery, patch: pytest.MonkeyPatch) -> None:
    """Register another task under the name."""
    del patch
    app.tasks.pop(ADD)

    @app.task(name=ADD, shared=False, soft_time_limit=7)
    def add(*args: Any) -> None:
        """Have a time limit."""


def by_queue(app: Celery, patch: pytest.MonkeyPatch) -> None:
    """Declare the default queue anew: its exchange chooses the list."""
    del patch
    app.amqp.queues.add(declared("shop", exchange_of("topics", "topic"), routing_key="shop.new"))


def by_route(app: Celery, patch: pytest.MonkeyPatch) -> None:
    del patch
    router: Any = app.amqp.router
    router.routes = [*router.routes, lambda _name, args, *_, **__: {"queue": "routed" if args[0] % 2 else "shop"}]


CHANGES = [
    *(by_override, by_attribute, by_wrapper, by_message, by_publish, by_shadow_name, by_model, by_settings, by_task),
    *(by_registration, by_queue, by_route),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(change.__name__))
@pytest.mark.parametrize("calls_before", [0, 3])
def test_a_change_of_celery_applies_to_the_next_message(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, change: Any, calls_before: int
) -> None:
    for number in range(calls_before):
        shop.compare(lambda app, number=number: app.tasks[ADD].apply_async((number,)))
    for app in shop.apps[:1] if change is by_publish else shop.apps:
        change(app, monkeypatch)
    for number in range(4):
        shop.compare(lambda app, number=number: app.tasks[ADD].apply_async((number,)))
    shop.compare(lambda app: send_group(app, [(ADD, (number,), {}, {}) for number in range(4)]))


@pytest.mark.parametrize("change", [by_override, by_attribute, by_message])
def test_what_the_app_had_in_place_of_a_function_of_celery_gets_each_call(
    redis_server: RedisServer, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    del client
    shop = Shop(redis_server, lambda app: change(app, monkeypatch), **QUIET)
    for number in range(4):
        shop.compare(lambda app, number=number: app.tasks[ADD].apply_async((number,)))
    shop.close()


def test_the_queues_of_an_exchange_are_those_of_the_moment(shop: Shop) -> None:
    for number in range(3):
        shop.compare(lambda app: app.send_task(ELSEWHERE, exchange="goods", routing_key="goods"), 2)
        for app in shop.apps:
            with app.connection_for_write() as connection:
                queue = declared(f"more {number}", exchange_of("goods", "direct"), routing_key="goods")
                queue(connection.default_channel).declare()
    assert len(shop.compare(lambda app: app.send_task(ELSEWHERE, exchange="goods", routing_key="goods"))) >= 3


def test_a_producer_of_the_caller_sends_as_it_would(shop: Shop) -> None:
    def compressed(app: Celery) -> Any:
        with app.producer_or_acquire() as producer:
            producer.compression = "zlib"
            try:
                return app.tasks[ADD].apply_async((1,), producer=producer)
            finally:
                producer.compression = None

    def own(app: Celery) -> Any:
        with app.producer_or_acquire() as producer:
            producer.publish = functools.partial(producer.publish, priority=3)
            try:
                return app.tasks[ADD].apply_async((1,), producer=producer)
            finally:
                del producer.publish

    for call in (lambda app: app.tasks[ADD].delay(1), compressed, own):
        shop.compare(call, 2)


def test_messages_that_kombu_holds_back_are_sent_at_the_end(shop: Shop) -> None:
    task = shop.app.tasks[ADD]
    for _ in range(2):
        task.delay(1)
    messages_in(shop.databases[1], [])
    with shop.app.producer_or_acquire() as producer:
        # kombu 5.5 holds none back.
        hold = getattr(producer, "batch", None)
        with (hold or nullcontext)():
            task.apply_async((2,), producer=producer)
            assert bool(shop.databases[1].llen("shop")) is (hold is None)
    assert shop.databases[1].llen("shop") == 1


def test_receivers_of_signals_hear_the_same_in_the_same_order(shop: Shop) -> None:
    heard: list[Any] = []

    def listen(signal: Any = None, headers: Any = None, sender: Any = None, **given: Any) -> None:
        own = (headers or {}).get("id") or given.get("task_id")
        # Not the queues, which are other objects.
        rest = {name: given.get(name) for name in ("body", "exchange", "routing_key", "retry_policy", "args", "eta")}
        shown = {name: value for name, value in (headers or {}).items() if name != SENT}
        heard.append(repr((names_of[id(signal)], sender, shown, rest)).replace(own, "own id"))

    observed = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
    names_of = {id(signal): number for number, signal in enumerate(observed)}

    def call(app: Celery, number: int) -> Any:
        return app.tasks[ADD].apply_async((number,), priority=2)

    for number in range(6):
        for signal in observed if number in (2, 3) else ():
            signal.connect(listen)
        try:
            shop.compare(lambda app, number=number: call(app, number))
        finally:
            for signal in observed:
                signal.disconnect(listen)
        half = len(heard) // 2
        # Celery 5.5 keeps the receivers that an app has at its first message.
        assert (half > 0, heard[half:]) == (number in (2, 3), heard[:half])
        heard.clear()


@pytest.mark.parametrize("shop", ["plain", "inherited"], indirect=True)
def test_a_running_task_is_the_parent_of_what_it_sends(shop: Shop) -> None:
    for request in ({}, {"root_id": "the root", "delivery_info": {"priority": 6}}):
        for options in ({}, {"parent_id": "another"}, {"root_id": "other"}, {"add_to_parent": False}):
            children: list[Any] = []

            def call(app: Celery, request: Any = request, options: Any = options, children: Any = children) -> Any:
                task = app.tasks[ADD]
                with running(task, "the parent", **{"delivery_info": {}, **request}):
                    result = task.apply_async((1,), **options)
                    children.append([child.id == result.id for child in task.request.children or ()])
                return result

            for _ in range(3):
                shop.compare(call)
            assert children[::2] == children[1::2] == [[True] if options.get("add_to_parent", True) else []] * 3


def test_a_retry_of_the_running_task_goes_where_celery_sends_it(shop: Shop) -> None:
    def call(app: Celery) -> Any:
        task = app.tasks[ADD]
        with running(task, "the same"):
            return task.apply_async((1,), task_id="the same")

    for _ in range(3):
        shop.compare(lambda app: app.tasks[ADD].apply_async((1,)))
        shop.compare(call)


def channels(shop: Shop) -> set[str]:
    """Return the ids of tasks to whose results anybody subscribes, when what was sent has arrived."""
    sent = shop.app.backend.result_consumer.subscribed_to
    wait_until(lambda: {*shop.databases[1].pubsub_channels()} == sent, description="the subscriptions")
    return {channel.decode().removeprefix("celery-task-meta-") for channel in sent}


@pytest.mark.parametrize("shop", ["results"], indirect=True)
def test_results_are_awaited_as_by_celery(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, push_many = [], BrokerLists.push_many
    monkeypatch.setattr(BrokerLists, "push_many", lambda *given: (seen.append(channels(shop)), push_many(*given))[1])
    task = shop.app.tasks[ADD]
    results = [task.delay(number) for number in range(3)]
    single = {result.id for result in results}
    assert shop.app.backend.result_consumer.subscribed_to == {*map(shop.app.backend.get_key_for_task, single)}
    count = lambda: shop.databases[1].info("commandstats")["cmdstat_subscribe"]["calls"]  # noqa: E731
    before = count()
    several = group([task.s(number) for number in range(600)], app=shop.app).apply_async()
    ids = [result.id for result in several]
    assert [single | {*ids[:500]}, single | {*ids}] == seen
    assert channels(shop) == single | {*ids}
    assert count() - before <= 3


@pytest.mark.parametrize("shop", ["results"], indirect=True)
def test_a_batch_that_failed_is_awaited_by_who_asks(shop: Shop) -> None:
    task, consumer = shop.app.tasks[ADD], shop.app.backend.result_consumer
    task.delay("first")
    with pytest.raises(PartlySentError) as raised:
        shop.delayed.send_many([*(task.s(n).set(task_id=f"id-{n}") for n in range(600)), task.s(object())])
    assert {f"id-{n}" for n in range(500)} == {*raised.value.sent} == {id_ for id_ in channels(shop) if "id-" in id_}
    assert shop.app.backend.get_key_for_task("id-550") not in consumer.subscribed_to


def test_lost_results_are_the_error_of_celery(server: RedisServer, shop: Shop) -> None:
    for app in shop.apps:
        app.conf.result_backend = f"redis+socket://{server.socket}"
        app.conf.result_backend_transport_options = {"retry_policy": {"max_retries": 0}}
        app._backend_cache = None
    for _ in range(2):
        shop.compare(lambda app: app.tasks[ADD].delay(1))
    server.kill()
    errors: list[Any] = []
    for app in shop.apps:
        # Each thread has its own subscriptions.
        with ThreadPoolExecutor(1) as pool, suppress(Exception):
            errors.append(pool.submit(app.tasks[ADD].delay, 1).exception())
        close_results(app)
    assert type(errors[1]) is type(errors[0]) is not type(None)


@pytest.mark.parametrize("first", [0, 60])
def test_a_call_with_a_delay_is_of_another_kind(shop: Shop, made: list[Any], first: int) -> None:
    shop.app.send_task(ELSEWHERE)
    for number in range(6):
        shop.app.tasks[ADD].apply_async((number,), countdown=first if number % 2 else 60 - first)
    assert len(made) == 3
    assert [ETA in envelope.headers for envelope in stored_messages(shop.app)] == [True] * 3
    assert len(messages_in(shop.databases[1], [])["shop"]) == 4


def test_eta_counts_elapsed_time_across_clock_changes(shop: Shop) -> None:
    shop.app.conf.timezone = "Europe/Berlin"
    days = (90, 180, 270)
    before = datetime.now(timezone.utc)
    results = shop.delayed.send_many(shop.app.tasks[ADD].s(1).set(countdown=86400 * n) for n in (1, *days))
    after = datetime.now(timezone.utc)
    found = {envelope.id: envelope for envelope in stored_messages(shop.app)}
    for result, n in zip(results[1:], days, strict=True):
        eta = datetime.fromisoformat(found[result.id].headers[ETA])
        assert before <= eta - timedelta(days=n) <= after


def test_clock_of_the_app_applies_to_each_message(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.app.tasks[ADD].apply_async((1,), countdown=60)
    moment = datetime(2040, 1, 1, tzinfo=timezone.utc)
    monkeypatch.setattr(shop.app, "now", lambda: moment)
    shop.delayed.send_many([shop.app.tasks[ADD].s(number) for number in range(3)], countdown=60)
    found = [envelope.headers[ETA] for envelope in stored_messages(shop.app)]
    assert found.count("2040-01-01T00:01:00+00:00") == 3
