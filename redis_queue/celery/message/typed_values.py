"""Values of types that JSON lacks, in the form in which kombu writes them: ``{"__type__": …, "__value__": …}``."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

_TYPED: Final = {"__type__", "__value__"}
_DECIMAL: Final = re.compile(r"-?\d{1,30}(\.\d{1,30})?", re.ASCII)
MAX_TEXT: Final = 64
"""Most characters of a time or a UUID."""


def restore_types(value: Any) -> Any:
    """Return plain JSON with UUIDs, datetimes, decimals and bytes converted to Python values.

    Only small values are converted, since a decimal with an exponent may be of any size. The others stay as written.
    """
    if isinstance(value, list):
        return [restore_types(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    if value.keys() != _TYPED:
        return {name: restore_types(item) for name, item in value.items()}
    kind = value["__type__"]
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    try:
        return value if reader is None else reader(value["__value__"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return value


def _short(text: Any) -> str:
    if not isinstance(text, str) or len(text) > MAX_TEXT:
        raise ValueError(f"expected text of up to {MAX_TEXT} characters")
    return text


def _decimal(text: Any) -> Decimal:
    if not _DECIMAL.fullmatch(_short(text)):
        raise ValueError("expected digits")
    return Decimal(text)


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "uuid": lambda value: UUID(_short(value["hex"])),
    "datetime": lambda value: datetime.fromisoformat(_short(value)),
    "decimal": _decimal,
    "bytes": lambda value: value.encode(),
    "base64": lambda value: base64.b64decode(value, validate=True),
}
