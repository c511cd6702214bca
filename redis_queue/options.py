"""Options: a dataclass of a mapping that a user wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

from redis_queue.errors import InvalidValueError
from redis_queue.suggestion import did_you_mean

Kind = TypeVar("Kind")


def from_options(kind: type[Kind], value: Any, *, example: str) -> Kind:
    """Return a *kind*, a dataclass, with the arguments in the mapping *value*. Raises InvalidValueError."""
    if not isinstance(value, Mapping):
        raise InvalidValueError(f"{value!r}: must be a mapping such as {example}, or a {kind.__name__}")
    known = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    for name in value:
        if name not in known:
            raise InvalidValueError(f"unknown option {name!r}: {did_you_mean(str(name), known)}")
    return kind(**value)
