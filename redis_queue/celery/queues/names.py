"""The name of the queue from which a message came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from celery import Celery

MOST_ROUTES: Final = 1000
"""Most routes whose queues are remembered."""


class QueueNames:
    """Finds the queue of a message among the queues of *app*, by exchange and routing key."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._known: dict[tuple[Any, Any], str] = {}

    def of(self, delivery_info: Mapping[str, Any]) -> str:
        """Return the queue of a message with *delivery_info*; its routing key if no queue is known."""
        route = delivery_info.get("exchange"), delivery_info.get("routing_key")
        try:
            found = self._known.get(route)
        except TypeError:
            # A message may carry anything here.
            return self._find(*route)
        if found is None:
            if len(self._known) >= MOST_ROUTES:
                self._known.clear()
            found = self._known[route] = self._find(*route)
        return found

    def _find(self, exchange: Any, routing_key: Any) -> str:
        if not exchange:
            return str(routing_key or "")
        for name, queue in list(self._app.amqp.queues.items()):
            if queue.exchange is not None and (queue.exchange.name, queue.routing_key) == (exchange, routing_key):
                return str(name)
        return str(routing_key or "")
