"""KeyTemplate: the key of a call, as a format string over its arguments or a function of them."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from redis_queue.errors import InvalidValueError

Key = str | Callable[..., str]

MAX_KEY: Final = 255
"""Most bytes of a key, in UTF-8."""


class _Formatter(string.Formatter):
    """Formats hashable values only: the text of a list or a dict is no stable name."""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        hash(value)
        return super().convert_field(value, conversion)


_FORMATTER: Final = _Formatter()


class KeyTemplate:
    """*template* is a format string such as ``"customer:{customer_id}"``, or a function of the arguments of a call.

    *label* names it in messages. Raises InvalidValueError for anything else, and for a malformed format string.
    """

    def __init__(self, template: Key, *, label: str = "key") -> None:
        self.template = template
        self.label = label
        #: The arguments that a format string names.
        self.names: list[str] = []
        if isinstance(template, str):
            try:
                fields = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
            except ValueError as error:
                raise InvalidValueError(f"{label}={template!r}: {error}") from None
            self.names = [name.partition(".")[0].partition("[")[0] for name in fields]
        elif not callable(template):
            raise InvalidValueError(
                f"{label}={template!r}: must be a format string such as 'customer:{{id}}', or a function"
            )

    def check(self, signature: inspect.Signature, function: str) -> None:
        """Raise InvalidValueError if the format string names an argument that *function* does not take."""
        parameters = signature.parameters.values()
        known = [item.name for item in parameters if item.kind is not item.VAR_KEYWORD]
        takes_any = len(known) < len(parameters)
        for name in self.names:
            if not name.isidentifier() or (name not in known and not takes_any):
                takes = ", ".join(known) or "nothing"
                raise InvalidValueError(
                    f"{self.label}={self.template!r}: unknown argument {name!r}: {function} takes {takes}"
                )

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
        try:
            return _FORMATTER.vformat(self.template, (), values)
        except Exception as error:  # attributes and formats of an argument may raise anything
            raise InvalidValueError(f"{self.label}={self.template!r}: {type(error).__name__}: {error}") from error


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
    """Return *key* if it is 1 to 255 bytes without control characters. Raises InvalidValueError."""
    size = len(key.encode(errors="surrogatepass"))
    if not 1 <= size <= MAX_KEY:
        raise InvalidValueError(f"{label}={key[:60]!r}: {size:,} bytes: must be 1 to {MAX_KEY}")
    if any(char < " " or "\x7f" <= char < "\xa0" or "\ud800" <= char < "\ue000" for char in key):
        raise InvalidValueError(f"{label}={key[:60]!r}: must not have control characters")
    return key
