"""What an app of a test has instead of a broker and a result backend."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any

from celery.backends.base import KeyValueStoreBackend

from redis_queue.celery.message.envelope import Envelope
from redis_queue.celery.message.producer import InterceptingProducer

if TYPE_CHECKING:
    from celery import Celery


Take = Callable[[Envelope], bool]
"""Called with each message that is sent at once; True: it was taken, False: the broker gets it."""


def capture_amqp(app: Celery, kind: Any, take: Take, now: Callable[[], datetime]) -> Any:
    """Return an AMQP object for *app*, a subclass of *kind*, that gives its messages to *take*.

    ``expires`` in seconds counts from *now*.
    """

    class CapturingAMQP(kind):  # type: ignore[misc]
        def _create_task_sender(self) -> Any:
            send = super()._create_task_sender()

            def send_task_message(producer: Any, name: str, message: Any, **options: Any) -> Any:
                if isinstance(producer, InterceptingProducer):  # it has a delay: the store gets it
                    return send(producer, name, message, **options)

                by = InterceptingProducer(app, producer, lambda envelope, _: take(envelope))
                return send(by, name, message, **options)

            return send_task_message

        @cached_property
        def create_task_message(self) -> Any:
            make = self.task_protocols[app.conf.task_protocol]
            shape = signature(make)

            def create_task_message(*args: Any, **named: Any) -> Any:
                call = shape.bind(*args, **named)
                if isinstance(expires := call.arguments.get("expires"), numbers.Real):
                    call.arguments["expires"] = now() + timedelta(seconds=float(expires))
                return make(*call.args, **call.kwargs)

            return create_task_message

    return CapturingAMQP(app)


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
