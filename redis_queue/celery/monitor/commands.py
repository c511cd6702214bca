"""Remote control commands that act on one worker: stop running tasks, shut down, change the size of the pool.

Celery's own commands name a task or a worker. These name a run or a process: a message to a worker that hangs arrives
late, and must then stop neither another run of the task nor the worker that has replaced this one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import Any, Final

from celery.worker import control
from celery.worker import state as worker_state
from celery.worker.control import Panel, nok, ok

from redis_queue.basics.logs import logger_of
from redis_queue.basics.times import to_ms
from redis_queue.celery.monitor.remote import MAX_SIZE, MAX_TASKS, RESIZE, SHUT_DOWN, STOP
from redis_queue.celery.monitor.snapshot import reported_since
from redis_queue.store.codec import small_integer

logger = logger_of(__name__)

SAME_MS: Final = 1000
"""Reports give times by the clock of Redis: that of one run may change this much from report to report."""

SOFT: Final = signal.SIGUSR1
"""The signal that raises SoftTimeLimitExceeded in a child of the prefork pool."""

OTHER: Final = "another process runs under this name now"


def register() -> None:
    """Let the worker of this process take the commands."""
    for name, command in ((STOP, stop), (SHUT_DOWN, shut_down), (RESIZE, resize)):
        if name not in Panel.data:
            Panel.register(command, name=name)


def stop(state: Any, tasks: Any = (), soft: bool = False, **_: Any) -> Any:
    """Stop running tasks, pairs of an id and the reported start in ms; reply with the ids of those that were running.

    With *soft* the tasks get SoftTimeLimitExceeded; else they are ended, their messages acknowledged, and they become
    REVOKED.
    """
    wanted = {str(id_): small_integer(began) for id_, began in list(tasks)[:MAX_TASKS]}
    stopped = []
    for request in _running(wanted):
        since = reported_since(request)
        if since is None or abs(to_ms(since) - wanted[request.id]) > SAME_MS:
            continue
        logger.warning(
            "%(kind)s %(task)s[%(id)s]",
            {"kind": "soft stop of" if soft else "terminating", "task": request.name, "id": request.id},
            extra={"action": "task_stopped", "task_id": request.id},
        )
        if soft:
            os.kill(request.worker_pid, SOFT)
        else:
            request.terminate(state.consumer.pool, signal="TERM")
        stopped.append(request.id)
    return ok(stopped)


def shut_down(state: Any, pid: int = 0, **_: Any) -> Any:  # noqa: ARG001 - what Celery calls
    """Shut down after the running tasks have ended, as after SIGTERM, if this is the process *pid*."""
    if pid != os.getpid():
        return nok(OTHER)
    logger.warning("shutting down: asked by remote control", extra={"action": "shut_down"})
    # The event loop reads it after the reply was sent.
    worker_state.should_stop = os.EX_OK
    return ok(os.getpid())


def resize(state: Any, pid: int = 0, size: int = 0, **_: Any) -> Any:
    """Change the number of tasks that run at once to *size*, if this is the process *pid*; reply with the old size."""
    consumer = state.consumer
    if pid != os.getpid():
        return nok(OTHER)
    if not 1 <= small_integer(size) <= MAX_SIZE:
        return nok(f"size={size!r}: must be 1 to {MAX_SIZE}")
    if consumer.controller.autoscaler:
        return nok("its size is chosen by --autoscale")
    before = int(consumer.pool.num_processes)
    more = size - before
    if more > 0:
        control.pool_grow(state, more)
    elif more < 0:
        control.pool_shrink(state, -more)
    if more:
        logger.warning("pool size %d, was %d: by remote control", size, before, extra={"action": "resized"})
    return ok(before)


def _running(wanted: Iterable[str]) -> list[Any]:
    found = [worker_state.requests.get(id_) for id_ in wanted]
    return [request for request in found if request in worker_state.active_requests and request.time_start]
