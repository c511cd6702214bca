"""Play programs of calls with a worker in this process: ``python -m tests.guest.player URL [line]``.

It reads pickled programs from its standard input, and writes what ran, what was heard and what came back. Each program
has an app of its own that sends; all share the worker. Stock has its own process: DurableTasks changes Celery itself.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import redis
from celery import Celery, Task, chain, chord, group, signals
from celery.canvas import StampingVisitor
from celery.result import AsyncResult, GroupResult
from celery.worker import state
from kombu.entity import Exchange, Queue

from tests.support.wait import wait_until

WAIT = 10.0
"""Seconds in which a program ends, or a result that it waits for is there."""

LOOKS = 4

SOON = 0.03

ACCEPT = ["json", "pickle", "yaml"]

NOISE = {"hostname", "properties", "_protected"}
"""Attributes of a request that differ between workers: the process, and ids of connections."""

OF_WORKER = ("task_received", "task_prerun", "task_postrun", "task_success", "task_failure", "task_retry")

Heard = list[tuple[Any, ...]]


class Tenant(Task):  # type: ignore[misc]
    """Adds a header, as a class for tenants does."""

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        options["headers"] = {**(options.get("headers") or {}), "own": "yes"}
        return super().apply_async(args, kwargs, **options)


class Stamps(StampingVisitor):  # type: ignore[misc]
    def on_signature(self, sig: Any, **_: Any) -> dict[str, Any]:
        return {"stamp": f"of {sig.task}", "stamped_headers": ["stamp"]}


def make_app(url: str, line: bool) -> Celery:
    app = Celery("guest", broker=url, backend=url, set_as_current=False)
    topic, fanout = Exchange("topic", type="topic"), Exchange("fanout", type="fanout")
    queues = [Queue(name, Exchange(name), routing_key=name) for name in ("celery", "one", "two")]
    queues += [Queue("narrow", topic, routing_key="a.b"), Queue("wide", topic, routing_key="a.*")]
    queues.append(Queue("all", fanout))
    app.conf.update(task_queues=queues, accept_content=ACCEPT, result_accept_content=ACCEPT, result_extended=True)
    if line:
        from redis_queue.celery import DurableTasks

        DurableTasks(app)
    return app


def declare(app: Celery) -> None:
    """Tell the next connection of *app* the types of its exchanges: kombu takes an unknown one for a direct one."""
    with app.producer_or_acquire() as producer:
        for queue in app.amqp.queues.values():
            queue(producer.channel).declare()


def add_tasks(app: Celery, runs: list[str]) -> None:  # noqa: C901 - a function for each task
    """Add tasks that note in *runs* with what they ran."""

    def note(task: Any) -> None:
        request = vars(task.request)
        seen = {name: value for name, value in request.items() if name not in NOISE and "redis_queue" not in name}
        seen["headers"] = {name: value for name, value in (seen.get("headers") or {}).items() if name not in NOISE}
        seen["headers"] = {name: value for name, value in seen["headers"].items() if "redis_queue" not in name}
        seen["types"] = [type(seen.get(name)).__name__ for name in ("args", "kwargs")]
        eta = seen.get("eta")
        if eta and not seen.get("is_eager"):
            seen["early"] = datetime.fromisoformat(eta).astimezone(timezone.utc) > datetime.now(timezone.utc)
        runs.append(json.dumps({"task": task.name, **seen}, default=repr, sort_keys=True))

    def plain(self: Any, *args: Any, **kwargs: Any) -> Any:
        note(self)
        return [*args, kwargs]

    def fail(self: Any, *_: Any, **__: Any) -> None:
        note(self)
        raise LookupError("nothing is there")

    def again(self: Any, *args: Any, **kwargs: Any) -> Any:
        note(self)
        # The store keeps one retry of a delayed call: those of its copies would be one.
        is_copy = (self.request.delivery_info or {}).get("exchange") in {"topic", "fanout"}
        if self.request.retries < 1 and not (is_copy and self.request.eta):
            declare(self.app)
            raise self.retry(countdown=SOON * len(args))
        return "twice"

    def calls(self: Any, *args: Any, **kwargs: Any) -> str:
        note(self)
        app.tasks["plain"].delay(1)
        app.tasks["own"].apply_async((2,), countdown=SOON)
        group([app.tasks["plain"].si(n) for n in range(2)], app=app).apply_async()
        return "called"

    def swap(self: Any, *args: Any, **kwargs: Any) -> Any:
        note(self)
        return self.replace(self.app.tasks["plain"].si("swapped"))

    def mark() -> None:
        """End when all messages before it have been received."""

    for run in (plain, fail, again, calls, swap):
        app.task(name=run.__name__, bind=True, shared=False)(run)
    app.task(name="own", bind=True, base=Tenant, shared=False)(plain)
    app.task(name="mark", shared=False)(mark)


class Sender:
    """Sends the calls of one program by *app*."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def signature(self, part: Any) -> Any:
        """Return the canvas of *part*: a kind, what it holds, and options."""
        kind, held, options = part
        app = self._app
        if kind == "group":
            return group(self._members(*held), app=app, **options)
        if kind == "chord":
            header, body = held
            return chord(self._members(*header), self.signature(body), app=app)
        if kind == "chain":
            return chain(*map(self.signature, held), app=app)
        args, immutable = held
        return app.tasks[kind].signature(tuple(args), options=dict(options), immutable=immutable)

    def _members(self, how: str, parts: Any) -> Any:
        if how == "list":
            return [self.signature(part) for part in parts]
        if how == "generator":
            return map(self.signature, parts)
        return self._after_another(parts)

    def _after_another(self, parts: Any) -> Iterator[Any]:
        """Yield each member after the result of another call is there."""
        for part in parts:
            self._app.tasks["plain"].delay("first").get(timeout=WAIT)
            yield self.signature(part)

    def send(self, call: Any) -> Any:
        how, part, options, times = call
        due = {"eta": datetime.now(timezone.utc) + timedelta(seconds=SOON)} if options.get("eta") else {}
        options = {**options, **due}
        if "link" in options:
            options["link"] = self.signature(options["link"])
        if "link_error" in options:
            options["link_error"] = self.signature(options["link_error"])
        # Again: an error closes the connection.
        declare(self._app)
        name, (args, *_), own = part
        hows: dict[str, Callable[[], Any]] = {
            "canvas": lambda: self.signature(part).apply_async(**options),
            "delay": lambda: self._app.tasks[name].delay(*args),
            "apply_async": lambda: self._app.tasks[name].apply_async(tuple(args), **{**own, **options}),
            "send_task": lambda: self._app.send_task(name, tuple(args), **{**own, **options}),
            "stamp": lambda: self._stamped(part).apply_async(**options),
        }
        return [hows[how]() for _ in range(times)]

    def _stamped(self, part: Any) -> Any:
        found = self.signature(part)
        found.stamp(visitor=Stamps())
        return found


@contextmanager
def hearing(  # noqa: C901 - a branch for each change
    app: Celery, kinds: frozenset[str], order: Heard, tasks: Heard
) -> Iterator[None]:
    """Note signals: in *order* those of this thread, and in *tasks* those with the id of their task.

    The receivers of a publish change what *kinds* names.
    """
    sender = threading.current_thread()

    def heard(signal: str, name: Any, task_id: Any, *more: Any) -> None:
        if threading.current_thread() is sender:
            order.append((signal, name, task_id, *more))
        else:
            tasks.append((signal, name, task_id, *more))

    def before(  # noqa: PLR0917 - of the signal
        sender: Any, headers: Any, body: Any, properties: Any, exchange: Any, routing_key: Any, **_: Any
    ) -> None:
        if sender == "mark":
            return
        heard("before", sender, properties["correlation_id"], str(exchange), routing_key)
        kwargs = body["kwargs"] if isinstance(body, dict) else body[1]
        if "headers" in kinds:
            headers["changed"] = "yes"
        if "body" in kinds:
            kwargs["changed"] = "yes"
        if "priority" in kinds:
            properties["priority"] = 9
        if "expires" in kinds and "id" in headers:
            headers["expires"] = (datetime.now(timezone.utc) + timedelta(seconds=60)).isoformat()
        if "eta" in kinds and "id" in headers and not headers["eta"]:
            headers["eta"] = (datetime.now(timezone.utc) + timedelta(seconds=SOON)).isoformat()
        if "sends" in kinds and sender != "own":
            app.tasks["own"].delay("by a receiver")

    def after(sender: Any, headers: Any, body: Any, exchange: Any, routing_key: Any, **_: Any) -> None:
        task_id = headers.get("id") or body.get("id")
        heard("after", sender, task_id, str(exchange), routing_key)

    def of_worker(name: str, sender: Any = None, request: Any = None, task_id: Any = None, **_: Any) -> None:
        of_request = getattr(request, "id", None) or getattr(getattr(sender, "request", None), "id", None)
        heard(name, getattr(sender, "name", None), task_id or of_request)

    receivers: list[tuple[Any, Any]] = []
    if kinds - {"after"}:
        receivers.append((signals.before_task_publish, before))
    if "after" in kinds:
        receivers.append((signals.after_task_publish, after))
    receivers += [(getattr(signals, name), partial(of_worker, name)) for name in OF_WORKER]
    for signal, receiver in receivers:
        signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        for signal, receiver in receivers:
            signal.disconnect(receiver)


def results_of(result: Any) -> Any:
    """Return state, value and children of each task of *result*, with those before it."""
    if isinstance(result, list):
        return [results_of(one) for one in result]
    if isinstance(result, GroupResult):
        return ["group", [results_of(one) for one in result.results], results_of(result.parent)]
    if result is None:
        return None
    before = result.parent if isinstance(result, AsyncResult) else None
    state = [result.state, repr(result.result), result.ignored, [child.id for child in result.children or []]]
    return [type(result).__name__, result.id, *state, results_of(before)]


class Player:
    """An app and a worker that are kept for all programs."""

    def __init__(self, url: str, line: bool) -> None:
        self._url, self._line = url, line
        self.runs: list[str] = []
        self.app = make_app(url, line)
        add_tasks(self.app, self.runs)
        self._client: Any = redis.Redis.from_url(url.replace("redis+socket", "unix").replace("virtual_host", "db"))

    def left(self) -> Any:
        """Return what has not ended: messages in lists, in flight or in the worker, and stored ones."""
        keys = [f"{name}{of}" for name in ("celery", "one", "two", "narrow", "wide") for of in PRIORITIES]
        stored: Any = 0
        # In the order in which messages move.
        if self._line:
            from redis_queue.celery import DurableTasks

            stats = DurableTasks.of(self.app).queue.stats()
            stored = stats.waiting + stats.in_flight
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.llen(key)
        pipeline.hlen("unacked")
        *counts, in_flight = pipeline.execute()
        waiting = {key: count for key, count in zip(keys, counts, strict=True) if count}
        requests = [str(request) for request in (*state.reserved_requests, *state.active_requests)]
        found = (waiting, in_flight, stored, requests)
        return found if any(found) else None

    def wait(self) -> set[str]:
        """Wait until all has ended; return the ids of the calls that this took."""
        marks = set()
        count = -1
        while count != len(self.runs):
            self._wait_for_idle()
            count = len(self.runs)
            # Messages of a fanout exchange are nowhere between sender and worker, but arrive before this one.
            mark = self.app.tasks["mark"].apply_async(queue="all")
            mark.get(timeout=WAIT)
            marks.add(mark.id)
            self._wait_for_idle()
        return marks

    def _wait_for_idle(self) -> None:
        """Wait until a few looks in a row find nothing, and nothing ran in between: a message may move during one."""
        looks: list[Any] = []

        def ended() -> bool:
            looks.append(len(self.runs) if self.left() is None else None)
            last = looks[-LOOKS:]
            return len(last) == LOOKS and last[0] is not None and len(set(last)) == 1

        try:
            wait_until(ended, timeout=WAIT, description="all tasks to end")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.left()}") from error

    def play(self, conf: Any, kinds: frozenset[str], routed: bool, calls: Any) -> Any:
        """Return runs, signals in the order of this thread, signals of tasks, and results."""
        self.runs.clear()
        order: Heard = []
        tasks: Heard = []
        results: list[Any] = []
        with make_app(self._url, self._line) as app:
            # Connections of its own: those that the worker's thread uses at that time do not know its exchanges.
            app.conf.update(conf, broker_transport_options={"sender": True})
            if routed:
                app.conf.task_routes = (lambda name, *_, **__: {"queue": "one"} if name == "own" else None,)
            add_tasks(app, self.runs)
            app.finalize()
            sender = Sender(app)
            with hearing(app, kinds, order, tasks):
                for call in calls:
                    try:
                        results.append(sender.send(call))
                    except Exception as error:  # noqa: BLE001 - the same one is wanted
                        results.append(("raised", type(error).__name__, str(error)))
                marks = self.wait()
            found = [results_of(one) if isinstance(one, list) else one for one in results]
            from tests.support.celery.brokers import close_results

            close_results(app)
        order, tasks = ([row for row in rows if row[2] not in marks] for rows in (order, tasks))
        return list(self.runs), order, tasks, found


PRIORITIES = ("", "\x06\x163", "\x06\x166", "\x06\x169")
"""What kombu adds to the name of a list for each step of priorities."""


def main(url: str, *line: str) -> None:
    # For answers alone: others may print.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    player = Player(url, bool(line))
    from celery.contrib.testing.worker import start_worker

    with start_worker(player.app, hostname="w@guest", perform_ping_check=False, shutdown_timeout=30):
        while True:
            try:
                program = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the test
            except EOFError:
                return
            try:
                answer = player.play(*program)
            except Exception as error:  # noqa: BLE001 - the test tells of it
                answer = f"{type(error).__name__}: {error}"
            pickle.dump(answer, answers)
            answers.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
