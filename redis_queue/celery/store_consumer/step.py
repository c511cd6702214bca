"""StoreConsumerStep: lets a worker whose broker is elsewhere take messages of flows from the store."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from celery import Celery, bootsteps
from kombu.transport.redis import Transport

from redis_queue.basics.logs import logger_of
from redis_queue.basics.waits import Background, Backoff
from redis_queue.celery.admission.admission import has_place
from redis_queue.celery.admission.policy import FlowPolicy
from redis_queue.celery.admission.sender import FlowSender
from redis_queue.celery.kombu.internals import around
from redis_queue.celery.leases.step import LeaseStep
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import FlowHeader
from redis_queue.celery.store_consumer.consumer import MAX_PAUSE, StoreConsumer
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.errors import StoreError, StoreRefusedError, StoreUnavailableError

logger = logger_of(__name__)

LOOK: Final = 5.0
"""Seconds between two looks whether another app has begun to use flows."""

STOPPING = (bootsteps.CLOSE, bootsteps.TERMINATE)

MAX_HELD: Final = 1000
"""Maximum number of messages by which the prefetch count is raised while they wait for the store."""


class StoreConsumerStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Runs a StoreConsumer and a FlowInbox beside the consumer of a worker whose broker is not the store's Redis."""

    requires = (LeaseStep, "celery.worker.consumer.tasks:Tasks")

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._leases = LeaseStep.of_worker(consumer)
        self._store_consumer = StoreConsumer(consumer)
        self._inbox = FlowInbox(consumer)
        self._background = Background()
        self._looks: Any = None
        # An acknowledgement, and the check of a lease, may fail with an error of the store as well.
        consumer.connection_errors = (*consumer.connection_errors, *Transport.connection_errors)
        self._passing = UncountedMessages(consumer.app)
        for name in ("add_task_queue", "cancel_task_queue"):
            around(consumer, name, self._change_queues)

    def start(self, consumer: Any) -> None:
        """Take messages of flows; if there are none yet, as soon as there are."""
        if not self._leases.takes_flows:
            self._store_consumer.start()
        # The start may have found that the worker's own channel takes them.
        if self._store_consumer.is_idle and not self._leases.takes_flows:
            look = partial(self._look, consumer)
            self._looks = consumer.timer.call_repeatedly(LOOK, self._background.run, (look,))

    def _look(self, consumer: Any) -> None:
        if not self._store_consumer.is_idle or self._store_consumer.finds_flows():
            consumer.call_soon(self._begin)

    def _begin(self) -> None:
        # Else it was stopped meanwhile, or the first message of a flow came from the broker.
        if self._looks is not None and self._store_consumer.is_idle:
            self._store_consumer.start()
        if not self._store_consumer.is_idle:
            self._end_looks()

    def _end_looks(self) -> None:
        looks, self._looks = self._looks, None
        if looks is not None:
            looks.cancel()

    def stop(self, consumer: Any) -> None:
        """Take no more messages; after a lost connection to the broker, return those whose tasks have not started."""
        self._inbox.stop()
        self._end_looks()
        if consumer.blueprint.state in STOPPING:
            self._store_consumer.cancel()
        else:
            self._store_consumer.stop()

    def shutdown(self, consumer: Any) -> None:  # noqa: ARG002 - what Celery calls
        """Return the messages whose tasks have not started, and stop renewing."""
        self._store_consumer.close()

    def intake(self, handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return *handle*, which gets no message of a flow that came from the broker: it moves into the store."""

        def on_message(message: Any) -> Any:
            tag, here = message.delivery_tag, self._leases.takes_flows
            if (isinstance(tag, str) and has_place(tag)) or (here and not self._passing.has_flows):
                return handle(message)
            header = FlowHeader.of(message.headers)
            if header is None and self._passing.has_flows:
                self._passing.note(message)
            if header is None or here:
                # If flows are in the broker, the channel has moved what it could.
                return handle(message)
            if self._store_consumer.is_idle:
                # It is the first one of a flow.
                self._store_consumer.start()
            return self._inbox.add(message, header, handle)

        return on_message

    def _change_queues(self, change: Callable[..., Any], *args: Any, **options: Any) -> Any:
        found = change(*args, **options)
        self._store_consumer.sync()
        return found


class FlowInbox:
    """Moves messages of the broker of *consumer* that belong to flows into the store, in a thread.

    A dispatcher, or a worker that returned them, has sent them to the broker. A message is acknowledged after it was
    moved: one whose acknowledgement is lost is moved again. While the store is away it stays unacknowledged, and the
    prefetch count is raised, so that other messages arrive.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._sender = FlowSender(consumer.app)
        self._background = Background()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._is_away = False
        # Messages that are not moved yet, and by how many of them the prefetch count is raised.
        self._waiting, self._held = 0, 0

    def add(self, message: Any, header: FlowHeader, handle: Callable[[Any], Any]) -> None:
        """Move *message* soon; *handle* gets it if it cannot be moved."""
        with self._lock:
            self._waiting += 1
            if self._is_away:
                self._hold(1)
            self._background.run(partial(self._process, self._stopped, message, header, handle))

    def stop(self) -> None:
        """Stop moving messages: the broker delivers them again."""
        with self._lock:
            self._stopped.set()
            self._stopped = threading.Event()
            self._is_away, self._waiting, self._held = False, 0, 0

    def _process(
        self, stopped: threading.Event, message: Any, header: FlowHeader, handle: Callable[[Any], Any]
    ) -> None:
        done = stopped.is_set() or self._move(message, header, stopped)
        with self._lock:
            if stopped.is_set():
                return
            self._waiting -= 1
            if self._held:
                self._held -= 1
                self._consumer.qos.decrement_eventually()
        if done:
            self._consumer.call_soon_ack(message.ack_log_error, logger, self._consumer.connection_errors)
        else:
            self._consumer.call_soon(handle, message)

    def _move(self, message: Any, header: FlowHeader, stopped: threading.Event) -> bool:
        """Move *message*; False if that is impossible."""
        pauses = Backoff(first=0.1, cap=MAX_PAUSE)
        while True:
            try:
                self._sender.send(Envelope.of_message(message), self._queue_of(message), header, is_new=False)
            except (StoreUnavailableError, StoreRefusedError) as error:
                self._note_away(error)
            except Exception:
                logger.exception("cannot move a task into its flow: it runs without", extra={"action": "flow_refused"})
                return False
            else:
                self._is_away = False
                return True
            if stopped.wait(pauses.next()):
                return True

    def _note_away(self, error: Exception) -> None:
        with self._lock:
            if self._is_away:
                return
            self._is_away = True
            self._hold(self._waiting)
        logger.warning("tasks of flows wait in the worker: %s", error, extra={"action": "flow_store_away"})

    def _hold(self, count: int) -> None:
        count = min(count, MAX_HELD - self._held)
        if count > 0 and self._consumer.qos is not None:
            self._held += count
            self._consumer.qos.increment_eventually(count)

    def _queue_of(self, message: Any) -> str:
        if found := getattr(message, "queue", None):
            return str(found)
        tag = message.delivery_info.get("consumer_tag")
        tags = self._consumer.task_consumer._active_tags.items()
        return next((str(queue) for queue, found in tags if found == tag), "") or str(
            message.delivery_info["routing_key"]
        )


class UncountedMessages:
    """Counts in Redis, for each flow, the messages that a worker of *app* gets without the header of a flow."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._policy = FlowPolicy.of(app)
        #: Whether the app has flows.
        self.has_flows = bool(self._policy.all())
        self._background = Background()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def note(self, message: Any) -> None:
        """Count *message*, which has no header of a flow."""
        task = (message.headers or {}).get("task")
        if isinstance(task, str):
            queue = getattr(message, "queue", None) or message.delivery_info.get("routing_key")
            if names := self._policy.names(task, str(queue)):
                self._count(names)

    def _count(self, names: list[str]) -> None:
        with self._lock:
            is_first = not self._counts
            self._counts.update(names)
        if is_first:
            self._background.run(self._write)

    def _write(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, Counter()
        try:
            StoredTasks.of(self._app).flow.count_uncounted(counts)
        except StoreError as error:
            logger.info("cannot count: %s", error, extra={"action": "count_failed"})
