"""Steps of every worker: a thread dispatches, unless the worker runs with ``--without-dispatch``."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import click
from celery import bootsteps

from redis_queue.basics.logs import logger_of
from redis_queue.celery.control.panel import wrap_panel
from redis_queue.celery.control.revokes import RevokeStep
from redis_queue.celery.dispatch.loop import LOOP, WORKER, DispatchLoop
from redis_queue.celery.monitor.step import MonitorStep
from redis_queue.celery.startup import StartupStep
from redis_queue.celery.store import Store

if TYPE_CHECKING:
    from celery import Celery

logger = logger_of(__name__)

STOP_WITHIN: Final = 1.0
"""Seconds that a warm shutdown waits for the thread."""


class DispatchStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Runs a DispatchLoop beside the worker; invalid settings stop the worker on startup."""

    # Start after the pool: a process should not fork while its threads run.
    requires = ("celery.worker.components:Timer", "celery.worker.components:Pool")

    def __init__(self, parent: Any, without_dispatch: bool = False, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._thread: threading.Thread | None = None
        self._loop: DispatchLoop | None = None
        self.enabled = Store.of(parent.app).settings.dispatch and not without_dispatch
        wrap_panel()

    def start(self, parent: Any) -> None:
        """Start the thread, with its own connections."""
        self._loop = DispatchLoop(parent.app, kind=WORKER)
        setattr(parent.app, LOOP, self._loop)
        self._thread = threading.Thread(target=self._loop.run, name="redis-queue-dispatch", daemon=True)
        self._thread.start()

    def stop(self, parent: Any) -> None:  # noqa: ARG002 - what Celery calls
        """Stop the thread; if it takes too long, its entries come back when their leases end."""
        loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        loop.stop()
        thread.join(STOP_WITHIN)
        if thread.is_alive():
            logger.warning("the dispatch thread is still sending a batch", extra={"action": "dispatch_slow_stop"})

    terminate = stop


def install_worker(app: Celery) -> None:
    """Add the steps and their option to the workers of the app."""
    app.steps["worker"].update((DispatchStep, StartupStep))
    app.steps["consumer"].update((MonitorStep, RevokeStep))
    app.user_options["worker"].add(
        click.Option(["--without-dispatch"], is_flag=True, help="Leave due entries to other workers (redis_queue).")
    )
