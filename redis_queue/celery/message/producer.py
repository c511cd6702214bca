"""A producer that hands over its message as ours; the queues and exchanges that it declares, as JSON and back."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from celery import Celery
from kombu.compression import compress
from kombu.entity import Exchange, Queue, binding, maybe_delivery_mode
from kombu.serialization import dumps
from kombu.transport.native_delayed_delivery import CELERY_DELAYED_DELIVERY_EXCHANGE, MAX_NUMBER_OF_BITS_TO_USE

from redis_queue.basics.times import END_OF_CALENDAR_MS
from redis_queue.celery.message.envelope import Envelope, priority_of
from redis_queue.celery.message.headers import ETA
from redis_queue.errors import InvalidValueError

NATIVE_DELAY: Final = "celery_delayed_"
_LOCAL: Final = frozenset({"retry", "retry_policy", "timeout", "confirm_timeout", "mandatory", "immediate"})
"""Options of a publish that are not part of the message."""

Publish = Callable[..., Any]
Keep = Callable[[Envelope, Mapping[str, Any]], bool]
"""Takes a message and the options of its publish; returns False if the message is to be published after all."""

_NUMBER: Final = (int, float)
_QUEUE: Final[Mapping[str, Any]] = {
    "routing_key": str,
    "queue_arguments": Mapping,
    "binding_arguments": Mapping,
    "durable": bool,
    "auto_delete": bool,
    "exclusive": bool,
    "no_declare": bool,
    "expires": _NUMBER,
    "message_ttl": _NUMBER,
    "max_length": _NUMBER,
    "max_length_bytes": _NUMBER,
    "max_priority": _NUMBER,
}
_EXCHANGE: Final[Mapping[str, Any]] = {
    "name": str,
    "type": str,
    "durable": bool,
    "auto_delete": bool,
    "passive": bool,
    "no_declare": bool,
    "arguments": Mapping,
}
_BINDING: Final[Mapping[str, Any]] = {"routing_key": str, "arguments": Mapping}
_ORDINARY: Final = {"durable": True, "auto_delete": False, "exclusive": False, "no_declare": False}


class InterceptingProducer:
    """Replaces *producer* during one send: *keep* gets the first message, later ones (events) are published.

    Signals before and after a publish, header injection, routing and serialisation are as without it.
    """

    def __init__(self, app: Celery, producer: Any, keep: Keep) -> None:
        self._app = app
        self._producer = producer
        self._keep = keep
        self._is_first = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        """Keep the first message; publish all others."""
        is_kept = self._is_first and self._keep(envelope_of(self._app, self._producer, body, options), options)
        result = None if is_kept else self._producer.publish(body, **options)
        # Only now: Celery publishes a second time where the first one failed.
        self._is_first = False
        return result


def envelope_of(app: Celery, producer: Any, body: Any, options: Mapping[str, Any]) -> Envelope:
    """Return the message that ``producer.publish(body, **options)`` would send, its eta in the header ETA."""
    properties = {name: value for name, value in options.items() if name not in _LOCAL}
    headers = dict(properties.pop("headers", None) or {})
    # Protocol 1 has the eta in the body.
    eta = headers.get("eta") or (body.get("eta") if isinstance(body, Mapping) else None)
    if "eta" in headers:
        headers["eta"] = None
    elif eta:
        body = {**body, "eta": None}
    if eta:
        headers[ETA] = eta
    exchange, mode = _exchange(properties.pop("exchange", None), properties.pop("delivery_mode", None))
    exchange, routing_key = _past_native_delay(exchange, properties.pop("routing_key", None) or "")
    expiration = properties.pop("expiration", None)
    declare = properties.pop("declare", None) or ()
    content_type, encoding, data = _serialised(producer, body, headers, properties)
    reply_to = properties.get("reply_to")
    if isinstance(reply_to, Queue):
        properties["reply_to"] = reply_to.name
    return Envelope(
        body=data,
        content_type=content_type,
        content_encoding=encoding,
        headers=headers,
        properties=_properties(properties, mode),
        exchange=exchange,
        routing_key=routing_key,
        declare=_declare(declare, exchange, routing_key, app),
        expires_at=None if expiration is None else min(round((time.time() + expiration) * 1000), END_OF_CALENDAR_MS),
    )


def _properties(properties: Mapping[str, Any], mode: int) -> dict[str, Any]:
    given = {name: value for name, value in properties.items() if value is not None}
    if "priority" in given:
        given["priority"] = priority_of(given)
    return {**given, "delivery_mode": mode}


def _serialised(
    producer: Any, body: Any, headers: dict[str, Any], properties: dict[str, Any]
) -> tuple[str, str, bytes]:
    serializer = properties.pop("serializer", None) or producer.serializer
    compression = properties.pop("compression", None) or producer.compression
    content_type, encoding = properties.pop("content_type", None), properties.pop("content_encoding", None)
    if content_type is None:
        content_type, encoding, body = dumps(body, serializer=serializer)
    data = body.encode(encoding or "utf-8") if isinstance(body, str) else body
    if compression:
        data, headers["compression"] = compress(data, compression)
    return content_type, encoding or ("utf-8" if isinstance(body, str) else "binary"), data


def _exchange(exchange: Any, mode: Any) -> tuple[str, int]:
    if isinstance(exchange, Exchange):
        return exchange.name, mode or maybe_delivery_mode(exchange.delivery_mode)
    return exchange or "", maybe_delivery_mode(mode)


def _past_native_delay(exchange: str, routing_key: str) -> tuple[str, str]:
    """Return the destination after RabbitMQ's own delay: the last exchange, and the key without its delay bits."""
    if not exchange.startswith(NATIVE_DELAY) or exchange == CELERY_DELAYED_DELIVERY_EXCHANGE:
        return exchange, routing_key
    # Each of the 28 bits takes two characters.
    return CELERY_DELAYED_DELIVERY_EXCHANGE, routing_key[2 * MAX_NUMBER_OF_BITS_TO_USE :]


def _declare(declare: Any, exchange: str, routing_key: str, app: Celery) -> list[Any]:
    described = [describe(entity, app) for entity in declare]
    # In the usual case the routing key says it all: an ordinary queue that is reached by its name.
    return [] if not exchange and described == [routing_key] else described


def describe(entity: Any, app: Celery) -> Any:
    """Return *entity* as JSON: only the name if every app would make the same queue from it.

    Otherwise the whole declaration, because the app that forwards the message may not know the queue.
    """
    if isinstance(entity, str):
        return entity
    if isinstance(entity, Exchange):
        return {"exchange": _set(entity, _EXCHANGE)}
    options = _set(entity, _QUEUE)
    if _is_ordinary(entity, options, app):
        return entity.name
    described = {"queue": entity.name, **options}
    if entity.exchange is not None:
        described["exchange"] = _set(entity.exchange, _EXCHANGE)
    if entity.bindings:
        described["bindings"] = [
            {"exchange": _set(item.exchange, _EXCHANGE), **_set(item, _BINDING)} for item in entity.bindings
        ]
    return described


def _is_ordinary(queue: Any, options: Mapping[str, Any], app: Celery) -> bool:
    """Return whether *queue* is what Celery makes from its name, to which the default exchange routes by that name."""
    exchange = queue.exchange
    if exchange is None or queue.bindings or exchange.type not in (None, "direct"):
        return False
    special = {name: value for name, value in options.items() if name != "routing_key" and value != {}}
    return {**_ORDINARY, **special} == _ORDINARY and (
        exchange.name in ("", queue.name) or app.amqp.queues.get(queue.name) is queue
    )


def build(description: Any) -> Queue | Exchange:
    """Return the entity that :func:`describe` described; raises InvalidValueError for anything else."""
    rest = dict(_mapping(description, "declare"))
    name, found = rest.pop("queue", None), rest.pop("exchange", None)
    exchange = None if found is None else Exchange(**_checked(found, _EXCHANGE))
    if name is None:
        if exchange is None or rest:
            raise InvalidValueError("declare: expected a queue or an exchange")
        return exchange
    if not isinstance(name, str):
        raise InvalidValueError("declare: the name of a queue must be text")
    several = rest.pop("bindings", [])
    if not isinstance(several, list):
        raise InvalidValueError("declare: bindings must be a list")
    return Queue(name, exchange, bindings=[_binding(item) for item in several], **_checked(rest, _QUEUE))


def _binding(description: Any) -> Any:
    rest = dict(_mapping(description, "bindings"))
    return binding(Exchange(**_checked(rest.pop("exchange", None), _EXCHANGE)), **_checked(rest, _BINDING))


def exchanges_of(entity: Any) -> dict[str, Exchange]:
    """Return the exchanges that are declared with *entity*, by their names."""
    if isinstance(entity, Exchange):
        return {entity.name: entity}
    several = [*([entity.exchange] if entity.exchange else []), *(item.exchange for item in entity.bindings)]
    return {exchange.name: exchange for exchange in several if exchange.name}


def exchange_type(declare: Any, exchange: str) -> str:
    """Return the type of *exchange* in the descriptions *declare*; "direct" if they do not give one."""
    for item in declare:
        described = item.get("exchange") if isinstance(item, Mapping) else None
        if isinstance(described, Mapping) and described.get("name") == exchange:
            found = described.get("type")
            return found if found in ("topic", "fanout") else "direct"
    return "direct"


def lifetime_ms(entity: Any) -> int:
    """Return after how many ms without use a queue goes away; 0 means never."""
    if not isinstance(entity, Queue):
        return 0
    queue: Any = entity
    if queue.expires:
        return int(queue.expires * 1000)
    return int((queue.queue_arguments or {}).get("x-expires") or 0)


def _set(entity: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(entity, name, None)) is not None}


def _mapping(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidValueError(f"{name}: expected a queue or an exchange, got {type(value).__name__}")
    return value


def _checked(value: Any, names: Mapping[str, Any]) -> dict[str, Any]:
    options = dict(_mapping(value, "declare"))
    for name, given in options.items():
        kind = names.get(name)
        if kind is None or not isinstance(given, kind) or (isinstance(given, bool) and kind is not bool):
            raise InvalidValueError(
                f"declare: {name[:50]!r} of type {type(given).__name__} is not part of a declaration"
            )
    return options
