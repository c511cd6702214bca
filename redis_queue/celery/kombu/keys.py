"""Names of the keys of kombu's Redis transport: the lists of a queue, one per step of priority, and its records."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from celery import Celery

from redis_queue.keeper.renewal import DEFAULT_LEASE
from redis_queue.store.keys import BrokerKeys

SEPARATOR: Final = "\x06\x16"
LEASE_OPTION: Final = "redis_queue_task_lease"
"""Transport option of connections of an app with leases: how long they are."""

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
    """Keys of messages in flight, and how long their leases are in seconds.

    Of kombu are *index*: delivery tag -> time, and *unacked*: delivery tag -> message. *lease_ends*: delivery tag ->
    end of the lease, has messages that workers with leases hold.
    """

    index: bytes
    unacked: bytes
    lease_ends: bytes
    lease: float = DEFAULT_LEASE

    @classmethod
    def under(
        cls, prefix: str, index: str = "unacked_index", unacked: str = "unacked", lease: float = DEFAULT_LEASE
    ) -> InFlightKeys:
        """Return the keys under a ``global_keyprefix``; the other arguments are kombu's options, by default kombu's."""
        ends = BrokerKeys(prefix).lease_ends(index)
        return cls(f"{prefix}{index}".encode(), f"{prefix}{unacked}".encode(), ends, lease)

    @classmethod
    def of(cls, channel: Any) -> InFlightKeys:
        """Return the keys that kombu's *channel* uses, and the lease of its connection."""
        lease = lease_of(channel.connection.client.transport_options, channel.visibility_timeout)
        return cls.under(channel.global_keyprefix or "", channel.unacked_index_key, channel.unacked_key, lease)

    @property
    def by_name(self) -> dict[str, bytes]:
        """The keys by their names in scripts."""
        return {"index": self.index, "unacked": self.unacked, "lease_ends": self.lease_ends}

    @property
    def lease_ms(self) -> int:
        """The lease in whole milliseconds, as scripts take it."""
        return max(1, round(self.lease * 1000))


def lease_of(options: Mapping[str, Any], visibility_timeout: float) -> float:
    """Return the seconds for which a worker with these transport options leases messages.

    At most the visibility timeout: after that, workers without leases return them.
    """
    return min(float(options.get(LEASE_OPTION, DEFAULT_LEASE)), float(visibility_timeout))
