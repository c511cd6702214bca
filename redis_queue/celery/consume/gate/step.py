"""GateStep: lets a worker whose broker is elsewhere take messages of flows from the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import bootsteps
from kombu.transport.redis import Transport

from redis_queue.celery.consume.gate.consumer import GateConsumer
from redis_queue.celery.consume.gate.inbox import GateInbox
from redis_queue.celery.consume.gates import is_gated
from redis_queue.celery.consume.steps import LeaseStep
from redis_queue.celery.message.headers import FlowHeader

STOPPING = (bootsteps.CLOSE, bootsteps.TERMINATE)


class GateStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Runs a GateConsumer and a GateInbox beside the consumer of a worker whose broker is not the store's Redis."""

    requires = (LeaseStep, "celery.worker.consumer.tasks:Tasks")

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._leases: LeaseStep = consumer.redis_queue_leases
        self._gate = self._leases.gate = GateConsumer(consumer, self._leases.tell_loss, self._leases.declare)
        self._inbox = GateInbox(consumer)
        # An acknowledgement, and the check of a lease, may fail with an error of the store as well.
        consumer.connection_errors = (*consumer.connection_errors, *Transport.connection_errors)
        make = consumer.create_task_handler
        consumer.create_task_handler = lambda *args, **options: self._sorted(make(*args, **options))
        for name in ("add_task_queue", "cancel_task_queue"):
            setattr(consumer, name, self._with_sync(getattr(consumer, name)))

    def start(self, consumer: Any) -> None:  # noqa: ARG002 - what Celery calls
        """Take messages of flows."""
        if not self._leases.has_gates:
            self._gate.start()

    def stop(self, consumer: Any) -> None:
        """Take no more messages; after a lost connection to the broker, return those whose tasks have not started."""
        self._inbox.stop()
        if consumer.blueprint.state in STOPPING:
            self._gate.cancel()
        else:
            self._gate.stop()

    def shutdown(self, consumer: Any) -> None:  # noqa: ARG002 - what Celery calls
        """Return the messages whose tasks have not started, and renew nothing any more."""
        self._gate.close()

    def _sorted(self, handle: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def on_message(message: Any) -> Any:
            if (header := self._header(message)) is None:
                return handle(message)
            if self._gate.is_idle:
                # It is the first one of a flow.
                self._gate.start()
            return self._inbox.add(message, header, handle)

        return on_message

    def _header(self, message: Any) -> FlowHeader | None:
        """Return the flow of a message that came from the broker; None if it has none, or came from a gate."""
        tag = message.delivery_tag
        if isinstance(tag, str) and is_gated(tag):
            return None
        return None if self._leases.has_gates else FlowHeader.of(message.headers)

    def _with_sync(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def change(*args: Any, **options: Any) -> Any:
            found = method(*args, **options)
            self._gate.sync()
            return found

        return change
