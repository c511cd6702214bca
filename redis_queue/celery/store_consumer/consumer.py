"""StoreConsumer: takes messages of flows from the store, for a worker whose broker is elsewhere."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any, Final

import redis

from redis_queue.basics.logs import hide_secrets, logger_of
from redis_queue.basics.times import monotonic
from redis_queue.basics.waits import Backoff
from redis_queue.celery.admission.admission import Admission, AdmissionKeys, processes_of
from redis_queue.celery.admission.sender import check_admission, uses_admission
from redis_queue.celery.brokers.redis import is_same_database
from redis_queue.celery.kombu.connection import client_of
from redis_queue.celery.kombu.keys import InFlightKeys
from redis_queue.celery.leases.qos import lease_channels
from redis_queue.celery.leases.step import LeaseStep
from redis_queue.celery.store import Store
from redis_queue.celery.store_consumer.channel import ERRORS, store_mixins
from redis_queue.celery.store_consumer.connection import CLOSING, DrainThread, HubGuard, store_connection
from redis_queue.errors import ConfigurationError
from redis_queue.store.keys import FlowKeys
from redis_queue.store.redis_errors import RedisErrors, UnlessRefused

logger = logger_of(__name__)

MAX_PAUSE: Final = 2.0
"""Maximum seconds between two attempts to reach a store that is away."""

QUIET: Final = 30.0
"""Seconds without an error after which the next one is logged, and the pauses begin with the shortest again."""

KEEP: Final = 1.0
"""Seconds without messages of flows after which the prefetch count is that of Celery again."""


class StoreConsumer:
    """A second consumer of the worker of *consumer*, beside that of its broker. Messages go to the same tasks.

    It takes messages once the app, or the store, has flows. While the store is away, nothing is taken, tasks go on and
    are settled later, and the messages of the broker are not delayed.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._leases = LeaseStep.of_worker(consumer)
        self._store = Store.of(consumer.app)
        self._connection: Any = None
        # What calls the connection back: the event loop of the worker, or a thread.
        self._loop: HubGuard | DrainThread | None = None
        self._share: PrefetchLimiter | None = None
        self._stopped = threading.Event()
        self._watch: threading.Thread | None = None
        self._failure: Exception | None = None
        self._pauses = Backoff(first=0.1, cap=MAX_PAUSE)
        self._lost_at = -math.inf
        self._handle: Callable[[Any], Any] = lambda _: None
        #: Whether the broker of the worker is Redis.
        self.broker_is_redis = False

    @property
    def is_idle(self) -> bool:
        """Whether there were no flows at the last look."""
        return self._connection is None and self._watch is None

    @property
    def prefetch_count(self) -> int:
        """Number of messages that the worker takes ahead; 0 for no limit."""
        return int(self._consumer.initial_prefetch_count)

    def finds_flows(self) -> bool:
        """Return whether there are flows by now; False while the store is away."""
        client = self._store.client
        try:
            return isinstance(client, redis.Redis) and _has_flows(client, self._store.flow_keys)
        except ERRORS:
            return False

    def start(self) -> None:
        """Take messages if there are flows; if the store is away, as soon as it is back."""
        self._stopped.clear()
        self._handle = self._consumer.create_task_handler()
        self._share = PrefetchLimiter(self._consumer)
        try:
            self._connect()
        except ConfigurationError:
            raise
        except ERRORS as error:
            self.lose(error)

    def cancel(self) -> None:
        """Take no more messages; settle those that were taken."""
        self._end_watch()
        if self._connection is not None:
            channel = self._connection.default_channel
            for tag in tuple(channel._consumers):
                channel.basic_cancel(tag)

    def stop(self) -> None:
        """Close the connection; messages whose tasks have not started return to the store."""
        self._end_watch()
        loop, connection, self._loop, self._connection = self._loop, self._connection, None, None
        if loop is not None:
            loop.close()
        if connection is not None:
            try:
                connection.close()
            except ERRORS as error:
                logger.warning(
                    "cannot return messages of flows, which come again when their leases end: %s",
                    hide_secrets(str(error)),
                    extra={"action": "flow_return_failed"},
                )

    def close(self) -> None:
        """Close the connection, and stop renewing."""
        self.stop()
        leases, self._leases.store_leases = self._leases.store_leases, None
        if leases is not None:
            leases.close()

    def sync(self) -> None:
        """Take messages of the queues that the worker consumes now, and of no others."""
        if self._connection is None or self._consumer.task_consumer is None:
            return
        channel, tasks = self._connection.default_channel, self._consumer.task_consumer
        wanted = {queue.name for queue in tasks.queues}
        for queue in set(channel.active_queues) - wanted:
            channel.basic_cancel(queue)
        for queue in sorted(wanted.difference(channel.active_queues)):
            channel.basic_consume(queue, no_ack=False, callback=self._take, consumer_tag=queue)

    def _take(self, message: Any) -> Any:
        consumer = self._consumer
        if consumer.task_consumer is not None:
            # As kombu's consumer does, through which this message does not go.
            message.accept = consumer.task_consumer.accept
        # After a lost connection, Celery raises the prefetch count of the broker at each acknowledgement, in the thread
        # of the task. That may take the reply for which the event loop waits; and this message is not the broker's.
        before, consumer._maximum_prefetch_restored = consumer._maximum_prefetch_restored, True
        try:
            return self._handle(message)
        except Exception as error:
            # Not an error of the store.
            self._failure = error
            raise
        finally:
            consumer._maximum_prefetch_restored = before

    def _connect(self) -> None:
        app, store = self._consumer.app, self._store
        in_use, keys = uses_admission(app), store.flow_keys
        client = store.client
        if not isinstance(client, redis.Redis):
            return
        # kombu would wait before a second attempt.
        client.ping()
        if self._is_here(client, in_use=in_use) or not (in_use or _has_flows(client, keys)):
            return
        check_admission(app)
        connection = store_connection(app)
        try:
            connection.connect()
            leases = self._leases.store_leases
            if leases is None:
                in_flight = InFlightKeys.of(connection.default_channel)
                admission = Admission(AdmissionKeys(in_flight, keys), lambda: processes_of(self._consumer), in_use=True)
                leases = self._leases.store_leases = self._leases.begin(connection, admission)
            self.broker_is_redis = self._consumer.connection.transport.driver_type == "redis"
            lease_channels(connection.transport, leases, fetching=True, mixins=store_mixins(self))
            self._leases.declare(keys)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        self.sync()
        self._loop = self._run(connection)
        logger.info("tasks of flows come from %s", hide_secrets(store.url), extra={"action": "flow_store_connected"})

    def _is_here(self, client: redis.Redis, *, in_use: bool) -> bool:
        """Return whether the worker fetches from the store: then its own channel takes messages of flows."""
        leases = self._leases.leases
        channel = self._consumer.connection.default_channel
        if leases is None:
            return False
        here = False
        with UnlessRefused():
            # Without a permission for the keys of the store, the broker's user could not take messages either.
            here = is_same_database(client_of(channel), client, self._store.prefix)
        if not here:
            return False
        admission = leases.admission
        admission.here, admission.in_use = True, admission.in_use or in_use
        self._leases.declare(admission.keys.flows)
        return True

    def _run(self, connection: Any) -> HubGuard | DrainThread:
        hub = self._consumer.hub
        if hub is None:
            return DrainThread(connection, self.lose)
        guard = HubGuard(hub, self.lose)
        connection.transport.register_with_event_loop(connection.connection, guard)
        connection.transport.cycle.use_hub(guard)
        return guard

    def flush(self) -> None:
        """Settle at once, by the open channel."""
        if self._connection is not None and self._watch is None:
            self._connection.transport.cycle.settle_at(0.0)

    def note(self, *, waits: bool) -> None:
        """Record whether messages of flows wait for a process."""
        if self._share is not None:
            self._share.note(waits=waits)

    def lose(self, error: Exception) -> None:
        """Wait for the store after an *error*."""
        if error is self._failure:
            raise error
        if self._watch is not None or self._stopped.is_set():
            return
        now = monotonic()
        if now - self._lost_at > QUIET:
            self._pauses.reset()
            # Without flows of its own, the worker only wants to know whether other apps have some.
            log = logger.warning if uses_admission(self._consumer.app) else logger.info
            log(
                "cannot take tasks of flows, trying again: %s",
                hide_secrets(str(error)),
                extra={"action": "flow_store_lost"},
            )
        self._lost_at = now
        if self._share is not None:
            self._share.end()
        if self._loop is not None:
            self._loop.pause()
        if self._connection is not None:
            self._connection.default_channel.disconnect()
            self._connection.transport.cycle.watch_again()
        self._watch = threading.Thread(target=self._look, name="redis-queue-flows", daemon=True)
        self._watch.start()

    def _look(self) -> None:
        while not self._stopped.wait(self._pauses.next()):
            self._lost_at = monotonic()
            try:
                self._store.client.ping()
            except RedisErrors:
                continue
            self._consumer.call_soon(self._return)
            return

    def _return(self) -> None:
        """Go on after the store has answered."""
        if self._stopped.is_set() or self._watch is None:
            return
        self._watch = None
        try:
            if self._connection is None:
                self._connect()
            elif self._loop is not None:
                self._loop.resume()
        except ERRORS as error:
            self.lose(error)

    def _end_watch(self) -> None:
        self._stopped.set()
        watch, self._watch = self._watch, None
        if watch is not None and watch is not threading.current_thread():
            watch.join(CLOSING)


def _has_flows(client: redis.Redis, keys: FlowKeys) -> bool:
    """Return whether any app has flows; False if Redis refuses the question, as not to a worker of flows."""
    with UnlessRefused():
        return bool(client.exists(keys.flags))
    return False


class PrefetchLimiter:
    """Lowers the prefetch count of *consumer* to half of its processes while messages of flows wait for one.

    Messages that the worker takes ahead would start before them. No effect on quorum queues, whose prefetch count is
    static.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._qos = qos = consumer.qos
        self._set = qos.callback
        self._until = -math.inf
        self._is_low = False
        qos.callback = self._set_count

    def note(self, *, waits: bool) -> None:
        """Record whether messages of flows wait for a process."""
        now = monotonic()
        if waits:
            self._until = now + KEEP
        is_low = now < self._until
        if is_low != self._is_low:
            self._is_low = is_low
            # The event loop sets it in its next turn.
            self._qos.prev = None

    def end(self) -> None:
        """Take as many messages as Celery wants."""
        self._until = -math.inf
        self.note(waits=False)

    def _set_count(self, prefetch_count: int) -> Any:
        if not self._is_low:
            return self._set(prefetch_count=prefetch_count)
        share = max(1, (self._consumer.pool.num_processes or 1) // 2)
        # Celery raises the count for messages that wait in the worker.
        more = max(0, prefetch_count - self._consumer.initial_prefetch_count)
        return self._set(prefetch_count=share + more)
