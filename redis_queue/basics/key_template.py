"""KeyTemplate: the key of a call, as a format string over its arguments or a function of them."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from redis_queue.errors import InvalidValueError, quoted

Key = str | Callable[..., str]

MAX_KEY: Final = 255
"""Maximum bytes of a key, in UTF-8."""


SHOWN: Final = 60
"""Maximum characters of a template or a key in a message."""


class _Formatter(string.Formatter):
    """Formats hashable values only: the text of a list or a dict is no stable name."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        value, first = super().get_field(field_name, args, kwargs)
        try:
            hash(value)
        except TypeError:
            raise InvalidValueError(
                f"{field_name}={quoted(value)}: must be text, a number or another hashable value, "
                f"got {type(value).__name__}; pass one, or give a function as key"
            ) from None
        return value, first


class _Anything:
    """A value with all attributes and items."""

    def __getattribute__(self, name: str) -> _Anything:
        return self

    def __getitem__(self, key: Any) -> _Anything:
        return self


class _Fields(string.Formatter):
    """Finds the first name of a field; its lookups find anything."""

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        del key, args, kwargs
        return _Anything()


_FORMATTER: Final = _Formatter()
_FIELDS: Final = _Fields()


class KeyTemplate:
    """*template* is a format string such as ``"customer:{customer_id}"``, or a function of the arguments of a call.

    *label* names it in messages. Raises InvalidValueError for anything else, and for a format string that results in no
    valid key for any call: malformed, empty, with control characters, with more than 255 bytes of text, or with a field
    that does not begin with the name of an argument, has an unknown conversion, or has fields in its format.
    """

    def __init__(self, template: Key, *, label: str = "key") -> None:
        self.template = template
        self.label = label
        #: The arguments that a format string names.
        self.names: list[str] = []
        if isinstance(template, str):
            try:
                self.names = _names_of(template)
            except ValueError as error:
                raise InvalidValueError(f"{self}: {error}") from None
        elif not callable(template):
            raise InvalidValueError(f"{self}: must be a format string such as 'customer:{{id}}', or a function")

    def __str__(self) -> str:
        shown = self.template
        if isinstance(shown, str) and len(shown) > SHOWN:
            shown = f"{shown[:SHOWN]}..."
        return f"{self.label}={shown!r}"

    def check(self, signature: inspect.Signature, function: str) -> None:
        """Raise InvalidValueError if the format string names an argument that *function* does not take."""
        unknown = self.unknown(signature)
        if unknown:
            takes = ", ".join(names_of(signature)) or "nothing"
            raise InvalidValueError(f"{self}: unknown argument {unknown[0]!r}: {function} takes {takes}")

    def unknown(self, signature: inspect.Signature) -> list[str]:
        """Return the arguments of the format string that a function with *signature* does not take."""
        known = names_of(signature)
        takes_any = len(known) < len(signature.parameters)
        return [] if takes_any else [name for name in self.names if name not in known]

    def of_call(self, signature: inspect.Signature | None, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Return the text for a call with these arguments; without a signature, only *kwargs* have names.

        Raises InvalidValueError if they result in no text, TypeError if the signature does not take them.
        """
        if callable(self.template):
            found = self.template(*args, **kwargs)
            if not isinstance(found, str):
                raise InvalidValueError(f"{self.label}: its function returned {type(found).__name__}: must be text")
            return found
        values = kwargs if signature is None else arguments(signature, args, kwargs)
        for name in self.names:
            if name not in values:
                raise InvalidValueError(f"{self}: the call lacks the argument {name!r}; pass it by keyword")
        try:
            return _FORMATTER.vformat(self.template, (), values)
        except InvalidValueError as error:
            raise InvalidValueError(f"{self}: {error}") from None
        except Exception as error:  # attributes and formats of an argument may raise anything
            raise InvalidValueError(f"{self}: {type(error).__name__}: {error}") from error


def names_of(signature: inspect.Signature) -> list[str]:
    """Return the names of the arguments of *signature*, without that of ``**kwargs``."""
    return [item.name for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]


def arguments(signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, with defaults. Raises TypeError if *signature* does not take them."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    found: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        if signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found


def check_key(key: str, *, label: str = "key") -> str:
    """Return *key* if it is text of 1 to 255 bytes without control characters. Raises InvalidValueError."""
    if not isinstance(key, str):
        raise InvalidValueError(f"{label}={quoted(key)}: must be text, got {type(key).__name__}")
    size = _size(key)
    if not 1 <= size <= MAX_KEY:
        raise InvalidValueError(f"{label}={key[:SHOWN]!r}: {size:,} bytes: must be 1 to {MAX_KEY}")
    if _has_controls(key):
        raise InvalidValueError(f"{label}={key[:SHOWN]!r}: must not have control characters")
    return key


def _names_of(template: str) -> list[str]:
    """Return the arguments that *template* names. Raises ValueError if it results in no valid key for any call."""
    if not template:
        raise ValueError("must not be empty: expected a format string such as 'customer:{id}', or leave it out")
    if _has_controls(template):
        raise ValueError("must not have control characters")
    parts = list(string.Formatter().parse(template))
    size = sum(_size(text) for text, *_ in parts)
    if size > MAX_KEY:
        raise ValueError(f"its text has {size:,} bytes: must be at most {MAX_KEY}")
    return [_name_of(field, spec or "", conversion) for _, field, spec, conversion in parts if field is not None]


def _name_of(field: str, spec: str, conversion: str | None) -> str:
    name = str(_FIELDS.get_field(field, (), {})[1])
    if not name.isidentifier():
        raise ValueError(f"unknown argument {name!r}: must be a name, such as {{customer_id}}")
    if conversion not in (None, "r", "s", "a"):
        raise ValueError(f"unknown conversion {'!' + conversion!r} of {field!r}: must be !r, !s or !a")
    if "{" in spec:
        raise ValueError(f"the format {spec!r} of {field!r} must not have arguments")
    return name


def _size(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def _has_controls(text: str) -> bool:
    return any(char < " " or "\x7f" <= char < "\xa0" or "\ud800" <= char < "\ue000" for char in text)
