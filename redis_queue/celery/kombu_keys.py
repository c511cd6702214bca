"""Names of the keys of kombu's Redis transport: the lists of a queue, one per step of priority, and its records."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from celery import Celery

SEPARATOR: Final = "\x06\x16"
STEPS: Final = (0, 3, 6, 9)
HIGHEST: Final = 9


def amqp_step(priority: int) -> int:
    """Return the step of a *priority* of RabbitMQ, where a higher number comes first."""
    return HIGHEST - max(0, min(priority, HIGHEST))


@dataclass(frozen=True, slots=True)
class ListNames:
    """How one broker names its lists: the options in ``broker_transport_options`` that change it."""

    prefix: str = ""
    separator: str = SEPARATOR
    steps: Sequence[int] = STEPS

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ListNames:
        """Return the names under these transport options."""
        prefix, steps = options.get("global_keyprefix") or "", options.get("priority_steps") or STEPS
        return cls(prefix, options.get("sep") or SEPARATOR, steps)

    @classmethod
    def of_app(cls, app: Celery) -> ListNames | None:
        """Return the names of the lists in the broker of *app*; None if the broker is not Redis."""
        with app.connection_for_write() as connection:
            is_redis = connection.transport.driver_type == "redis"
            return cls.of(connection.transport_options) if is_redis else None

    def of_queue(self, queue: str, priority: int) -> str:
        """Return the list for messages of *priority*."""
        return self._key(queue, self.step(priority))

    def step(self, priority: int) -> int:
        """Return the step of *priority*: messages of one step share a list."""
        return self.steps[bisect(self.steps, max(0, min(priority, HIGHEST))) - 1]

    def all_of(self, queue: str) -> list[str]:
        """Return the lists of all priorities."""
        return [self._key(queue, step) for step in self.steps]

    def queue_of(self, key: str) -> str | None:
        """Return the queue to which the list *key* belongs; None for keys without the prefix."""
        if not key.startswith(self.prefix):
            return None
        queue, separator, step = key.removeprefix(self.prefix).rpartition(self.separator)
        return queue if separator and step in map(str, self.steps) and step != "0" else key.removeprefix(self.prefix)

    def _key(self, queue: str, step: int) -> str:
        return f"{self.prefix}{queue}{self.separator}{step}" if step else f"{self.prefix}{queue}"


@dataclass(frozen=True, slots=True)
class InFlightKeys:
    """Keys of messages in flight: *index*, delivery tag -> time, and *records*, delivery tag -> message."""

    index: str
    records: str

    @classmethod
    def of(cls, channel: Any) -> InFlightKeys:
        """Return the names that kombu's *channel* uses."""
        prefix = channel.global_keyprefix or ""
        return cls(f"{prefix}{channel.unacked_index_key}", f"{prefix}{channel.unacked_key}")
