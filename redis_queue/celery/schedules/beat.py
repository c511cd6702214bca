"""RedisQueueScheduler: ``celery beat -S redis_queue`` sends the schedules in the store; any number of beats may run."""

from __future__ import annotations

import threading
from typing import Any, Final

from celery.beat import Scheduler

from redis_queue.celery.dispatch.loop import DispatchLoop
from redis_queue.celery.schedules.declaration import Declaration
from redis_queue.celery.settings import extension_of
from redis_queue.errors import ConfigurationError

BEAT: Final = "beat@"
"""Prefix of the name of a dispatcher that is a beat."""

TICK: Final = 1.0
"""Seconds between two signs of life of beat; runs are sent by a thread."""

STOP_WITHIN: Final = 1.0


class RedisQueueScheduler(Scheduler):  # type: ignore[misc]
    """Declares the app's ``beat_schedule``, and dispatches as workers do; beats and workers elect one that leads.

    Raises ConfigurationError without DurableTasks with delays, and if the library that a rule needs is missing.
    """

    def __init__(self, app: Any, **options: Any) -> None:
        self._thread: threading.Thread | None = None
        super().__init__(app, **options)

    def setup_schedule(self) -> None:
        """Start to dispatch."""
        extension = extension_of(self.app)
        if extension is None or not extension.delays:
            raise ConfigurationError("celery beat -S redis_queue needs DurableTasks(app) with delays")
        self.app.loader.import_default_modules()
        Declaration(extension.schedules).static()
        self.redis_queue_loop = DispatchLoop(self.app, kind=BEAT, declares=True)
        self._thread = threading.Thread(target=self.redis_queue_loop.run, name="redis-queue-beat", daemon=True)
        self._thread.start()

    def tick(self, *_: Any, **__: Any) -> float:
        """Return the seconds until the next call. Raises RuntimeError if the thread has died."""
        if self._thread is None or not self._thread.is_alive():
            raise RuntimeError("the dispatching thread has ended")
        return TICK

    def close(self) -> None:
        """Stop to dispatch: another beat, or a worker, takes over at once."""
        if self._thread is not None:
            self.redis_queue_loop.stop()
            self._thread.join(STOP_WITHIN)
        super().close()

    @property
    def info(self) -> str:
        """What beat shows when it starts."""
        return "    . store -> redis_queue"
