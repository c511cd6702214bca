"""Prove with the broker and the workers of a user's Celery app that kills lose no task.

The worker is one of the app, in a process of its own. It consumes one queue, and all its keys have a prefix of their
own, in the broker as in the store: no task, message or entry of the user's is touched.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from celery import Task
from celery.app.utils import find_app
from kombu.connection import Connection
from kombu.exceptions import OperationalError

from redis_queue.basics.logs import hide_secrets
from redis_queue.basics.times import check_duration, monotonic
from redis_queue.celery.brokers.open import BrokerUnavailableError
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.queues.open import broker_queues, connected
from redis_queue.celery.settings import MAX_DELIVERIES, NAMESPACE, extension_of
from redis_queue.celery.store import Store
from redis_queue.celery.stored_tasks import delayed_of
from redis_queue.errors import ConfigurationError
from redis_queue.store.chunks import check_limit
from redis_queue.store.connection import Client
from redis_queue.store.redis_errors import RedisErrors, translate
from redis_queue.store.scripts import Scripts, now_ms
from redis_queue.validation.history import Event, History, check, read
from redis_queue.validation.run import KILL_EVERY, QUIET_SECONDS, Report, new_prefix

if TYPE_CHECKING:
    from celery import Celery

TASK: Final = "redis_queue.validate"

KILLS: Final = 3

DELAYS: Final = (5.0, 30.0)
"""Shortest and longest delay in seconds of 500 tasks or more; every second task has one."""

RATE: Final = 20
"""Most tasks of which the delays end in one second, on average, if there are fewer."""

LONG_EVERY: Final = 25
"""Of so many tasks one takes a second, so that kills interrupt some."""

SETTLE_MS: Final = 2000
"""A task that ends this long before its worker is killed is acknowledged by then, and must not come again."""

STOP_WITHIN: Final = 10.0
"""Seconds for the warm shutdown of the last worker."""

_PROGRAM: Final = """
import sys
from celery import maybe_patch_concurrency
maybe_patch_concurrency(sys.argv)
from redis_queue.celery.validation import work
work()
"""


@dataclass(frozen=True, slots=True)
class CeleryPlan:
    """Settings of a validation of the app that ``-A`` names *app*; raises InvalidValueError for invalid ones.

    *lease*: leases of its workers and dispatchers, short so that the run is. *pool*, *concurrency*: default: the app's.
    """

    app: str
    messages: int = 500
    lease: float = 5.0
    pool: str | None = None
    concurrency: int | None = None
    prefix: str = field(default_factory=new_prefix)

    def __post_init__(self) -> None:
        check_limit(self.messages, 100_000, name="messages")
        check_duration("lease", self.lease, 2, 3600)
        if self.concurrency is not None:
            check_limit(self.concurrency, 1000, name="concurrency")


def validate_app(app: Celery, plan: CeleryPlan, progress: Callable[[int], None] = lambda _: None) -> Report:
    """Run *plan* on *app* in this process, which must not use it afterwards; return the report.

    All that it made is deleted at the end, also when interrupted. *progress* is called with the number of tasks that
    have ended. Raises ConfigurationError before any connection is made if the app cannot be validated, and if its
    worker does not start; BrokerUnavailableError and StoreError.
    """
    _isolate(app, plan)
    try:
        with _clean(app, plan.prefix), tempfile.TemporaryDirectory(prefix="redis-queue-validate-") as folder:
            return _Run(app, plan, Path(folder)).report(progress)
    except OperationalError as error:
        raise BrokerUnavailableError(f"the broker cannot be reached: {error}") from error
    except RedisErrors as error:
        raise translate(error) from error


def _isolate(app: Celery, plan: CeleryPlan) -> None:
    """Give *app* keys of its own, and turn off what others see. Raises ConfigurationError; connects to no server."""
    conf = app.conf
    if conf.task_always_eager:
        raise ConfigurationError("task_always_eager=True: no worker would run the tasks")
    if _kind(conf) == "redis":
        options = conf.broker_transport_options or {}
        prefix = f"{options.get('global_keyprefix') or ''}{plan.prefix}:"
        conf["broker_transport_options"] = {**options, "global_keyprefix": prefix}
    own = {"prefix": plan.prefix, "task_lease": plan.lease, "dispatch_lease": plan.lease, "allowed_queues": None}
    own |= {"dispatch": True, "schedules": False, "max_deliveries": MAX_DELIVERIES}
    for name in ("task_send_sent_event", "worker_direct", "worker_enable_remote_control", "worker_send_task_events"):
        conf[name] = False
    for name in ("task_default_rate_limit", "worker_state_db"):
        conf[name] = None
    for name, value in own.items():
        conf[f"{NAMESPACE}{name}"] = value
    if extension_of(app) is not None and Store.of(app).prefix != plan.prefix:
        raise ConfigurationError(f"the module of {plan.app!r} uses its store when it is imported: it must not")


def _kind(conf: Any) -> str:
    try:
        # Not a connection of the app, which would open its store.
        broker = Connection(conf.broker_write_url, transport=conf.broker_transport)
        kind = str(broker.get_transport_cls().driver_type)
    except (ImportError, KeyError, ValueError) as error:
        raise ConfigurationError(f"broker_url: {hide_secrets(str(error))}") from None
    if kind not in ("redis", "amqp"):
        raise ConfigurationError(f"the broker is {kind}: must be Redis or RabbitMQ")
    return kind


@contextlib.contextmanager
def _clean(app: Celery, prefix: str) -> Iterator[None]:
    """Delete the queue and all keys with *prefix* after the block."""
    try:
        yield
    finally:
        clients: list[Client] = [] if extension_of(app) is None else [Store.of(app).client]
        with connected(app) as connection:
            channel = connection.default_channel
            if connection.transport.driver_type == "redis":
                clients.append(client_of(channel))
            else:
                channel.queue_delete(prefix)
                channel.exchange_delete(prefix)
            for client in clients:
                # Keys of a store begin with a brace, those of a broker may have another prefix before.
                for key in list(client.scan_iter(match=f"*{prefix}:*", count=1000)):
                    client.unlink(key)


class _Run:
    def __init__(self, app: Celery, plan: CeleryPlan, folder: Path) -> None:
        self._app = app
        self._plan = plan
        self._folder = folder
        self._delays = delayed_of(app) is not None
        self._puts: dict[str, Event] = {}
        self._ended: list[tuple[float, list[Event]]] = []
        """When each worker was killed, and what it did; the last one was not killed."""

    def report(self, progress: Callable[[int], None]) -> Report:
        """Send tasks, let workers run them, which are killed meanwhile, and check what they did."""
        started = monotonic()
        self._send()
        self._work(progress)
        left, events, cut = self._left(), [*self._puts.values()], list[tuple[str, float]]()
        for killed_at, found in [*self._ended, (math.inf, self._found())]:
            ends = [event._replace(op="ack") for event in found if event.op == "execute"]
            settled = (event if event.at + SETTLE_MS < killed_at else event._replace(kind="invoke") for event in ends)
            events += [*found, *settled]
            cut += [(id_, killed_at) for id_ in {event.id for event in found} - {event.id for event in ends}]
        claims = sorted((event for event in events if event.op == "claim"), key=lambda event: event.at)
        # Of those with one id, the first one stays.
        first = {event.id: event.at for event in reversed(claims)}
        late = [(first[id_] - put.due) / 1000 for id_, put in self._puts.items() if put.due and id_ in first]
        next_at = ([(event.at - at) / 1000 for event in claims if event.id == id_ and event.at > at] for id_, at in cut)
        again = [min(waits) for waits in next_at if waits]
        return Report.of(
            check(events, []),
            **dict.fromkeys(("out_of_order", "lost_on_purpose", "late_acks_refused")),
            messages=self._plan.messages,
            kills=len(self._ended),
            redelivered=len({event.id for event in claims if event.deliveries > 1}),
            redelivered_within_s=round(max(again), 3) if again else None,
            late_p50_s=round(statistics.median(late), 3) if late else None,
            late_max_s=round(max(late), 3) if late else None,
            left_over=left,
            seconds=round(monotonic() - started, 2),
        )

    def _send(self) -> None:
        (low, high), ahead, queue = DELAYS, 0, self._plan.prefix
        high = min(high, low + self._plan.messages / RATE)
        if self._delays:
            # Entries are due by the clock of the store; workers note the time of this host.
            ahead = max(0, now_ms(Scripts(Store.of(self._app).client)) - round(time.time() * 1000))
        with connected(self._app) as connection:
            producer = self._app.amqp.Producer(connection, auto_declare=False)
            for number in range(self._plan.messages):
                delay = random.uniform(low, high) if self._delays and number % 2 else None
                due = 0 if delay is None else int((time.time() + delay) * 1000) - ahead
                self._puts[str(number)] = Event("put", "ok", str(number), due=due)
                args = [str(number), 0.01 if number % LONG_EVERY else 1.0]
                self._app.send_task(
                    TASK, args, countdown=delay, queue=queue, producer=producer, ignore_result=True, retry=False
                )

    def _work(self, progress: Callable[[int], None]) -> None:
        """Let a worker run until nothing is left; kill it and start another one meanwhile."""
        worker, moved_at, seen, plan = self._start(), monotonic(), 0, self._plan
        try:
            while monotonic() - moved_at < QUIET_SECONDS + 2 * plan.lease:
                earlier, mine = [event for _, found in self._ended for event in found], self._found()
                done = {event.id for event in [*earlier, *mine] if event.op == "execute"}
                if len(earlier) + len(mine) > seen:
                    moved_at, seen = monotonic(), len(earlier) + len(mine)
                    progress(len(done))
                if len(done) == plan.messages and not self._left():
                    worker.terminate()
                    break
                time.sleep(KILL_EVERY)
                if worker.poll() is not None:
                    *_, line = ["no message", *(self._folder / "log").read_text(errors="replace").split("\n")[:-1]]
                    raise ConfigurationError(f"the worker has ended: {hide_secrets(line)}")
                works = sum(event.op == "claim" for event in mine) > sum(event.op == "execute" for event in mine)
                kills = len(self._ended)
                if works and kills < KILLS and len(done) > (kills + 1) * plan.messages // (KILLS + 2):
                    _kill(worker)
                    self._ended.append((time.time() * 1000, self._found()))
                    worker = self._start()
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(STOP_WITHIN)
        finally:
            _kill(worker)

    @property
    def _history(self) -> Path:
        """The history of the worker that runs."""
        return self._folder / f"{len(self._ended)}.jsonl"

    def _found(self) -> list[Event]:
        return list(read(self._history))

    def _start(self) -> subprocess.Popen[str]:
        plan = self._plan
        options = [f"--hostname={plan.prefix}@%h", f"--queues={plan.prefix}", "--loglevel=ERROR"]
        options += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        options += [f"--{name}={value}" for name in ("pool", "concurrency") if (value := getattr(plan, name))]
        with (self._folder / "log").open("w") as log:
            worker = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-c", _PROGRAM, "worker", *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
                text=True,
                # Its pool is killed with it, and a Ctrl-C is for this process only.
                start_new_session=True,
            )
        assert worker.stdin is not None  # noqa: S101 - for the type checker
        with worker.stdin:
            json.dump([asdict(plan), str(self._history)], worker.stdin)
        return worker

    def _left(self) -> int:
        """Return how many tasks are in the queue, in flight, or stored."""
        with broker_queues(self._app) as queues:
            depth = queues.depths([self._plan.prefix])[0]
        left = (depth.ready or 0) + (depth.in_flight or 0)
        if self._delays:
            stats = Store.of(self._app).delay_queue().stats()
            left += stats.waiting + stats.in_flight + stats.dead + stats.quarantined
        return left


def _kill(worker: subprocess.Popen[str]) -> None:
    """Kill a worker and its pool; no-op if they have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def work() -> None:
    """Run a worker of the app, in a process of its own, until it is killed or told to stop."""
    given, path = json.load(sys.stdin)
    plan = CeleryPlan(**given)
    app = find_app(plan.app)
    _isolate(app, plan)

    def run(task: Any, id: str, seconds: float) -> None:
        deliveries = 2 if task.request.delivery_info.get("redelivered") else 1
        claim = Event("claim", "ok", id, time.time_ns(), round(time.time() * 1000), deliveries=deliveries)
        with contextlib.closing(History(Path(path))) as history:
            history.write(claim)
            time.sleep(seconds)
            history.write(claim._replace(op="execute", at=round(time.time() * 1000)))

    app.task(run, name=TASK, base=Task, bind=True, ignore_result=True, shared=False)
    app.worker_main(sys.argv[1:])
