"""A batch tells which of its messages were sent, whatever fails, and sends nothing afterwards."""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from typing import Any

import pytest
from celery import Celery, Task, group, signals
from celery.exceptions import SoftTimeLimitExceeded
from kombu import pools
from kombu.exceptions import EncodeError, OperationalError

from redis_queue.celery import DurableTasks
from redis_queue.celery.publish.batch import PartlySentError
from redis_queue.celery.publish.lists import BrokerLists
from redis_queue.store.base_queue import Shards
from tests.support.celery.brokers import close_results
from tests.support.celery.tenants import HEADER, single_task
from tests.support.proxy import FaultProxy
from tests.support.servers import RedisServer

NUMBER = 1200
SILENCE = {"socket_timeout": 0.5, "socket_connect_timeout": 0.5}


@pytest.fixture
def proxied(server: RedisServer) -> Iterator[FaultProxy]:
    """A proxy in front of the server of the test."""
    with FaultProxy(server.address) as proxy:
        yield proxy


@pytest.fixture
def app(proxied: FaultProxy) -> Iterator[Celery]:
    """An app whose broker and store are behind the proxy; it has sent a message of its task."""
    app = Celery("shop", broker=proxied.url, set_as_current=False)
    app.conf.broker_transport_options = SILENCE
    app.conf.update(result_backend="disabled://", task_default_queue="shop", task_publish_retry=False)

    @app.task(name="shop.add", shared=False)
    def add(*args: Any) -> None:
        """Add."""

    DurableTasks(app, leases=False)
    for _ in range(2):
        add.delay("before")
    yield app
    close_results(app)
    app.close()
    pools.reset()


def arguments(server: RedisServer, key: str = "shop") -> list[Any]:
    """Return the first argument of each message in a list, oldest first, without those of the fixture."""
    with server.client() as client:
        elements: list[Any] = client.lrange(key, 0, -1)
    found = [json.loads(base64.b64decode(json.loads(element)["body"]))[0][0] for element in elements[::-1]]
    return [argument for argument in found if argument != "before"]


def ids(server: RedisServer) -> list[str]:
    with server.client() as client:
        elements: list[Any] = client.lrange("shop", 0, -1)
    return [json.loads(element)["headers"]["id"] for element in elements[::-1]][2:]


def in_a_group(app: Celery, calls: list[Any]) -> Any:
    return group(calls, app=app).apply_async()


def by_send_many(app: Celery, calls: list[Any]) -> Any:
    return DurableTasks.of(app).send_many(calls)


def in_a_block(app: Celery, calls: list[Any]) -> Any:
    with DurableTasks.of(app).batch():
        for call in calls:
            # A caller who goes on all the same.
            with suppress(OperationalError):
                call.apply_async()


WAYS = [in_a_group, by_send_many, in_a_block]


def calls_of(app: Celery, number: int = NUMBER) -> list[Any]:
    """Return signatures with numbers as arguments, and ids."""
    return [app.tasks["shop.add"].s(n).set(task_id=f"id-{n}") for n in range(number)]


def test_a_group_is_sent_in_order(app: Celery, server: RedisServer) -> None:
    before = commands(server)
    in_a_group(app, calls_of(app))
    assert arguments(server) == list(range(NUMBER))
    assert commands(server) - before == 3


@pytest.mark.parametrize("way", WAYS)
def test_the_apply_async_of_a_task_makes_each_call(app: Celery, server: RedisServer, way: Any) -> None:
    task = single_task(app, server.url)
    results = way(app, [task.s(number) for number in (1, 2, 1)])
    with server.client() as client:
        elements = client.lrange("shop", 0, -1)[-3::-1]
        audit = client.llen("shop-audit")
    assert (arguments(server), audit) == ([1, 2], 3)
    assert [json.loads(element)["headers"][HEADER] for element in elements] == ["none"] * 2
    if way is by_send_many:
        assert [result.id for result in results] == [*ids(server), ids(server)[0]]


def commands(server: RedisServer) -> int:
    """Return how many LPUSH the server has executed."""
    with server.client() as client:
        statistics: Any = client.info("commandstats")
    return int(statistics["cmdstat_lpush"]["calls"])


Fault = Callable[[FaultProxy], Any]
LOST_REQUEST: Fault = lambda proxy: proxy.cut_next_request(matching=b"LPUSH", passes=1)  # noqa: E731
LOST_REPLY: Fault = lambda proxy: proxy.drop_next_reply(matching=b"LPUSH", passes=1)  # noqa: E731


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reply", [False, True])
def test_what_was_lost_on_the_way_is_told_as_unknown(
    app: Celery, server: RedisServer, proxied: FaultProxy, way: Any, reply: bool
) -> None:
    arrived = 1000 if reply else 500
    (LOST_REPLY if reply else LOST_REQUEST)(proxied)
    with pytest.raises(PartlySentError, match="500 messages were sent; whether the next 500 were is unknown") as raised:
        way(app, calls_of(app))
    assert raised.value.sent == [f"id-{n}" for n in range(500)]
    assert raised.value.unknown == [f"id-{n}" for n in range(500, 1000)]
    assert ids(server) == [f"id-{n}" for n in range(arrived)]
    app.tasks["shop.add"].delay("after")
    assert arguments(server) == [*range(arrived), "after"]


def refuse(server: RedisServer, how: str) -> None:
    """Make the server refuse new messages."""
    with server.client() as client:
        if how == "full":
            client.config_set("maxmemory", "1")
        else:
            client.replicaof("127.0.0.1", 1)


def refuse_second(server: RedisServer, patch: pytest.MonkeyPatch, owner: Any, name: str, how: str) -> None:
    """Let the server refuse the second call of a method, and all later ones."""
    original, calls = getattr(owner, name), iter(range(NUMBER))

    def refused(*given: Any, **options: Any) -> Any:
        if next(calls) == 1:
            refuse(server, how)
        return original(*given, **options)

    patch.setattr(owner, name, refused)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_what_redis_refuses_was_not_sent(
    app: Celery, server: RedisServer, monkeypatch: pytest.MonkeyPatch, way: Any, how: str
) -> None:
    refuse_second(server, monkeypatch, BrokerLists, "push_many", how)
    with pytest.raises(PartlySentError, match="500 messages were sent, and no more") as raised:
        way(app, calls_of(app))
    assert (raised.value.sent, raised.value.unknown) == ([f"id-{n}" for n in range(500)], [])
    assert ids(server) == raised.value.sent
    with pytest.raises(OperationalError) as refusal:
        way(app, calls_of(app, 5))
    assert not isinstance(refusal.value, PartlySentError)
    assert len(ids(server)) == 500


@pytest.mark.parametrize("way", WAYS)
def test_a_silent_redis_is_told_after_one_timeout(app: Celery, server: RedisServer, way: Any) -> None:
    app.conf.task_publish_retry = True
    server.pause()
    try:
        with pytest.raises(PartlySentError) as raised:
            way(app, calls_of(app, 20))
        assert (raised.value.sent, raised.value.unknown) == ([], [f"id-{n}" for n in range(20)])
    finally:
        server.resume()


@pytest.mark.parametrize("way", [in_a_group, by_send_many])
def test_an_outage_ends_within_the_policy_for_retries(
    app: Celery, server: RedisServer, proxied: FaultProxy, way: Any
) -> None:
    app.conf.task_publish_retry = True
    proxied.mode = "refuse"
    proxied.cut()
    with pytest.raises(OperationalError) as raised:
        way(app, calls_of(app, 20))
    assert set(getattr(raised.value, "unknown", [])) <= {f"id-{n}" for n in range(20)}
    proxied.mode = "pass"
    way(app, calls_of(app, 20))
    assert arguments(server) == list(range(20))


def test_what_finds_no_redis_was_not_sent(app: Celery, proxied: FaultProxy) -> None:
    def send() -> None:
        with DurableTasks.of(app).batch() as batch:
            app.tasks["shop.add"].delay(1)
            lists: Any = batch._lists
            lists._link.close()
            proxied.mode = "refuse"

    with pytest.raises(OperationalError) as raised:
        send()
    assert not isinstance(raised.value, PartlySentError)


def test_an_error_of_the_caller_or_of_a_time_limit_stays_what_it_is(app: Celery, server: RedisServer) -> None:
    def send() -> None:
        with DurableTasks.of(app).batch():
            for number in range(600):
                app.tasks["shop.add"].delay(number)
            raise SoftTimeLimitExceeded

    with pytest.raises(SoftTimeLimitExceeded) as raised:
        send()
    assert arguments(server) == list(range(500))
    # Python 3.10 has no notes.
    assert "500 messages were sent" in str(getattr(raised.value, "__notes__", "500 messages were sent"))


def test_a_time_limit_in_a_round_trip_tells_once_what_is_unknown(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "0 messages were sent; whether the next 100 were is unknown"

    def late(*_: Any) -> None:
        raise SoftTimeLimitExceeded

    monkeypatch.setattr(BrokerLists, "push_many", late)
    with pytest.raises(SoftTimeLimitExceeded) as raised:
        DurableTasks.of(app).send_many(calls_of(app, 100))
    assert [told in note for note in getattr(raised.value, "__notes__", [told])] == [True]


def test_an_argument_without_a_serialised_form_ends_the_batch(app: Celery, server: RedisServer) -> None:
    with pytest.raises(PartlySentError, match="EncodeError") as raised:
        by_send_many(app, [*calls_of(app, 600), app.tasks["shop.add"].s(object())])
    assert raised.value.sent == ids(server) == [f"id-{n}" for n in range(500)]
    assert raised.value.unknown == []


def test_the_members_of_a_group_before_one_that_cannot_be_sent_are_sent(app: Celery, server: RedisServer) -> None:
    with pytest.raises(EncodeError):
        in_a_group(app, [*calls_of(app, 600), app.tasks["shop.add"].s(object()), *calls_of(app, 5)])
    assert ids(server) == [f"id-{n}" for n in range(600)]


def test_entries_of_the_store_are_told_too(app: Celery, server: RedisServer, proxied: FaultProxy) -> None:
    task = app.tasks["shop.add"]
    durable = DurableTasks.of(app)
    task.apply_async(("first",), countdown=60)

    def send() -> None:
        with durable.batch():
            for n in range(600):
                task.apply_async((n,), task_id=f"stored-{n}", countdown=60)
            task.apply_async((1,), task_id="listed")
            proxied.mode = "refuse"
            proxied.cut()

    with pytest.raises(PartlySentError) as raised:
        send()
    assert raised.value.sent == [f"stored-{n}" for n in range(500)]
    # It was written into a connection that Redis had closed.
    assert raised.value.unknown == ["listed"]
    with server.client() as client:
        assert client.llen("shop") == 2


def test_entries_that_may_be_among_those_stored_are_told_as_unknown(
    app: Celery, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_second(server, monkeypatch, Shards, "store", "full")
    call = app.tasks["shop.add"].s("x" * 700_000)
    with pytest.raises(PartlySentError, match="unknown") as raised:
        by_send_many(app, [call.clone(task_id=f"id-{n}", countdown=60) for n in range(2)])
    assert (raised.value.sent, raised.value.unknown) == ([], ["id-0", "id-1"])


def test_a_group_with_a_receiver_is_sent_one_by_one(app: Celery, server: RedisServer) -> None:
    lengths: list[int] = []

    def listen(**_: Any) -> None:
        lengths.append(len(ids(server)))

    signals.after_task_publish.connect(listen)
    try:
        in_a_group(app, calls_of(app, 5))
    finally:
        signals.after_task_publish.disconnect(listen)
    assert lengths == [1, 2, 3, 4, 5]


class UserCode:
    """Code of a user that sends a message, and notes which ones have been sent by then."""

    def __init__(self, app: Celery, server: RedisServer, key: str) -> None:
        self.app = app
        self.server = server
        self.key = key
        self.runs = False
        self.seen: list[list[Any]] = []

    def run(self, *_: Any, **__: Any) -> None:
        if self.runs:
            return
        self.runs = True
        self.app.tasks["shop.add"].delay(f"inner {len(self.seen)}")
        self.seen.append(arguments(self.server, self.key))
        self.runs = False

    def in_generator(self) -> Iterator[Any]:
        for number in range(5):
            self.run()
            yield self.app.tasks["shop.add"].s(number)


def do_nothing(*_: Any) -> None:
    """Be a task."""


def signatures(app: Celery, name: str = "shop.add") -> list[Any]:
    return [app.tasks[name].s(number) for number in range(5)]


def with_generator(code: UserCode) -> list[Any]:
    return [group(code.in_generator(), app=code.app)]


def with_generator_inside(code: UserCode) -> list[Any]:
    add = code.app.tasks["shop.add"]
    return [group([add.s("first"), group(code.in_generator(), app=code.app), add.s("last")], app=code.app)]


def with_receiver(code: UserCode) -> list[Any]:
    signals.before_task_publish.connect(code.run)
    return [group(signatures(code.app), app=code.app)]


def with_router(code: UserCode) -> list[Any]:
    code.app.conf.task_routes = [code.run]
    vars(code.app.amqp).pop("router", None)
    code.app.amqp.flush_routes()
    return [group(signatures(code.app), app=code.app)]


def with_own_call(code: UserCode) -> list[Any]:
    class Own(Task):  # type: ignore[misc]
        def apply_async(self, *args: Any, **options: Any) -> Any:
            code.run()
            return super().apply_async(*args, **options)

    code.app.task(name="shop.own", base=Own, shared=False)(do_nothing)
    return [group(signatures(code.app, "shop.own"), app=code.app)]


CODE = [(with_generator, False), (with_generator_inside, False), (with_own_call, False)]
CODE += [(make, is_in_a_block) for make in (with_receiver, with_router) for is_in_a_block in (False, True)]


def sent_by_then(code: UserCode, calls: list[Any]) -> list[list[Any]]:
    try:
        for call in calls:
            call.apply_async()
    finally:
        signals.before_task_publish.disconnect(code.run)
    return [*code.seen, arguments(code.server, code.key)]


@pytest.mark.parametrize(("make", "is_in_a_block"), CODE)
def test_user_code_finds_sent_what_celery_has_sent_by_then(
    app: Celery, server: RedisServer, make: Callable[[UserCode], list[Any]], is_in_a_block: bool
) -> None:
    stock = Celery("stock", broker=app.conf.broker_url, set_as_current=False)
    stock.conf.update(dict(app.conf.changes), task_default_queue="stock")
    stock.task(name="shop.add", shared=False)(do_nothing)
    found = []
    for one, key in [(stock, "stock"), (app, "shop")]:
        code = UserCode(one, server, key)
        is_batched = is_in_a_block and one is app
        with DurableTasks.of(app).batch() if is_batched else nullcontext():
            found.append(sent_by_then(code, make(code)))
        close_results(one)
    assert found[0] == found[1]
    assert any("inner 0" in seen for seen in found[1])
    stock.close()


def test_send_many_reads_nothing_while_messages_wait_for_long(
    app: Celery, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redis_queue.celery.publish.batch.MAX_READING", 0)
    code = UserCode(app, server, "shop")
    DurableTasks.of(app).send_many(code.in_generator())
    assert code.seen[2] == ["inner 0", 0, "inner 1", 1, "inner 2"]


def test_send_many_calls_a_task_that_has_its_own_way_one_by_one(app: Celery, server: RedisServer) -> None:
    code = UserCode(app, server, "shop")
    with_own_call(code)
    DurableTasks.of(app).send_many([app.tasks["shop.add"].s("first"), *signatures(app, "shop.own")])
    assert code.seen[1] == ["first", "inner 0", 0, "inner 1"]


def test_what_an_argument_sends_is_not_in_the_batch(app: Celery, server: RedisServer) -> None:
    code = UserCode(app, server, "shop")

    class Argument:
        def __json__(self) -> str:
            code.run()
            return "own"

    in_a_group(app, [app.tasks["shop.add"].s(Argument()) for _ in range(3)])
    assert [seen[-1] for seen in code.seen] == [f"inner {number}" for number in range(len(code.seen))]
    assert arguments(server)[-3:] == ["own"] * 3


def of_a_kind(app: Celery) -> Any:
    return app.tasks["shop.add"].apply_async((1,))


def made_by_celery(app: Celery) -> Any:
    return app.tasks["shop.add"].apply_async((1,), shadow="other")


@pytest.mark.parametrize("call", [(of_a_kind, True), (of_a_kind, False), (made_by_celery, True)])
@pytest.mark.parametrize("fault", [FaultProxy.cut_next_request, FaultProxy.drop_next_reply])
def test_a_single_message_whose_reply_is_lost_arrives_once(
    app: Celery, server: RedisServer, proxied: FaultProxy, fault: Any, call: tuple[Any, bool]
) -> None:
    send, app.conf.task_publish_retry = call
    send(app)
    fault(proxied, matching=b"EVALSHA")
    result = send(app)
    assert proxied.pending_drops == 0
    assert arguments(server) == [1, 1]
    assert ids(server)[1:] == [result.id]


@pytest.mark.parametrize("send", [of_a_kind, made_by_celery])
def test_a_message_that_may_have_arrived_is_not_sent_by_another_call(
    app: Celery, server: RedisServer, proxied: FaultProxy, send: Callable[[Celery], Any]
) -> None:
    app.conf.update(task_publish_retry=True, task_publish_retry_policy={"max_retries": 2, "interval_step": 0.01})
    send(app)
    proxied.drop_next_reply(1000, matching=b"EVALSHA")
    with pytest.raises(OperationalError, match="unknown"):
        send(app)
    assert arguments(server) == [1, 1]


@pytest.mark.parametrize("rights", ["-@scripting", "resetkeys ~shop* ~_kombu*"])
@pytest.mark.parametrize("send", [of_a_kind, made_by_celery])
def test_a_sender_that_may_run_no_script_sends(
    app: Celery, server: RedisServer, rights: str, send: Callable[[Celery], Any]
) -> None:
    with server.client() as client:
        client.execute_command("ACL", "SETUSER", "default", *rights.split())
        try:
            for _ in range(2):
                send(app)
        finally:
            client.execute_command("ACL", "SETUSER", "default", "+@all", "allkeys")
    assert arguments(server) == [1, 1]


@pytest.mark.parametrize("what", ["restart", "flushall", "pool", "connections", "channel"])
def test_the_next_message_arrives_after(app: Celery, server: RedisServer, what: str) -> None:
    app.conf.task_publish_retry = True
    task = app.tasks["shop.add"]
    for _ in range(2):
        task.delay("before")
    with server.client() as client:
        if what == "restart":
            server.restart()
        elif what == "flushall":
            client.flushall()
        elif what == "pool":
            app._after_fork()
        elif what == "connections":
            client.execute_command("CLIENT", "KILL", "SKIPME", "yes")
        else:
            with app.producer_or_acquire() as producer:
                producer.connection.close()
    for n in range(3):
        task.delay(n)
    by_send_many(app, calls_of(app, 3))
    assert arguments(server) == [0, 1, 2, 0, 1, 2]


def test_a_message_over_a_new_connection_overtakes_none(app: Celery, server: RedisServer) -> None:
    with DurableTasks.of(app).batch(), app.producer_or_acquire():
        app.tasks["shop.add"].delay(1)
        # Celery makes it, with another producer of its pool.
        app.tasks["shop.add"].apply_async((2,), shadow="other")
    assert arguments(server) == [1, 2]


def test_another_app_with_the_broker_is_not_in_the_batch(app: Celery, server: RedisServer) -> None:
    other = Celery("other", broker=app.conf.broker_url, set_as_current=False)
    other.conf.update(broker_transport_options=SILENCE, result_backend="disabled://", task_default_queue="shop")
    third = Celery("third", set_as_current=False)
    third.conf.update(dict(other.conf.changes), broker_url=app.conf.broker_url)
    DurableTasks(third, leases=False)
    with DurableTasks.of(app).batch():
        app.tasks["shop.add"].delay(1)
        other.send_task("x", ("stock",))
        third.send_task("x", ("third",))
        assert arguments(server) == ["stock", "third"]
    assert arguments(server) == ["stock", "third", 1]
    for one in (other, third):
        one.close()
