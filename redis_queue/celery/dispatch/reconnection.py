"""Reconnection: a dispatcher's connection to the broker, replaced once if it turns out to be dead."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from kombu.exceptions import OperationalError

from redis_queue.celery.brokers import Broker, open_broker
from redis_queue.celery.brokers.open import BrokerUnavailableError
from redis_queue.store.connection import Client

if TYPE_CHECKING:
    from celery import Celery

Result = TypeVar("Result")


class BrokerConnection:
    """A connection to the broker of *app*, opened at its first use and after each failure."""

    def __init__(self, app: Celery, store: Client) -> None:
        self._app = app
        self._store = store
        self._broker: Broker | None = None

    @property
    def shares_store(self) -> bool:
        """Whether the broker is known to be the Redis of the store."""
        return self._broker is not None and self._broker.shares_store

    def use(self, work: Callable[[Broker], Result]) -> Result:
        """Call *work* with the broker; again with a new connection if this one is dead, as the broker may be well.

        Raises kombu's OperationalError if the broker is away.
        """
        try:
            return self._use(work)
        except BrokerUnavailableError:
            pass
        try:
            return self._use(work)
        except BrokerUnavailableError as away:
            raise OperationalError(str(away.__cause__)) from away.__cause__

    def _use(self, work: Callable[[Broker], Result]) -> Result:
        try:
            self._broker = self._broker or open_broker(self._app, self._store)
            return work(self._broker)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        broker, self._broker = self._broker, None
        if broker is not None:
            broker.close()

    def __del__(self) -> None:
        # Nobody is left to handle the errors of a dead connection.
        with contextlib.suppress(Exception):
            self.close()
