"""MemoryResults: a result backend in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from celery.backends.base import KeyValueStoreBackend


class MemoryResults(KeyValueStoreBackend):  # type: ignore[misc]
    """A result backend in this process that keeps the objects themselves, as Celery does for eager tasks.

    *before_wait* is called with the id of each task before its result is awaited.
    """

    implements_incr = True
    thread_safe = True

    def __init__(self, app: Any, before_wait: Callable[[str], None]) -> None:
        super().__init__(app=app)
        self._values: dict[bytes, Any] = {}
        self._before_wait = before_wait

    def get(self, key: bytes) -> Any:
        """Return a value, or None."""
        return self._values.get(key)

    def mget(self, keys: Iterable[bytes]) -> list[Any]:
        """Return several values."""
        return [self._values.get(key) for key in keys]

    def set(self, key: bytes, value: Any) -> None:
        """Keep a value."""
        self._values[key] = value

    def delete(self, key: bytes) -> None:
        """Forget a value."""
        self._values.pop(key, None)

    def incr(self, key: bytes) -> int:
        """Count up."""
        value: int = self._values.get(key, 0) + 1
        self._values[key] = value
        return value

    def encode(self, data: Any) -> Any:
        """Return *data* unchanged."""
        return data

    decode = encode

    def prepare_exception(self, exc: Any, serializer: Any = None) -> Any:  # noqa: ARG002 - as Celery calls it
        """Keep the exception itself."""
        return exc

    def exception_to_python(self, exc: Any) -> Any:
        """Return the exception itself."""
        return exc

    def wait_for(self, task_id: str, *args: Any, **kwargs: Any) -> Any:
        """Wait for the result of a task."""
        self._before_wait(task_id)
        return super().wait_for(task_id, *args, **kwargs)

    def get_many(self, task_ids: Iterable[str], *args: Any, **kwargs: Any) -> Any:
        """Yield several results as they come."""
        ids = list(task_ids)
        for task_id in ids:
            self._before_wait(task_id)
        return super().get_many(ids, *args, **kwargs)
