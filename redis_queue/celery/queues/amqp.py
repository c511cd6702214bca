"""Depths of queues on RabbitMQ, by passive declarations and, if it is known, the management API."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from redis_queue.basics.logs import logger_of
from redis_queue.celery.queues.depth import Depth
from redis_queue.celery.queues.management import Management, ManagementError

logger = logger_of(__name__)

MOST_DECLARED: Final = 200
"""Most queues that are declared for one answer if the management API tells the others."""


class AmqpQueues:
    """Reads queues through kombu's *connection*; a declaration of a missing queue ends its channel, not the connection.

    All methods raise the errors of kombu and py-amqp if the broker is away. Without an answer of the *management* API,
    what only it tells is unknown.
    """

    def __init__(self, connection: Any, management: Management | None = None) -> None:
        self._connection = connection
        self._channel: Any = None
        self._management = management
        self._managed: dict[str, Depth] | None = None

    def bound(self, known: Collection[str] = ()) -> set[str]:  # noqa: ARG002
        """Return no names: a client of RabbitMQ cannot list its queues."""
        return set()

    def total(self, queues: Sequence[str]) -> tuple[int | None, int | None]:
        """Return how many messages wait in all *queues*, and are in flight; None without the management API."""
        rows = [self._by_management()[queue] for queue in queues if queue in self._by_management()]
        if not rows:
            return None, None
        return sum(row.ready or 0 for row in rows), sum(row.in_flight or 0 for row in rows)

    def depths(self, queues: Sequence[str]) -> list[Depth]:
        """Return the depth of each queue, with one round trip for each of the first 200 queues at least."""
        managed = self._by_management()
        try:
            return [
                managed[queue] if number >= MOST_DECLARED and queue in managed else self._both(queue, managed)
                for number, queue in enumerate(queues)
            ]
        finally:
            self._close()

    def _both(self, queue: str, managed: Mapping[str, Depth]) -> Depth:
        # The management API lags by some seconds.
        found, more = self._depth(queue), managed.get(queue)
        if more is None or found.error or not found.exists:
            return found
        return replace(found, in_flight=more.in_flight, oldest_at=more.oldest_at, put_rate=more.put_rate)

    def _by_management(self) -> Mapping[str, Depth]:
        if self._managed is None:
            self._managed = {}
            if self._management is not None:
                try:
                    self._managed = self._management.depths()
                except ManagementError as error:
                    logger.warning("%s", error, extra={"action": "management_failed"})
        return self._managed

    def _depth(self, queue: str) -> Depth:
        if self._channel is None:
            self._channel = self._connection.channel()
        try:
            found = self._channel.queue_declare(queue, passive=True)
        except self._connection.channel_errors as error:
            self._close()
            if getattr(error, "code", None) == 404:  # noqa: PLR2004 - NOT_FOUND
                return Depth(0, 0, 0, exists=False)
            return Depth(error=str(error))
        return Depth(found.message_count, None, found.consumer_count)

    def _close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None and channel.is_open:
            channel.close()
