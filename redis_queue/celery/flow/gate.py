"""Gate: where the messages of flows wait until their limits admit them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from redis_queue.celery.brokers.redis import is_same_database
from redis_queue.celery.flow.policy import FlowPolicy
from redis_queue.celery.kombu_keys import ListNames
from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.flow_header import FlowHeader
from redis_queue.celery.store import Store
from redis_queue.errors import ConfigurationError
from redis_queue.keeper.redis_py import client_of
from redis_queue.lazy_property import LazyProperty
from redis_queue.store.keys import FlowKeys
from redis_queue.store.numbered_calls import NumberedCalls
from redis_queue.store.scripts import Scripts

if TYPE_CHECKING:
    from celery import Celery

ELSEWHERE = "flow control needs queues in the store: let the broker and redis_queue_url be one database of one Redis"


class Gate:
    """Puts messages of *app* into the gate of its store. Raises StoreError, and ConfigurationError if it has none."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def send(self, envelope: Envelope, queue: str, header: FlowHeader) -> None:
        """Put a message for *queue* behind those with the same keys: one round trip."""
        self._calls.prepare(
            "flow/send",
            now=0,
            step=self._lists.step(envelope.priority),
            queue=queue,
            task=header.task,
            of_task=header.of_task,
            of_queue=header.of_queue,
            message=envelope.element(str(uuid4())),
            more=FlowPolicy.of(self._app).rules(header.task, queue),
        )()

    @LazyProperty
    def _calls(self) -> NumberedCalls:
        store = Store.of(self._app)
        if not has_gate(self._app):
            raise ConfigurationError(ELSEWHERE)
        return NumberedCalls(Scripts(store.client), FlowKeys(store.prefix, store.broker_prefix))

    @LazyProperty
    def _lists(self) -> ListNames:
        found = ListNames.of_app(self._app)
        if found is None:
            raise ConfigurationError(ELSEWHERE)
        return found


def has_gate(app: Celery) -> bool:
    """Tell whether the broker of *app* is the database of its store."""
    store = Store.of(app)
    with app.connection_for_write() as connection:
        if connection.transport.driver_type != "redis":
            return False
        return is_same_database(client_of(connection.default_channel), store.client, store.prefix)
