"""Queues and exchanges that a stored message has to find, as plain JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from kombu.entity import Exchange, Queue

if TYPE_CHECKING:
    from celery import Celery

_QUEUE: Final = ("durable", "auto_delete", "exclusive", "expires", "message_ttl", "max_length", "max_priority")
_EXCHANGE: Final = ("type", "durable", "auto_delete", "arguments")


def describe(entity: Any, app: Celery) -> Any:
    """Return *entity* as JSON: its name where the configuration of the app says the rest."""
    if isinstance(entity, str):
        return entity
    if isinstance(entity, Exchange):
        return {"exchange": _exchange(entity)}
    if app.amqp.queues.get(entity.name) is entity:
        return entity.name
    return {
        "queue": entity.name,
        "exchange": _exchange(entity.exchange),
        "routing_key": entity.routing_key,
        "queue_arguments": entity.queue_arguments,
        **_set(entity, _QUEUE),
    }


def build(description: Any, app: Celery) -> Queue | Exchange:
    """Return the entity that :func:`describe` described; raises KeyError for a queue that the app may not create."""
    if not isinstance(description, Mapping):
        return _named(str(description), app)
    options = dict(description)
    exchange = Exchange(**options.pop("exchange"))
    name = options.pop("queue", None)
    return exchange if name is None else Queue(name, exchange, **options)


def _named(name: str, app: Celery) -> Queue:
    known = app.amqp.queues
    if name not in known and name not in known.aliases:
        # Looked up there, it would stay: before Celery 5.7 a worker that reconnects takes from all that is there.
        known = app.amqp.Queues(app.conf.task_queues or ())
    return cast(Queue, known[name])


def lifetime_ms(entity: Any) -> int:
    """Return after how many ms without use a queue goes away; 0 means never."""
    if not isinstance(entity, Queue):
        return 0
    queue: Any = entity
    if queue.expires:
        return int(queue.expires * 1000)
    return int((queue.queue_arguments or {}).get("x-expires") or 0)


def _exchange(exchange: Exchange) -> dict[str, Any]:
    return {"name": exchange.name, **_set(exchange, _EXCHANGE)}


def _set(entity: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(entity, name, None)) is not None}
