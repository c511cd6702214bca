"""FlowSender: where the messages of flows wait until their limits admit them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final
from uuid import uuid4

import redis
from celery import Celery

from redis_queue.admission.flows import Flows
from redis_queue.basics.lazy_property import LazyProperty
from redis_queue.celery.admission.policy import FlowPolicy, UniquePolicy
from redis_queue.celery.kombu.keys import ListNames, amqp_step
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.headers import FlowHeader
from redis_queue.celery.store import Store
from redis_queue.errors import ConfigurationError, StoreError
from redis_queue.store.scripts import NumberedCalls, Scripts

BROKERS: Final = ("redis", "amqp")
"""The types of brokers, as kombu names them, whose messages may belong to flows."""


NOT_DECLARED: Final = 2
"""Answer of lua/admission/send.lua: sent, but Redis does not know the flows of the message as they are in the code."""


def flows_of(app: Celery) -> Flows:
    """Return the flows of *app*, to read and change them."""
    store = Store.of(app)
    return Flows(store.client, store.prefix, own=FlowPolicy.of(app).all, broker_prefix=store.broker_prefix)


def check_admission(app: Celery) -> None:
    """Raise ConfigurationError if messages of *app* cannot belong to flows. Connects to no server."""
    if not isinstance(Store.of(app).client, redis.Redis):
        raise ConfigurationError("flows and unique tasks need one Redis: redis_queue_url must not be a Redis Cluster")
    with app.connection_for_write() as connection:
        found = connection.transport
        if found.driver_type not in BROKERS:
            raise ConfigurationError(f"flows and unique tasks need a Redis or RabbitMQ broker, got {found.driver_name}")


def uses_admission(app: Celery) -> bool:
    """Return whether *app* has flows or unique tasks, whose messages wait for admission."""
    return FlowPolicy.of(app).exist or UniquePolicy.of(app).exist


class FlowSender:
    """Puts messages of *app* into its store, where they wait for admission.

    Workers take them from there, also if their broker is elsewhere. Raises StoreError, and ConfigurationError if they
    cannot wait there.
    """

    def __init__(self, app: Celery, check: Callable[[Celery], None] = check_admission) -> None:
        self._app = app
        self._check = check

    def prepare(self, envelope: Envelope, queue: str, header: FlowHeader, *, is_new: bool = True) -> Callable[[], bool]:
        """Return a call that puts a message for *queue* behind those with the same keys: one round trip.

        However often it is made, the message is sent once, unless the thread has sent another one since. *is_new*:
        another broker has not delivered it. The call returns False if it was not sent, since another message owns the
        key of its unique task by now.
        """
        message, rules = envelope.element(str(uuid4())), FlowPolicy.of(self._app).rules(header.task, queue)
        send = self._calls.prepare(
            "admission/send",
            now=Store.of(self._app).clock(),
            step=self._step(envelope.priority),
            queue=queue,
            task=header.task,
            of_task=header.of_task,
            of_queue=header.of_queue,
            is_new=int(is_new),
            message=header.element(envelope.id, message.encode(), again=not is_new),
            more=rules,
        )

        def call() -> bool:
            answer = send()
            if answer == NOT_DECLARED:
                # Until then only their limits are known, and those only to this script.
                with contextlib.suppress(StoreError):
                    own = FlowPolicy.of(self._app).all()
                    flows_of(self._app).declare({name: own[name] for name in rules[::2]})
            return bool(answer)

        return call

    def send(self, envelope: Envelope, queue: str, header: FlowHeader, *, is_new: bool = True) -> bool:
        """Send a message, as :meth:`prepare` tells."""
        return self.prepare(envelope, queue, header, is_new=is_new)()

    def check(self) -> None:
        """Raise ConfigurationError if messages of the app cannot wait in its store."""
        _ = self._calls

    @LazyProperty
    def _calls(self) -> NumberedCalls:
        store = Store.of(self._app)
        self._check(self._app)
        return NumberedCalls(Scripts(store.client), store.flow_keys)

    @LazyProperty
    def _step(self) -> Callable[[int], int]:
        lists = ListNames.of_app(self._app)
        return amqp_step if lists is None else lists.step
