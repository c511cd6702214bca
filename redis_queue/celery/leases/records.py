"""What the workers of a broker have in flight, in kombu's own format."""

from __future__ import annotations

from typing import Any

import redis

from redis_queue.celery.lists import InFlight
from redis_queue.errors import RedisQueueError
from redis_queue.keeper import client_of
from redis_queue.scripts import BoundScript, DirectLink, load


class Records:
    """The in-flight records of one broker. A call whose reply does not come is sent again on a new connection.

    Raises the errors of redis-py, which kombu and Celery know.
    """

    def __init__(self, client: redis.Redis, in_flight: InFlight) -> None:
        self._link = DirectLink(client)
        keys = [in_flight.index.encode(), in_flight.records.encode()]
        self._settle = BoundScript(self._link, load("held/settle"), keys)

    @classmethod
    def of(cls, channel: Any) -> Records:
        """Return those of the broker behind kombu's *channel*."""
        return cls(client_of(channel), InFlight.of(channel))

    def settle(self, tag: str) -> None:
        """Remove the record of *tag*; no-op if there is none."""
        _call(self._settle, tag=tag)

    def close(self) -> None:
        """Close the connections; the next call opens another one."""
        self._link.close()


def _call(script: BoundScript, **arguments: Any) -> Any:
    try:
        return script(**arguments)
    except RedisQueueError as error:
        raise (error.__cause__ or error) from None
