"""The same calls, on stock and with DurableTasks, send the same messages and signals, and workers run the same."""

from __future__ import annotations

import base64
import json
import os
import pickle
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from zlib import crc32

import pytest
import redis
from celery import Celery, Task, chord, group, signals
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from kombu.compression import decompress
from kombu.utils.json import loads

from redis_queue.celery import DurableTasks
from tests.support.celery.brokers import close_results
from tests.support.paths import ROOT
from tests.support.servers import RedisServer

EXAMPLES = int(os.environ.get("REDIS_QUEUE_TEST_EXAMPLES", "200"))
"""Apps that are tried; more find more."""

tried = settings(
    max_examples=EXAMPLES,
    # The same ones each time, unless more are wanted.
    derandomize="REDIS_QUEUE_TEST_EXAMPLES" not in os.environ,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)

RACES = 10
"""Times that calls are played again whose outcome differs."""

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


def few(choices: dict[str, Any]) -> Any:
    """Return a dictionary of some of *choices*, mostly none or two: most of them turn off what makes sending fast."""

    def chosen(names: list[str]) -> Any:
        return st.fixed_dictionaries({name: choices[name] for name in names})

    return st.one_of(
        st.just({}),
        st.lists(st.sampled_from(sorted(choices)), max_size=2, unique=True).flatmap(chosen),
        st.fixed_dictionaries({}, optional=choices),
    )


def some(kinds: Any) -> Any:
    """Return what receivers do; half of the time there are none."""
    return st.one_of(st.just(frozenset()), st.frozensets(st.sampled_from(kinds), max_size=2))


CALL = st.tuples(
    st.sampled_from(["plain", "own"]),
    st.sampled_from(["delay", "apply_async", "send_task", "signature", "link", "group", "generator", "chord", "chain"]),
    st.lists(st.one_of(st.integers(), st.text(max_size=3), st.none()), max_size=2),
    few(OPTIONS),
    # Calls of one kind follow each other: only the first is made by Celery.
    st.integers(1, 4),
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

    receivers: list[tuple[Any, Any]] = [(signals.before_task_publish, before)] if kinds & {"before", "change"} else []
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


def read(item: Any) -> Any:
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


@tried
@given(
    conf=few(SETTINGS),
    kinds=some(["before", "change", "after"]),
    routes=st.booleans(),
    calls=st.lists(CALL, min_size=1, max_size=4),
)
def test_the_same_messages_and_signals(  # noqa: PLR0917
    redis_server: RedisServer, client: redis.Redis, conf: Any, kinds: Any, routes: bool, calls: Any
) -> None:
    stock, line = (run(redis_server, client, on, conf, kinds, routes, calls) for on in (False, True))
    assert line == stock


ARGS = st.lists(st.one_of(st.integers(), st.text(max_size=3), st.none()), max_size=2)
RUN_OPTIONS = {**OPTIONS, "queue": st.sampled_from(["one", "two", "narrow", "all"])}
# These are of the message only: a result that is ignored, or sent to another client, cannot be waited for.
del RUN_OPTIONS["reply_to"], RUN_OPTIONS["ignore_result"]
TASK = st.tuples(
    st.sampled_from(["plain", "plain", "own", "fail", "again", "calls", "swap"]),
    st.tuples(ARGS, st.booleans()),
    few(RUN_OPTIONS),
)


def larger(parts: Any) -> Any:
    members = st.tuples(st.sampled_from(["list", "generator", "waiting"]), st.lists(parts, min_size=1, max_size=3))
    return st.one_of(
        st.tuples(st.just("group"), members, st.just({})),
        st.tuples(st.just("chord"), st.tuples(members, TASK), st.just({})),
        st.tuples(st.just("chain"), st.lists(parts, min_size=2, max_size=3), st.just({})),
    )


CALL_OPTIONS = few(
    {
        "countdown": st.sampled_from([0, 0.03]),
        "eta": st.just(True),
        "expires": st.just(60),
        "link": TASK,
        "link_error": TASK,
        "headers": st.just({"tenant": "t3"}),
        "priority": st.sampled_from([0, 9]),
        "retry": st.booleans(),
    }
)
TO_RUN = st.one_of(
    st.tuples(st.just("delay"), TASK, st.just({}), st.integers(1, 3)),
    st.tuples(st.sampled_from(["apply_async", "send_task", "stamp"]), TASK, CALL_OPTIONS, st.integers(1, 3)),
    st.tuples(
        st.sampled_from(["apply_async", "send_task"]),
        TASK,
        st.fixed_dictionaries(
            {"exchange": st.sampled_from(["topic", "fanout"]), "routing_key": st.sampled_from(["a.b", "a.c", "none"])},
            optional={"countdown": st.sampled_from([0, 0.03]), "expires": st.just(60)},
        ).filter(lambda options: "countdown" not in options or options["routing_key"] != "none"),
        st.integers(1, 3),
    ),
    st.tuples(
        st.sampled_from(["canvas", "canvas", "stamp"]),
        st.recursive(TASK, larger, max_leaves=5).filter(lambda part: part[0] in {"group", "chord", "chain"}),
        CALL_OPTIONS,
        st.integers(1, 2),
    ),
)
KINDS = ("after", "headers", "body", "priority", "expires", "eta", "sends")


class PlayerProcess:
    """A worker and what sends to it, in a process."""

    def __init__(self, url: str, *line: str) -> None:
        self._args = [sys.executable, "-m", "tests.guest.player", url, *line]
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._args,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            # Celery puts the names of stamps in the order of a set.
            env={**os.environ, "PYTHONHASHSEED": "0"},
        )

    def ask(self, program: Any) -> None:
        pickle.dump(program, self._process.stdin)  # type: ignore[arg-type]
        self._process.stdin.flush()  # type: ignore[union-attr]

    def answer(self) -> Any:
        return pickle.load(self._process.stdout)  # type: ignore[arg-type]  # noqa: S301 - of our own process

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()


class Players:
    """One on stock and one with DurableTasks, each with a database of its own."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        url = f"redis+socket://{server.socket}?virtual_host="
        self._both = [PlayerProcess(f"{url}0"), PlayerProcess(f"{url}1", "line")]

    def play(self, *program: Any) -> list[Any]:
        for player in self._both:
            player.ask(program)
        answers = [player.answer() for player in self._both]
        if any(isinstance(answer, str) for answer in answers):
            # What one has left would be run with the next program.
            self.stop()
            with self._server.client() as client:
                client.flushall()
            for player in self._both:
                player.start()
        return answers

    def stop(self) -> None:
        for player in self._both:
            player.stop()


@pytest.fixture(scope="module")
def players() -> Iterator[Players]:
    with RedisServer() as server:
        both = Players(server)
        yield both
        both.stop()


TIME = re.compile(r"\d{4}-\d\d-\d\d[T ][\d:.]+")
PROCESS = re.compile(r"gen\d+@")
LINEAGE = re.compile(r'"(root|parent)_id": "[^"]*"')


def comparable(answer: Any) -> Any:
    """Return runs, signals and results in an order of their own, and ids by what they are ids of."""
    if isinstance(answer, str):
        return answer
    runs, order, tasks, results = answer
    if any('"chord": {' in run for run in runs):
        # What follows a chord descends from the member that ends last, which is a race.
        runs = [LINEAGE.sub("", run) for run in runs]
    # Copies of a message, which share an id, are sent and run in any order.
    runs_of: dict[str, list[list[str]]] = defaultdict(list)
    rows = []
    for name, task, id_, *where in tasks:
        if name == "task_prerun":
            runs_of[id_].append([task])
        if name in {"task_received", "before", "after"}:
            rows.append(f"signal {name} {task} {id_} {where}")
        else:
            runs_of[id_][-1].append(name)
    rows += [f"run {PROCESS.sub('', TIME.sub('TIME', run))}" for run in runs]
    rows += [f"signals {id_} {heard}" for id_, of_id in runs_of.items() for heard in of_id]
    rows += [f"result {number} {TIME.sub('TIME', repr(result))}" for number, result in enumerate(results)]
    rows += [f"signal {number} {one}" for number, one in enumerate(order)]
    found = map(json.loads, answer[0])
    rows += [f"order {number} {id_}" for number, id_ in enumerate(run["id"] for run in found if is_ordered(run))]
    return sorted(renamed(rows))


def is_ordered(run: Any) -> bool:
    """Return whether *run* is of a message that this queue's only reader ran in the order in which it was sent."""
    where = run.get("delivery_info") or {}
    # Protocol 1 does not tell what a task has sent.
    started = run.get("parent_id") or not run.get("root_id") or run.get("eta") or run["retries"]
    return where.get("routing_key") == "celery" and not (started or where.get("exchange") or where.get("priority"))


def renamed(rows: list[str]) -> list[str]:
    """Return *rows* with each id renamed after the rows that have it, so that no order matters."""
    rows_of: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        for id_ in ID.findall(row):
            rows_of[id_].add(row)
    names = dict.fromkeys(rows_of, "id")
    for _ in range(3):
        texts = {id_: sorted(with_names(row.replace(id_, "this"), names) for row in of) for id_, of in rows_of.items()}
        names = {id_: f"id-{crc32(repr(found).encode()):08x}" for id_, found in texts.items()}
    return [with_names(row, names) for row in rows]


def with_names(row: str, names: dict[str, str]) -> str:
    return ID.sub(lambda match: names.get(match[0], match[0]), row)


PLAIN = ("plain", ([1], True), {})
TOPIC = {"exchange": "topic", "routing_key": "a.b", "countdown": 0.03}
UNREADABLE = ("chord", (("list", [PLAIN, ("plain", ([], True), {"serializer": "yaml"})]), PLAIN), {})


@settings(tried, max_examples=max(1, EXAMPLES // 4))
@example(
    conf={}, kinds=frozenset(), routed=False, calls=[("apply_async", ("again", ([1], True), {}), {"queue": "all"}, 1)]
)
@example(conf={}, kinds=frozenset(), routed=False, calls=[("send_task", PLAIN, TOPIC, 1)])
@example(conf={}, kinds=frozenset(), routed=False, calls=[("canvas", UNREADABLE, {}, 1)])
@given(conf=few(SETTINGS), kinds=some(KINDS), routed=st.booleans(), calls=st.lists(TO_RUN, min_size=1, max_size=3))
def test_the_same_runs_results_and_signals(players: Players, conf: Any, kinds: Any, routed: bool, calls: Any) -> None:
    # Protocol 1 has no place for the order of the members of a chord: Celery sorts them by their ids.
    assume(conf.get("task_protocol") != 1 or not re.search("chord|chain.*group", repr(calls)))
    stock, line = map(comparable, players.play(conf, kinds, routed, calls))
    if line == stock:
        return
    # Which of two tasks ends first is a race: what the line gives has to be among what stock gives.
    by_stock, odd = [stock], [line]
    for _ in range(RACES):
        stock, line = map(comparable, players.play(conf, kinds, routed, calls))
        by_stock.append(stock)
        odd = [one for one in (*odd, line) if one not in by_stock]
        if not odd:
            return
    assert odd[-1] == stock
