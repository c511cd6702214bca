"""Boot steps of a worker's consumer: hold leases, and stop tasks that kill their workers."""

from __future__ import annotations

import threading
from _thread import start_new_thread
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from celery import bootsteps, signals
from celery.utils.dispatch import Signal
from celery.worker import state

from redis_queue.basics.logs import logger_of
from redis_queue.celery.consume.connections import check_broker, worker_connection
from redis_queue.celery.consume.counters import Name
from redis_queue.celery.consume.gate.consumer import GateConsumer
from redis_queue.celery.consume.gates import GateKeys, Gates, is_gated, processes_of
from redis_queue.celery.consume.leases import WorkerLeases
from redis_queue.celery.consume.poison import DeliveryLimit
from redis_queue.celery.consume.qos import lease_channels
from redis_queue.celery.consume.refusals import Refusals
from redis_queue.celery.consume.safe_settings import ATTRIBUTE
from redis_queue.celery.consume.start_guard import StartGuard
from redis_queue.celery.flow.gate import uses_gates
from redis_queue.celery.flow.policy import FlowPolicy
from redis_queue.celery.kombu import internals
from redis_queue.celery.kombu.keys import InFlightKeys
from redis_queue.celery.message.headers import is_redelivered
from redis_queue.celery.store import Store
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.errors import RedisQueueError, StoreError
from redis_queue.flow.declarations import Declarations
from redis_queue.store.keys import FlowKeys
from redis_queue.store.redis_errors import RedisErrors
from redis_queue.store.scripts import Scripts

logger = logger_of(__name__)

lease_lost: Final = Signal(name="lease_lost", providing_args={"task_id", "delivery_tag"})
"""Sent by a worker that lost the lease of a task, so that another worker may run it; the sender is the consumer."""

SPARE_WITHIN: Final = 2.0
"""Most seconds for which a worker that was told to stop waits for Redis before it goes on to stop."""

OnMessage = Callable[[Any], Any]


class LeaseStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Puts each connection of a worker's consumer under the WorkerLeases of the worker."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.leases: WorkerLeases | None = None
        #: Consumer of messages of flows, if the broker is not the Redis of the store.
        self.gate: GateConsumer | None = None
        self._consumer = consumer
        #: What the event loop calls in each turn for the connection.
        self._ticks: set[Callable[[], Any]] = set()
        check_broker(consumer.app)
        self._fetching = Store.of(consumer.app).settings.atomic_fetch and _can_fetch()

        connect = consumer.connect
        Refusals(consumer)

        def leased(heartbeat: float | None = None) -> Any:
            connection = consumer.ensure_connected(worker_connection(consumer.app, heartbeat))
            self._lease(consumer, connection)
            return connection

        def connect_leased() -> Any:
            hub = consumer.hub
            before = set()
            if hub is not None:
                # The poller of the connection before would tick on.
                hub.on_tick -= self._ticks
                before = set(hub.on_tick)
            # kombu looks for expired messages, by the clock of this host, as soon as it is connected, and long before
            # this step starts.
            consumer.connection_for_read = leased
            try:
                return connect()
            finally:
                del consumer.connection_for_read
                self._ticks = set() if hub is None else hub.on_tick - before

        self._loop_calls = _LoopCalls(consumer)
        consumer.connect = connect_leased
        StartGuard(consumer, self._is_ours, self._count_drop)
        consumer.redis_queue_leases = self

    @property
    def has_gates(self) -> bool:
        """Whether the consumer itself takes messages of flows, from its broker."""
        return self.leases is not None and self.leases.gates.here

    @property
    def gate_leases(self) -> WorkerLeases | None:
        """The leases of messages from gates that are not in the broker."""
        return None if self.gate is None else self.gate.leases

    def of(self, tag: Any) -> WorkerLeases | None:
        """Return the leases to which the message with this delivery tag belongs; None if it needs none."""
        return (self.gate_leases if isinstance(tag, str) and is_gated(tag) else None) or self.leases

    def _is_ours(self, tag: Any) -> bool:
        leases = self.of(tag)
        return leases is None or leases.is_ours(tag)

    def tell_loss(self, tag: str, after: float) -> None:
        """Tell that the lease of the message with this delivery tag was lost *after* some seconds."""
        _tell_loss(self._consumer, tag, after)

    def declare(self, keys: FlowKeys) -> None:
        """Tell Redis the flows of the app."""
        app, store = self._consumer.app, Store.of(self._consumer.app)
        flows = FlowPolicy.of(app).all()
        try:
            StoredTasks.of(app).flow.declare(flows)
            changed = Declarations(Scripts(store.client), keys).write(app.main, flows)
        except StoreError as error:
            # Those that were declared before stay in force. A user of an app without flows may lack the permission.
            if flows:
                logger.warning("cannot declare the flows: %s", error, extra={"action": "declare_failed"})
            return
        for name in changed:
            text = (
                "flow %s: its key has changed; messages with old keys still wait or run, and count apart: docs/flow.md"
            )
            logger.warning(text, name, extra={"action": "flow_key_changed"})

    def count(self, name: Name) -> None:
        """Count for all workers, if the broker is Redis."""
        if self.leases is not None:
            self.leases.counters.add(name)

    def _count_drop(self) -> None:
        self.count("dropped")

    def _lease(self, consumer: Any, connection: Any) -> None:
        """Hold the messages of *connection* under leases."""
        if connection.transport.driver_type != "redis":
            logger.info("the broker is not Redis: it needs no leases", extra={"action": "leases_not_needed"})
            return
        if self.leases is None:
            gates = self._gates(consumer, connection)
            self.leases = WorkerLeases(connection, self.tell_loss, gates)
        lease_channels(connection.transport, self.leases, fetching=self._fetching)
        if self._fetching and consumer.hub is not None:
            # After a lost connection it is not kombu's current event loop any more, and no time would be kept.
            connection.transport.cycle.use_hub(consumer.hub)

    def _gates(self, consumer: Any, connection: Any) -> Gates:
        """Return the gates of the worker, and tell Redis the flows of the app, if they are in its broker."""
        store = Store.of(consumer.app)
        keys = GateKeys(InFlightKeys.of(connection.default_channel), store.flow_keys)
        # With a store of its own, GateConsumer finds out.
        here = store.settings.url is None
        in_use = here and uses_gates(consumer.app)
        if in_use:
            self.declare(keys.flows)
        return Gates(keys, lambda: processes_of(consumer), in_use=in_use, here=here)

    def end_loop(self) -> None:
        """Settle what the event loop was to settle, and all that follows at once: the loop has ended."""
        if self.leases is not None:
            self.leases.loop_has_ended = True
        self._loop_calls.end()
        if self.leases is not None:
            self.leases.settle_waiting()

    def stop(self, consumer: Any) -> None:
        """Do nothing: tasks still run while a worker shuts down or reconnects."""

    def shutdown(self, consumer: Any) -> None:  # noqa: ARG002 - what Celery calls
        """Stop renewing, after all tasks have ended."""
        leases, self.leases = self.leases, None
        if leases is not None:
            leases.close()


class DeliveryLimitStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Checks each redelivered message against the DeliveryLimit before the worker handles it."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        limit: DeliveryLimit = getattr(consumer.app, ATTRIBUTE).limit
        # Not only close(): a solo pool runs its task first, and SIGKILL may follow SIGTERM.
        signals.worker_shutting_down.connect(self.told_to_stop, weak=False, sender=consumer.hostname)
        worker = consumer.controller
        if soft := getattr(worker, "wait_for_soft_shutdown", None):

            def told_then_soft() -> Any:
                self.told_to_stop()
                return soft()

            # A cold shutdown begins with it, and cancels the tasks before it sends the signal.
            worker.wait_for_soft_shutdown = told_then_soft
        self._limit, self._consumer = limit, consumer
        self._cancelled: list[Any] = []
        lost = consumer.on_connection_error_after_connected

        def lost_connection(error: Exception) -> None:
            if consumer.app.conf.worker_cancel_long_running_tasks_on_connection_loss:
                self._cancelled += state.active_requests
            lost(error)

        consumer.on_connection_error_after_connected = lost_connection
        make = consumer.create_task_handler
        consumer.create_task_handler = lambda *args, **options: _guard(consumer, limit, make(*args, **options))

    def start(self, consumer: Any) -> None:  # noqa: ARG002 - what Celery calls
        """Let the starts of tasks not count that Celery has cancelled, since their connection was lost."""
        cancelled, self._cancelled = self._cancelled, []
        if cancelled:
            self._spare(cancelled)

    def told_to_stop(self, **_: Any) -> None:
        """Let the starts of the tasks that the worker runs not count; no-op if it was called before."""
        # A signal handler must not wait for a silent Redis, and a handler of gevent for nothing.
        done = threading.Lock()
        done.acquire()

        def spare() -> None:
            try:
                self._spare(tuple(state.active_requests))
            finally:
                done.release()

        start_new_thread(spare, ())
        if not getattr(self._consumer.pool, "is_green", False):
            done.acquire(timeout=SPARE_WITHIN)

    def _spare(self, requests: Iterable[Any]) -> None:
        try:
            self._limit.spare(requests)
        except (RedisQueueError, *RedisErrors) as error:
            logger.warning("running tasks are counted as starts: %s", error, extra={"action": "spare_failed"})


class _LoopCalls:
    """The calls that the event loop of *consumer* is to make soon, such as acknowledgements.

    After its end they are made at once, by the threads of the pool, while other tasks still run.
    """

    def __init__(self, consumer: Any) -> None:
        self._lock = threading.Lock()
        self._has_ended = False
        self._waiting: dict[object, Callable[[], Any]] = {}
        # Acknowledgements use the second one since Celery 5.7.
        for name in ("call_soon", "call_soon_ack"):
            if (soon := getattr(consumer, name, None)) is not None:
                setattr(consumer, name, partial(self._call, soon))

    def end(self) -> None:
        """Make all calls that the loop has not made."""
        with self._lock:
            self._has_ended = True
        for mark in list(self._waiting):
            self._make(mark)

    def _call(self, soon: Callable[..., Any], function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        mark = object()
        with self._lock:
            self._waiting[mark] = partial(function, *args, **options)
            has_ended = self._has_ended
        return self._make(mark) if has_ended else soon(self._make, mark)

    def _make(self, mark: object) -> None:
        # The loop may make a call that was made at its end.
        if (call := self._waiting.pop(mark, None)) is not None:
            call()


def _can_fetch() -> bool:
    lacking = internals.lacking()
    if lacking:
        logger.warning(
            "%s: it needs kombu 5.7, or a later one that it knows; %s has no %s",
            internals.FETCH_IS_OFF,
            internals.versions(),
            ", ".join(lacking),
            extra={"action": "fetch_unsupported"},
        )
    return not lacking


def _guard(consumer: Any, limit: DeliveryLimit, handle: OnMessage) -> OnMessage:
    def on_message(message: Any) -> Any:
        if not is_redelivered(message.delivery_info):
            return handle(message)
        # Celery refuses messages with other headers.
        headers = message.headers or {}
        name = headers.get("task") if headers.get("id") else None
        task = consumer.app.tasks.get(name) if isinstance(name, str) else None
        starts = limit.exceeded(message, task) if task is not None else None
        # If it cannot be stored as a dead letter, better run it once more than lose it.
        if starts is None or not limit.bury(consumer, message, task, starts):
            return handle(message)
        consumer.redis_queue_leases.count("dead")
        return None

    return on_message


def _tell_loss(consumer: Any, tag: str, after: float) -> None:
    found = (request for request in tuple(state.reserved_requests) if request.message.delivery_tag == tag)
    request = next(found, None)
    task_id = request.id if request else None
    logger.warning(
        "lost the lease of task %s (delivery tag %s) after %.0f s: another worker may run it as well",
        task_id,
        tag,
        after,
        extra={"action": "lease_lost", "task_id": task_id},
    )
    lease_lost.send(sender=consumer, task_id=task_id, delivery_tag=tag)
