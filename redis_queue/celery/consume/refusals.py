"""Refusals: a worker outlives a broker that refuses commands for a while, on startup as well.

kombu raises such refusals as they come, from whatever it does while it connects: it binds the queue of the remote
control, asks for neighbours, subscribes. Celery does not count them among lost connections, and the worker would end.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Callable
from typing import Any, Final

from celery import bootsteps
from celery.exceptions import CPendingDeprecationWarning
from celery.utils.log import get_logger
from celery.worker.state import maybe_shutdown

from redis_queue.basics.logs import OutageLog, logger_of
from redis_queue.basics.waits import Backoff
from redis_queue.store.redis_errors import as_unavailable, refuses_for_now

logger = logger_of(__name__)

QUIET: Final = 10.0
"""Seconds without a refusal after which the pauses begin with the shortest again."""

STEP: Final = 0.2
"""Seconds between two looks whether the worker has been told to stop."""

CHATTER: Final = ("connection", "consumer", "mingle")
"""Modules of Celery that log a line for each attempt."""


class BrokerRefusesError(ConnectionError):
    """For Celery a lost connection: the broker refuses commands for now."""


class Refusals:
    """Lets Celery connect again, after growing pauses, when the broker refuses what *consumer* does or starts with.

    Tasks run on meanwhile, and are settled on the next connection.
    """

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._pauses = Backoff(first=0.5)
        self._outage = OutageLog(
            logger, "the broker refuses commands for now", "the broker accepts commands again", action="broker_refuses"
        )
        self._ready_at = math.inf
        self._next_at = -math.inf
        consumer.blueprint.start = self._guarded(consumer.blueprint.start)
        consumer.on_ready = self._noted(consumer.on_ready)
        ensure_connected = consumer.ensure_connected
        consumer.ensure_connected = lambda connection: ensure_connected(_impatient(connection))
        # It says at each attempt that running tasks cannot be acknowledged any more; with leases they are.
        warnings.filterwarnings("ignore", r"\s*In Celery 5\.1 .*\son connection loss", CPendingDeprecationWarning)
        for name in CHATTER:
            get_logger(f"celery.worker.consumer.{name}").addFilter(self._is_news)

    def _guarded(self, start: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def guarded(consumer: Any) -> Any:
            # Not before: meanwhile Celery has closed the connection, so tasks that end now are settled by the next one.
            self._pause()
            try:
                return start(consumer)
            except Exception as error:
                refusal = as_unavailable(error)
                if refusal is None:
                    raise
                self._note(refusal)
                raise BrokerRefusesError(str(refusal)) from error

        return guarded

    def _note(self, error: Exception) -> None:
        now = time.monotonic()
        if now - self._ready_at > QUIET:
            self._pauses.reset()
        self._ready_at = math.inf
        pause = self._pauses.next()
        self._next_at = now + pause
        self._outage.note(error, retry_in=pause)

    def _pause(self) -> None:
        stops = (bootsteps.CLOSE, bootsteps.TERMINATE)
        while (left := self._next_at - time.monotonic()) > 0 and self._consumer.blueprint.state not in stops:
            maybe_shutdown()
            time.sleep(min(left, STEP))

    def _noted(self, on_ready: Callable[[], Any]) -> Callable[[], Any]:
        def ready() -> Any:
            self._ready_at = time.monotonic()
            self._outage.end()
            return on_ready()

        return ready

    def _is_news(self, record: logging.LogRecord) -> bool:
        """Tell whether *record* says more than the one line about the outage."""
        args = record.args if isinstance(record.args, tuple) else ()
        told = self._outage.lasts and record.levelno <= logging.INFO
        return not told and not any(isinstance(value, BrokerRefusesError) for value in args)


def _impatient(connection: Any) -> Any:
    """Let *connection* raise a refusal at once: kombu would pause inside the event loop, for up to 30 s at a time."""
    ensure_connection = connection._ensure_connection

    def ensured(on_error: Callable[..., Any] | None = None, *args: Any, **kwargs: Any) -> Any:
        def check(error: Exception, interval: float) -> None:
            if refuses_for_now(error):
                raise error
            if on_error is not None:
                on_error(error, interval)

        return ensure_connection(check, *args, **kwargs)

    connection._ensure_connection = ensured
    return connection
