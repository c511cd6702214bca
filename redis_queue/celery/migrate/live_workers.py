"""LiveWorkers: the workers of an app that are alive, and the tasks that they hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from redis_queue.errors import RedisQueueError
from redis_queue.store.chunks import chunks

if TYPE_CHECKING:
    from celery import Celery

PATIENCE: Final = 5.0
"""Seconds for all workers to answer; an idle worker needs milliseconds."""

LIST_TIMEOUT: Final = 60.0
"""Seconds for the answers to inspect, which can be long."""

NOBODY: Final = "nobody@redis_queue"


class SilentWorkersError(RedisQueueError):
    """A live worker does not answer."""


class LiveWorkers:
    """The workers of *app* on a Redis broker.

    Redis tells how many workers receive a broadcast, so a worker that is too busy to answer counts as alive.
    """

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._count = 0
        self.names: list[str] = []

    def ping(self) -> int:
        """Return how many workers are alive. Raises SilentWorkersError unless all of them answer."""
        self._count = self._receivers()
        if not self._count:
            return 0
        replies = self._app.control.ping(timeout=PATIENCE, limit=self._count) or []
        self.names = sorted(name for reply in replies for name in reply)
        self._check(len(self.names), "ping")
        return self._count

    def held(self, overdue: Iterable[str]) -> set[str]:
        """Return the ids of all tasks that workers hold in memory. Raises SilentWorkersError.

        Workers are asked for *overdue* by id: a due task that waits for its rate limit is in none of their lists.
        """
        inspect = self._app.control.inspect(timeout=LIST_TIMEOUT, limit=self._count)
        found: set[str] = set()
        for command in ("scheduled", "reserved", "active"):
            replies: Mapping[str, Any] = getattr(inspect, command)() or {}
            self._check(len(replies), f"inspect {command}")
            found.update(id_ for rows in replies.values() for id_ in ids_of(rows))
        for chunk in chunks(overdue):
            replies = inspect.query_task(*chunk) or {}
            self._check(len(replies), "inspect query_task")
            found.update(id_ for rows in replies.values() for id_, (_, row) in rows.items() if not row.get("stored"))
        return found

    def _check(self, answered: int, what: str) -> None:
        if answered < self._count:
            raise SilentWorkersError(
                f"{self._count - answered} of {self._count} live workers did not answer {what}: their tasks are "
                "unknown. Stop all stock workers first; a warm shutdown puts their tasks back into the queues"
            )

    def _receivers(self) -> int:
        """Send a command that is addressed to nobody; return how many workers received it."""
        exchange = self._app.control.mailbox.exchange
        with self._app.connection_for_write() as connection:
            channel = connection.default_channel
            counts: list[int] = []
            channel.conn_or_acquire = _counting(channel.conn_or_acquire, counts)
            command: dict[str, Any] = {
                "method": "ping",
                "arguments": {},
                "destination": [NOBODY],
                "pattern": None,
                "matcher": None,
            }
            connection.Producer(channel, auto_declare=False).publish(
                command,
                exchange=exchange.name,
                routing_key="",
                declare=[exchange],
                headers={"clock": self._app.clock.forward(), "expires": 0},
                serializer="json",
            )
            # Behind Sentinel kombu may also publish to an old name of the channel, which the same workers receive.
            return max(counts, default=0)


def ids_of(rows: Any) -> Iterator[str]:
    """Yield the task ids in the answer of one worker."""
    for row in rows if isinstance(rows, list) else ():
        request = row.get("request", row)
        # Workers with DelayedTasks list stored tasks as well.
        if not request.get("stored"):
            yield str(request.get("id"))


def _counting(acquire: Any, counts: list[int]) -> Any:
    @contextmanager
    def conn_or_acquire(client: Any = None) -> Iterator[Any]:
        with acquire(client) as found:
            publish = found.publish

            def counted(*args: Any, **kwargs: Any) -> Any:
                counts.append(publish(*args, **kwargs))
                return counts[-1]

            found.publish = counted
            try:
                yield found
            finally:
                del found.publish

    return conn_or_acquire
