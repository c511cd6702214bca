"""GateInbox: moves messages of flows that arrive from the broker into the gate of the store."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from redis_queue.basics.logs import logger_of
from redis_queue.basics.waits import Backoff
from redis_queue.celery.flow.gate import Gate
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import FlowHeader
from redis_queue.errors import StoreRefusedError, StoreUnavailableError

logger = logger_of(__name__)

LONGEST_PAUSE: Final = 2.0
"""Most seconds between two attempts."""

MOST_HELD: Final = 1000
"""Most messages by which the prefetch count is raised while they wait for the store."""


class GateInbox:
    """Moves messages of the broker of *consumer* that belong to flows into their gate, in a thread.

    A dispatcher, or a worker that returned them, has sent them to the broker. A message is acknowledged after it was
    moved: one whose acknowledgement is lost is moved again. While the store is away it stays unacknowledged, and the
    prefetch count is raised, so that other messages arrive.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._gate = Gate(consumer.app)
        self._arrived = threading.Condition()
        self._messages: deque[tuple[Any, FlowHeader, Callable[[Any], Any]]] = deque()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_away = False
        self._held = 0

    def add(self, message: Any, header: FlowHeader, handle: Callable[[Any], Any]) -> None:
        """Move *message* soon; *handle* gets it if it cannot be moved."""
        with self._arrived:
            self._messages.append((message, header, handle))
            if self._is_away:
                self._hold(1)
            if self._thread is None:
                self._stopped = threading.Event()
                self._thread = threading.Thread(
                    target=self._work, args=(self._stopped,), name="redis-queue-gate-inbox", daemon=True
                )
                self._thread.start()
            self._arrived.notify()

    def stop(self) -> None:
        """Move nothing any more: the broker delivers the messages again."""
        with self._arrived:
            self._stopped.set()
            self._messages.clear()
            self._thread, self._is_away, self._held = None, False, 0
            self._arrived.notify_all()

    def _work(self, stopped: threading.Event) -> None:
        while True:
            with self._arrived:
                while not self._messages and not stopped.is_set():
                    self._arrived.wait()
                if stopped.is_set():
                    return
                message, header, handle = self._messages[0]
            done = self._move(message, header, stopped)
            with self._arrived:
                if stopped.is_set():
                    return
                self._messages.popleft()
                if self._held:
                    self._held -= 1
                    self._consumer.qos.decrement_eventually()
            if done:
                self._consumer.call_soon_ack(message.ack_log_error, logger, self._consumer.connection_errors)
            else:
                self._consumer.call_soon(handle, message)

    def _move(self, message: Any, header: FlowHeader, stopped: threading.Event) -> bool:
        """Move *message*; False if that is impossible."""
        pauses = Backoff(first=0.1, cap=LONGEST_PAUSE)
        while True:
            try:
                self._gate.send(Envelope.of_message(message), self._queue_of(message), header, is_new=False)
            except (StoreUnavailableError, StoreRefusedError) as error:
                self._note_away(error)
            except Exception:
                logger.exception("cannot move a task into its flow: it runs without", extra={"action": "gate_refused"})
                return False
            else:
                self._is_away = False
                return True
            if stopped.wait(pauses.next()):
                return True

    def _note_away(self, error: Exception) -> None:
        with self._arrived:
            if self._is_away:
                return
            self._is_away = True
            self._hold(len(self._messages))
        logger.warning("tasks of flows wait in the worker: %s", error, extra={"action": "gate_away"})

    def _hold(self, count: int) -> None:
        count = min(count, MOST_HELD - self._held)
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
