"""Apps with flows in the process of a test, and real workers of `tests.support.celery.flow_app`."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil
import redis
from celery import Celery

from redis_queue import Flow
from redis_queue.celery import DurableTasks
from redis_queue.store.keys import FlowKeys
from tests.support.celery.fetching import Taker, connected
from tests.support.celery.flow_names import EVENTS, GATE
from tests.support.celery.processes import CeleryProcess
from tests.support.servers import RedisServer
from tests.support.wait import wait_until

QUEUE = "flows"
KEYS = FlowKeys("redis_queue")
IN_FLIGHT = ["unacked", "unacked_index", f"{KEYS.taken}unacked", f"{KEYS.taken}unacked_index"]


def url_of(server: RedisServer) -> str:
    return f"redis+socket://{server.socket}"


@contextmanager
def flow_app(server: RedisServer, flows: dict[str, Any] | None = None, **settings: Any) -> Iterator[Celery]:
    """Make an app whose tasks are ``work(key, number)``, and ``sync``, which runs alone for its key."""
    app = Celery("flows", broker=url_of(server), set_as_current=False)
    app.conf.update(task_default_queue=QUEUE, task_ignore_result=True, redis_queue_flow=flows or {}, **settings)
    DurableTasks(app)

    @app.task(name="work", shared=False)  # type: ignore[untyped-decorator]
    def work(key: str = "", number: int = 0) -> None:
        """Do nothing."""

    @app.task(name="sync", shared=False, flow=Flow(limit=1, key="shop:{key}"))  # type: ignore[untyped-decorator]
    def sync(key: str = "", number: int = 0) -> None:
        """Do nothing."""

    try:
        yield app
    finally:
        app.close()


@contextmanager
def taking_flows(
    server: RedisServer, flows: dict[str, Any] | None = None, *, prefetch: int = 100, processes: int = 1
) -> Iterator[tuple[Celery, Taker]]:
    """Make such an app, and a consumer of its queue."""
    with flow_app(server, flows) as app, connected(server) as connection:
        yield app, Taker(connection, [QUEUE], prefetch, processes=processes)


def counts(client: redis.Redis) -> dict[str, Any]:
    """Return what Redis keeps of places and waiting messages, without what is empty."""
    running: Any = client.hgetall(KEYS.running)
    backlog: Any = client.hgetall(KEYS.backlog)
    found = {"running": texts(running), "waiting": texts(backlog), "held": client.hlen(KEYS.held.decode())}
    return {name: value for name, value in found.items() if value}


def texts(rows: dict[bytes, bytes]) -> dict[str, int]:
    return {name.decode().replace("\0", "/"): int(value) for name, value in rows.items()}


def taken(taker: Taker) -> list[Any]:
    """Return the arguments of the tasks that *taker* holds once it has taken all that it can."""

    def quiet() -> bool:
        taker.turn()
        fetch = taker.channel._fetch
        if fetch is None or fetch.pending or fetch.commands._unanswered or taker.channel.has_messages:
            return False
        if len(taker.leases.settlement):
            # What is acknowledged frees its place a few milliseconds later.
            return False
        return not fetch.is_due or taker.leases.admission.capacity(0).free <= 0

    wait_until(quiet, description="the consumer to have taken all")
    return [json.loads(message.body)[0] for message in taker.messages]


@dataclass
class Fleet:
    """Real workers on *server*, whose tasks tell when they enter and leave."""

    server: RedisServer
    client: redis.Redis
    flows: dict[str, Any]
    timeout: float = 2.0
    settings: dict[str, Any] = field(default_factory=dict)
    broker: str = ""
    """URL of a broker that is not *server*, where the store is."""
    queue: str = QUEUE
    broker_of_workers: str = ""
    """URL by which workers reach the broker, such as that of a proxy."""
    store_of_workers: str = ""
    """URL by which workers reach the store."""
    flowless: bool = False
    """Whether the tasks of workers have no flow in their code."""
    stack: ExitStack = field(default_factory=ExitStack)
    """Ends the workers that `start()` starts."""

    @property
    def flow(self) -> str:
        return f"queue:{self.queue}"

    @property
    def url(self) -> str:
        return self.broker or url_of(self.server)

    @property
    def all_settings(self) -> dict[str, Any]:
        """The settings of workers and producer."""
        options: dict[str, Any] = {"unacked_restore_interval": 1}
        found: dict[str, Any] = {"redis_queue_flow": self.flows, "redis_queue_task_lease": self.timeout}
        found["task_default_queue"] = self.queue
        if self.broker:
            found["redis_queue_url"] = url_of(self.server)
            # A broker that other tests use as well.
            found |= {"control_exchange": f"control-{self.queue}", "event_exchange": f"events-{self.queue}"}
            options = options if self.broker.startswith("redis") else {"confirm_publish": True}
        return {**found, "broker_transport_options": options, **self.settings}

    def worker(self, name: str, *arguments: str, pool: str = "prefork", concurrency: int = 2) -> CeleryProcess:
        store = {"redis_queue_url": self.store_of_workers} if self.store_of_workers else {}
        return CeleryProcess(
            *("-A", "tests.support.celery.flow_app", "worker", "--loglevel", "INFO", "--hostname", f"{name}@%h"),
            *("--pool", pool, "--concurrency", str(concurrency), "--without-mingle", "--without-gossip"),
            *arguments,
            environment={
                "BROKER_URL": self.broker_of_workers or self.url,
                "REFEREE_URL": url_of(self.server),
                "SETTINGS": json.dumps({**self.all_settings, **store}),
                **({"FLOWLESS": "1"} if self.flowless else {}),
            },
        )

    def start(self, *names: str, arguments: Sequence[str] = (), **options: Any) -> list[CeleryProcess]:
        """Start a worker of each name, and wait until they consume."""
        started = [self.stack.enter_context(self.worker(name, *arguments, **options)) for name in names]
        for worker in started:
            worker.wait_for_output("ready.")
        return started

    @contextmanager
    def producer(self) -> Iterator[Celery]:
        """Make an app that sends, without the tasks of the workers."""
        app = Celery("flows", broker=self.url, set_as_current=False)
        app.conf.update({"task_ignore_result": True, **self.all_settings})
        DurableTasks(app)
        try:
            yield app
        finally:
            app.close()

    def events(self) -> list[tuple[str, str, str, int]]:
        """Return what tasks told: enter or leave, key, id, ms by the clock of Redis."""
        rows: Any = self.client.lrange(EVENTS, 0, -1)
        found = [row.decode().split(" ") for row in rows]
        return [(kind, key, id_, int(at)) for kind, key, id_, at in found]

    def entered(self) -> list[str]:
        """Return the ids of the tasks that entered, in order."""
        return [id_ for kind, _, id_, _ in self.events() if kind == "enter"]

    def wait_for(self, kind: str, count: int, *, timeout: float = 40.0) -> None:
        """Wait until *count* tasks have told *kind*."""
        wait_until(
            lambda: sum(event[0] == kind for event in self.events()) >= count,
            timeout=timeout,
            description=f"{count} tasks to {kind}",
        )

    def release(self, count: int = 1) -> None:
        """Let *count* holding tasks end."""
        self.client.rpush(GATE, *["go"] * count)

    def wait_until_free(self, *, timeout: float = 30.0) -> None:
        """Wait until no message waits, runs or has a place."""
        wait_until(
            lambda: not counts(self.client) and not self.client.exists(*IN_FLIGHT),
            timeout=timeout,
            description=f"all places to be free: {counts(self.client)}",
        )


def peak(events: list[tuple[str, str, str, int]], *, of_key: bool = False) -> int:
    """Return how many tasks ran at once at most, of all keys or of one; entries of one task count once."""
    running: Counter[str] = Counter()
    inside: set[str] = set()
    most = 0
    for kind, key, id_, _ in events:
        name = key if of_key else ""
        if kind == "enter" and id_ not in inside:
            inside.add(id_)
            running[name] += 1
        elif kind == "leave" and id_ in inside:
            inside.remove(id_)
            running[name] -= 1
        most = max(most, running[name])
    return most


def kill(worker: CeleryProcess) -> None:
    family = psutil.Process(worker.pid).children(recursive=True)
    os.kill(worker.pid, signal.SIGKILL)
    for child in family:
        if child.is_running():
            child.kill()
