"""Values that are computed once, without a lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")


class LazyProperty(Generic[T]):
    """Compute a property on first access and keep the value in the object.

    Concurrent threads may compute it more than once; all of them get the value of the first one.
    Before Python 3.12, ``functools.cached_property`` has one lock for all objects: a child process that is forked while
    another thread holds it waits forever.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...

    @overload
    def __get__(self, instance: object, owner: type) -> T: ...

    def __get__(self, instance: object | None, owner: type) -> T | Self:
        if instance is None:
            return self
        value: T = vars(instance).setdefault(self._name, self._compute(instance))
        return value


def cache_key(names: dict[Any, Any]) -> tuple[int, int, Any]:
    """Return a value that changes, in constant time, when one of *names* is added, removed, or replaced by another one.

    It is the key of what is computed from all of them.
    """
    # A new name becomes the last one.
    return id(names), len(names), next(reversed(names), None)
