"""Queues and exchanges that a stored message has to find, as plain JSON and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kombu.entity import Exchange, Queue, binding

from redis_queue.errors import InvalidValueError

if TYPE_CHECKING:
    from celery import Celery

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
    """Tell whether *queue* is just what Celery makes from its name; the default exchange routes to it by that name."""
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


def exchanges_of(entity: Any) -> list[str]:
    """Return the names of the exchanges that are declared with *entity*."""
    if isinstance(entity, Exchange):
        return [entity.name]
    several = [*([entity.exchange] if entity.exchange else []), *(item.exchange for item in entity.bindings)]
    return [exchange.name for exchange in several if exchange.name]


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
