"""The handler of a Consumer: check that calling it runs its code."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Final

from redis_queue.errors import InvalidValueError
from redis_queue.model import Message

Handler = Callable[[Message], Any]


def check_handler(handler: Any) -> None:
    """Raise InvalidValueError unless *handler* is a plain function or another callable that runs when it is called."""
    if not callable(handler):
        raise InvalidValueError(f"handler={handler!r}: must be a function that takes a message")
    for found in (handler, type(handler).__call__):
        if any(is_lazy(found) for is_lazy in _LAZY):
            raise InvalidValueError(
                f"handler={handler!r}: must be a plain function, because calling this one would not run its code; a"
                " plain function may call asyncio.run()"
            )


_LAZY: Final = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


def check_ran(result: object) -> None:
    """Raise if a handler returned an object whose code has not run yet."""
    if result is None or not (inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return
    if inspect.iscoroutine(result):
        result.close()
    raise InvalidValueError(f"the handler returned a {type(result).__name__}, whose code did not run")
