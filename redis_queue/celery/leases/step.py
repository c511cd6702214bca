"""LeaseStep: holds the messages of a worker under leases, also while their broker refuses commands."""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import celery
from celery import bootsteps
from celery.exceptions import CPendingDeprecationWarning
from celery.utils.dispatch import Signal
from celery.utils.log import get_logger
from celery.worker import state
from celery.worker.state import maybe_shutdown

from redis_queue.admission.declarations import Declarations
from redis_queue.basics.logs import OutageLog, logger_of
from redis_queue.basics.times import monotonic
from redis_queue.basics.waits import Backoff
from redis_queue.celery.admission.admission import Admission, AdmissionKeys, has_place, processes_of
from redis_queue.celery.admission.policy import FlowPolicy
from redis_queue.celery.admission.sender import uses_admission
from redis_queue.celery.kombu import internals
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.internals import around
from redis_queue.celery.kombu.keys import InFlightKeys
from redis_queue.celery.leases.connections import check_broker, worker_connection
from redis_queue.celery.leases.leases import CounterName, WorkerLeases
from redis_queue.celery.leases.qos import forget_lost_requests, lease_channels
from redis_queue.celery.store import Store
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.errors import StoreError
from redis_queue.store.commands import FETCH, LEASES, known_missing, require
from redis_queue.store.keys import FlowKeys
from redis_queue.store.redis_errors import as_unavailable, is_temporary_refusal
from redis_queue.store.scripts import Scripts

logger = logger_of(__name__)

lease_lost: Final = Signal(name="lease_lost", providing_args={"task_id", "delivery_tag"})
"""Sent by a worker that lost the lease of a task, so that another worker may run it; the sender is the consumer."""

QUIET: Final = 10.0
"""Seconds without a refusal after which the pauses begin with the shortest again."""

STOP_CHECK_INTERVAL: Final = 0.2
"""Seconds between two looks whether the worker has been told to stop."""

CHATTER: Final = ("connection", "consumer", "mingle")
"""Modules of Celery that log a line for each attempt."""


class LeaseStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Puts each connection of a worker's consumer under the WorkerLeases of the worker."""

    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self.leases: WorkerLeases | None = None
        #: Of messages of flows, from a store that is not the broker.
        self.store_leases: WorkerLeases | None = None
        self._consumer = consumer
        self._forgotten: list[Any] = []
        #: What the event loop calls in each turn for the connection.
        self._ticks: set[Callable[[], Any]] = set()
        check_broker(consumer.app)
        self._fetching = Store.of(consumer.app).settings.atomic_fetch and _can_fetch()
        Refusals(consumer)
        self._loop_calls = _LoopCalls(consumer)
        around(consumer, "connect", self._connect)
        around(consumer, "on_close", self._drop_waiting)
        consumer.redis_queue_lease_step = self

    @staticmethod
    def of_worker(consumer: Any) -> LeaseStep:
        """Return the step of *consumer*, whose worker has leases."""
        found: LeaseStep = consumer.redis_queue_lease_step
        return found

    @property
    def takes_flows(self) -> bool:
        """Whether the consumer itself takes messages of flows, from its broker."""
        return self.leases is not None and self.leases.admission.here

    def of(self, tag: Any) -> WorkerLeases | None:
        """Return the leases to which the message with this delivery tag belongs; None if it needs none."""
        return (self.store_leases if isinstance(tag, str) and has_place(tag) else None) or self.leases

    def is_ours(self, tag: Any) -> bool:
        """Return whether the worker still has the lease of the message with this delivery tag, or it needs none."""
        leases = self.of(tag)
        return leases is None or leases.is_ours(tag)

    def may_be_ours(self, tag: Any) -> bool:
        """Return whether :meth:`is_ours`, or the broker is away, so that nobody knows."""
        try:
            return self.is_ours(tag)
        except (*self._consumer.connection_errors, *self._consumer.channel_errors):
            return True

    def report_loss(self, tag: str, task_id: str | None, after: float) -> None:
        """Tell that the lease of the message with this delivery tag was lost *after* some seconds."""
        logger.warning(
            "lost the lease of task %s (delivery tag %s) after %.0f s: another worker may run it as well",
            task_id,
            tag,
            after,
            extra={"action": "lease_lost", "task_id": task_id},
        )
        lease_lost.send(sender=self._consumer, task_id=task_id, delivery_tag=tag)

    def begin(self, connection: Any, admission: Admission) -> WorkerLeases:
        """Return the leases of the messages that the worker takes by *connection* and those after it."""
        blueprint = self._consumer.blueprint
        return WorkerLeases(connection, self.report_loss, admission, lambda: blueprint.state == bootsteps.RUN)

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

    def count(self, name: CounterName) -> None:
        """Count for all workers, if the broker is Redis."""
        if self.leases is not None:
            self.leases.counters.add(name)

    def _connect(self, connect: Callable[[], Any]) -> Any:
        """Connect by *connect*, and hold the messages of the connection under leases."""
        consumer, hub = self._consumer, self._consumer.hub
        before = set()
        if self.leases is not None:
            # The objects of a lost connection refer to each other: Python would free them after many more of them.
            gc.collect()
        if hub is not None:
            # The poller of the connection before would tick on.
            hub.on_tick -= self._ticks
            before = set(hub.on_tick)
        # kombu looks for expired messages, by the clock of this host, as soon as it is connected, and long before this
        # step starts.
        consumer.connection_for_read = self._leased_connection
        try:
            return connect()
        finally:
            del consumer.connection_for_read
            self._ticks = set() if hub is None else hub.on_tick - before

    def _drop_waiting(self, drop: Callable[[], None]) -> None:
        """Let Celery *drop* what waits in the worker after a lost connection; what the pool has still counts."""
        forget_lost_requests()
        # References to them would keep them.
        reserved = list(map(weakref.ref, tuple(state.reserved_requests)))
        # Celery before 5.7 does not have it, and runs them.
        timed = list(map(weakref.ref, tuple(getattr(state, "scheduled_requests", ()))))
        if self._consumer.pool.uses_semaphore and celery.VERSION < (5, 7):
            # The pool forgets them here, and runs them: their messages come again when the worker ends.
            self._forgotten += state.active_requests
        with internals.written_jobs_kept(self._consumer.pool):
            drop()
        for found in reserved:
            _reserve_again(found())
        for found in timed:
            self.let_go(found())
        forget_lost_requests()

    def let_go(self, request: Any) -> None:
        """Return the message of *request* soon if Celery has cancelled it; something may refer to it for longer."""
        if request is not None and request not in state.reserved_requests:
            tag = request.message.delivery_tag
            leases = self.of(tag)
            if leases is not None:
                leases.let_go(tag)

    def _leased_connection(self, heartbeat: float | None = None) -> Any:
        connection = self._consumer.ensure_connected(worker_connection(self._consumer.app, heartbeat))
        self._lease(connection)
        return connection

    def _lease(self, connection: Any) -> None:
        if connection.transport.driver_type != "redis":
            logger.info("the broker is not Redis: it needs no leases", extra={"action": "leases_not_needed"})
            return
        if self.leases is None:
            self._check_commands(Scripts(client_of(connection.default_channel)))
            self.leases = self.begin(connection, self._admission(connection))
        lease_channels(connection.transport, self.leases, fetching=self._fetching)
        consumer = self._consumer
        if self._fetching and consumer.hub is not None:
            # After a lost connection it is no longer kombu's current event loop, and no time would be kept.
            connection.transport.cycle.use_hub(consumer.hub)

    def _check_commands(self, broker: Scripts) -> None:
        """Turn atomic fetch off if *broker* lacks a command of it. Raises ConfigurationError if leases need one."""
        require(broker, LEASES, "broker_url")
        missing = known_missing(broker, FETCH) if self._fetching else []
        if missing:
            self._fetching = False
            text = "%s: this Redis has no %s"
            logger.warning(text, internals.FETCH_IS_OFF, ", ".join(missing), extra={"action": "fetch_refused"})

    def _admission(self, connection: Any) -> Admission:
        """Return the admission to the worker, and tell Redis the flows of the app, if they are in its broker."""
        consumer, store = self._consumer, Store.of(self._consumer.app)
        keys = AdmissionKeys(InFlightKeys.of(connection.default_channel), store.flow_keys)
        # With a store of its own, StoreConsumer finds out.
        here = store.settings.url is None
        in_use = here and uses_admission(consumer.app)
        if in_use:
            self.declare(keys.flows)
        return Admission(keys, lambda: processes_of(consumer), in_use=in_use, here=here)

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


def _reserve_again(request: Any) -> None:
    if request is not None:
        state.task_reserved(request)


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
            if hasattr(consumer, name):
                around(consumer, name, self._call)

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


class BrokerRefusesError(ConnectionError):
    """For Celery a lost connection: the broker refuses commands for now."""


class Refusals:
    """Makes Celery connect again, after growing pauses, when the broker refuses commands, also at startup.

    Tasks run on meanwhile, and are settled on the next connection.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._pauses = Backoff(first=0.5)
        self._outage = OutageLog(
            logger, "the broker refuses commands for now", "the broker accepts commands again", action="broker_refuses"
        )
        self._ready_at = math.inf
        self._next_at = -math.inf
        around(consumer.blueprint, "start", self._start)
        around(consumer, "on_ready", self._end_outage)
        around(consumer, "ensure_connected", _ensure_connected)
        # It says at each attempt that running tasks can no longer be acknowledged; with leases they are.
        warnings.filterwarnings("ignore", r"\s*In Celery 5\.1 .*\son connection loss", CPendingDeprecationWarning)
        for name in CHATTER:
            get_logger(f"celery.worker.consumer.{name}").addFilter(self._is_news)

    def _start(self, start: Callable[[Any], Any], consumer: Any) -> Any:
        # Not before: meanwhile Celery has closed the connection, so tasks that end now are settled by the next one.
        self._pause()
        try:
            return start(consumer)
        except Exception as error:
            refusal = as_unavailable(error)
            if refusal is None:
                raise
            self._note(refusal)
            raise BrokerRefusesError(str(refusal)) from error

    def _note(self, error: Exception) -> None:
        now = monotonic()
        if now - self._ready_at > QUIET:
            self._pauses.reset()
        self._ready_at = math.inf
        pause = self._pauses.next()
        self._next_at = now + pause
        self._outage.note(error, retry_in=pause)

    def _pause(self) -> None:
        stops = (bootsteps.CLOSE, bootsteps.TERMINATE)
        while (left := self._next_at - monotonic()) > 0 and self._consumer.blueprint.state not in stops:
            maybe_shutdown()
            time.sleep(min(left, STOP_CHECK_INTERVAL))

    def _end_outage(self, on_ready: Callable[[], Any]) -> Any:
        self._ready_at = monotonic()
        self._outage.end()
        return on_ready()

    def _is_news(self, record: logging.LogRecord) -> bool:
        """Return whether *record* says more than the one line about the outage."""
        args = record.args if isinstance(record.args, tuple) else ()
        told = self._outage.ongoing and record.levelno <= logging.INFO
        return not told and not any(isinstance(value, BrokerRefusesError) for value in args)


def _ensure_connected(ensure_connected: Callable[[Any], Any], connection: Any) -> Any:
    """Make *connection* raise a refusal at once: kombu would pause inside the event loop, for up to 30 s at a time."""
    around(connection, "_ensure_connection", _ensure_connection)
    return ensure_connected(connection)


def _ensure_connection(
    ensure: Callable[..., Any], on_error: Callable[..., Any] | None = None, *args: Any, **kwargs: Any
) -> Any:
    def check(error: Exception, interval: float) -> None:
        if is_temporary_refusal(error):
            raise error
        if on_error is not None:
            on_error(error, interval)

    return ensure(check, *args, **kwargs)
