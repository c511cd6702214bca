"""The same calls, on stock and with DurableTasks, put the same messages into the broker and send the same signals."""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import redis
from celery import Celery, Task, chord, group, signals
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kombu.compression import decompress
from kombu.utils.json import loads

from redis_queue.celery import DurableTasks
from tests.support.celery.brokers import close_results
from tests.support.servers import RedisServer

EXAMPLES = int(os.environ.get("REDIS_QUEUE_TEST_EXAMPLES", "200"))
"""Apps that are tried; more find more."""

ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

OPTIONS: dict[str, Any] = {
    "queue": st.sampled_from(["one", "two"]),
    "priority": st.sampled_from([0, 3, 9]),
    "serializer": st.sampled_from(["json", "pickle", "yaml"]),
    "compression": st.sampled_from(["gzip", "bzip2"]),
    "headers": st.just({"tenant": "t1"}),
    "shadow": st.just("shadow"),
    "ignore_result": st.booleans(),
    "time_limit": st.just(30),
    "stamped_headers": st.just(["tenant"]),
    "tenant": st.just("t2"),
    "argsrepr": st.just("secret"),
    "reply_to": st.just("me"),
}
SETTINGS: dict[str, Any] = {
    "task_protocol": st.sampled_from([1, 2]),
    "task_serializer": st.sampled_from(["json", "pickle"]),
    "task_compression": st.sampled_from([None, "gzip"]),
    "task_default_priority": st.sampled_from([None, 3]),
    "task_always_eager": st.sampled_from([False, False, False, True]),
    "task_send_sent_event": st.booleans(),
    "task_ignore_result": st.booleans(),
}
CALL = st.tuples(
    st.sampled_from(["plain", "own"]),
    st.sampled_from(["delay", "apply_async", "send_task", "signature", "link", "group", "generator", "chord", "chain"]),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.none()), max_size=2),
    st.fixed_dictionaries({}, optional=OPTIONS),
    # Calls of one kind follow each other: only the first is made by Celery.
    st.integers(1, 3),
)
Run = tuple[list[Any], list[Any]]


def add_tasks(app: Celery) -> None:
    class Tenant(Task):  # type: ignore[misc]
        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            options["headers"] = {**(options.get("headers") or {}), "own": "yes"}
            return super().apply_async(args, kwargs, **options)

    def nothing(*args: Any) -> None:
        """Do nothing."""

    app.task(name="plain", shared=False)(nothing)
    app.task(name="own", base=Tenant, shared=False)(nothing)


def send(app: Celery, call: Any) -> None:
    name, how, args, options, times = call
    task = app.tasks[name]

    def signature() -> Any:
        return task.signature(tuple(args), options=dict(options), immutable=True)

    hows: dict[str, Callable[[], Any]] = {
        "delay": partial(task.delay, *args),
        "apply_async": lambda: task.apply_async(tuple(args), **options),
        "send_task": lambda: app.send_task(name, tuple(args), **options),
        "signature": lambda: signature().apply_async(),
        "link": lambda: task.apply_async(tuple(args), link=signature(), link_error=signature(), **options),
        "group": lambda: group([signature() for _ in range(3)], app=app).apply_async(),
        "generator": lambda: group((signature() for _ in range(3)), app=app).apply_async(),
        "chord": lambda: chord([signature() for _ in range(2)], signature(), app=app).apply_async(),
        "chain": lambda: (signature() | signature()).apply_async(),  # noqa: PLW0108 - a new one each time
    }
    for _ in range(times):
        hows[how]()


@contextmanager
def hearing(app: Celery, kinds: frozenset[str], heard: list[Any]) -> Iterator[None]:
    """Receive the signals *kinds*; "change" also changes headers and body."""

    def before(sender: Any = None, headers: Any = None, body: Any = None, **_: Any) -> None:
        heard.append(("before", sender, (headers or {}).get("id")))
        if "change" in kinds:
            headers["changed"] = "yes"

    def after(sender: Any = None, headers: Any = None, **_: Any) -> None:
        heard.append(("after", sender, (headers or {}).get("id")))

    receivers = [(signals.before_task_publish, before)] if kinds & {"before", "change"} else []
    receivers += [(signals.after_task_publish, after)] if "after" in kinds else []
    for signal, receiver in receivers:
        signal.connect(receiver)
    try:
        yield
    finally:
        for signal, receiver in receivers:
            signal.disconnect(receiver)


def run(  # noqa: PLR0917
    server: RedisServer, client: redis.Redis, line: bool, conf: Any, kinds: Any, routes: bool, calls: Any
) -> Run:
    """Return the messages of each list and the signals; ids are numbered in order."""
    client.flushall()
    heard: list[Any] = []
    url = f"redis+socket://{server.socket}"
    with Celery("guest", broker=url, backend=url, set_as_current=False) as app:
        app.conf.update(conf, accept_content=["json", "pickle", "yaml"])
        if routes:
            app.conf.task_routes = (lambda name, *_, **__: {"queue": f"of-{name}"},)
        if line:
            DurableTasks(app)
        add_tasks(app)
        with hearing(app, kinds, heard):
            for call in calls:
                try:
                    send(app, call)
                except Exception as error:  # noqa: BLE001 - the same one is wanted
                    heard.append(("raised", type(error).__name__, str(error)))
        close_results(app)
    lists = sorted(key for key in client.scan_iter(_type="list"))
    messages = [[key.decode(), *map(read, reversed(client.lrange(key, 0, -1)))] for key in lists]
    return numbered(messages), numbered(heard)


def read(item: bytes) -> Any:
    message = loads(item)
    # Of the client's queue for results and of the message in its list; other ids are the call's own.
    message["properties"].pop("delivery_tag")
    # What DurableTasks adds on purpose.
    message["headers"] = {name: value for name, value in message["headers"].items() if "redis_queue" not in name}
    body = base64.b64decode(message["body"])
    if message["headers"].get("compression"):
        body = decompress(body, message["headers"]["compression"])
    message["body"] = body.decode("latin-1")
    return message


def numbered(found: Any) -> Any:
    ids: dict[str, str] = {}
    return ID.sub(lambda match: ids.setdefault(match[0], f"id {len(ids)}"), repr(found))


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    conf=st.fixed_dictionaries({}, optional=SETTINGS),
    kinds=st.frozensets(st.sampled_from(["before", "change", "after"])),
    routes=st.booleans(),
    calls=st.lists(CALL, min_size=1, max_size=4),
)
def test_the_same_messages_and_signals(  # noqa: PLR0917
    redis_server: RedisServer, client: redis.Redis, conf: Any, kinds: Any, routes: bool, calls: Any
) -> None:
    stock, line = (run(redis_server, client, on, conf, kinds, routes, calls) for on in (False, True))
    assert line == stock
