"""Actions on workers: stop running tasks, shut a worker down, change the size of its pool."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from redis_queue.basics.options import did_you_mean
from redis_queue.basics.times import to_ms
from redis_queue.celery.monitor import remote
from redis_queue.errors import ConfigurationError, InvalidNameError, InvalidValueError, WorkerRefusedError
from redis_queue.monitor.model import RunningTask, WorkerRow
from redis_queue.operate.access import Access
from redis_queue.operate.audit import Subject

MOST_SIZE: Final = remote.MOST_SIZE
"""Greatest size of a pool."""

ENDS: Final = ("prefork", "gevent", "eventlet")
"""Pools that can end a running task."""

ENDS_SOFTLY: Final = ("prefork",)
"""Pools that can raise SoftTimeLimitExceeded in a running task."""

RESIZES: Final = ("prefork", "gevent", "eventlet")
"""Pools whose size can be changed."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """Of *tried* tasks of one worker, the *stopped* ones; *problem* tells why others were not, "" if they had ended."""

    stopped: Sequence[RunningTask]
    tried: int
    problem: str = ""


def stoppable(worker: WorkerRow, *, soft: bool) -> str:
    """Return why *worker* cannot stop a task that it runs; "" if it can."""
    if worker.stopping:
        return _deaf(worker)
    if worker.pool in (ENDS_SOFTLY if soft else ENDS):
        return ""
    how = "raise SoftTimeLimitExceeded in" if soft else "end"
    return f"{worker.name}: its {worker.pool or 'unknown'} pool cannot {how} a running task"


def _deaf(worker: WorkerRow) -> str:
    return f"{worker.name}: it shuts down and takes no commands; it ends once its tasks have ended"


def stop(access: Access, tasks: Sequence[RunningTask], *, soft: bool) -> Iterator[Stopped]:
    """Stop these runs, worker by worker; a run that has ended, or a later one with the same id, is left alone.

    A stopped task is not run again: its message is acknowledged and its result is REVOKED. With *soft* it gets
    SoftTimeLimitExceeded and decides itself. Raises ConfigurationError without an app, and StoreError.
    """
    app = app_of(access)
    pools = access.monitor.workers
    for worker, group in itertools.groupby(sorted(tasks, key=lambda task: task.worker), lambda task: task.worker):
        chosen = list(group)
        row = pools.row(worker)
        problem = f"{worker}: no report within the last minute" if row is None else stoppable(row, soft=soft)
        for start in range(0, len(chosen), remote.MOST_TASKS):
            part = chosen[start : start + remote.MOST_TASKS]
            found: frozenset[str] = frozenset()
            if not problem:
                try:
                    found = remote.stop(app, worker, [(task.id, to_ms(task.since)) for task in part], soft=soft)
                except WorkerRefusedError as error:
                    # It does not answer to the others either.
                    problem = str(error)
            yield Stopped([task for task in part if task.id in found], len(part), problem)


def worker_of(access: Access, name: str) -> WorkerRow:
    """Return the last report of a worker. Raises InvalidNameError for one that did not report within a minute."""
    row = access.monitor.workers.row(name)
    if row is None:
        names = [found.name for found in access.monitor.workers.rows(limit=1000)]
        hint = did_you_mean(name, names) if names else "no worker reports"
        raise InvalidNameError(f"worker={name!r}: did not report within the last minute; {hint}")
    return row


def shut_down(access: Access, row: WorkerRow) -> None:
    """Let this process end after its running tasks. Raises ConfigurationError and WorkerRefusedError."""
    app = app_of(access)
    if row.stopping:
        raise WorkerRefusedError(_deaf(row))
    remote.shut_down(app, row.name, row.pid)


def check_size(row: WorkerRow, size: int) -> int:
    """Return *size* if the pool of this worker can have it. Raises InvalidValueError."""
    if isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= MOST_SIZE:
        raise InvalidValueError(f"size={size!r}: must be 1 to {MOST_SIZE}")
    if row.pool not in RESIZES:
        raise InvalidValueError(f"{row.name}: the size of a {row.pool or 'unknown'} pool cannot be changed")
    return size


def resize(access: Access, row: WorkerRow, size: int) -> None:
    """Let this worker run *size* tasks at once. Raises InvalidValueError, ConfigurationError and WorkerRefusedError."""
    app, checked = app_of(access), check_size(row, size)
    if row.stopping:
        raise WorkerRefusedError(_deaf(row))
    remote.resize(app, row.name, row.pid, checked)


def find_running(access: Access, id_: str) -> RunningTask:
    """Return the running task with this id. Raises InvalidNameError if no worker reports it."""
    found = access.monitor.workers.find_running(id_)
    if found is None:
        raise InvalidNameError(f"id={id_!r}: no worker reports that it runs; workers report it after a second")
    return found


def subjects_of(tasks: Sequence[RunningTask]) -> list[Subject]:
    """Return the subjects of an action on running tasks."""
    return [Subject(task.id, task.worker, task.task, task.since) for task in tasks]


def app_of(access: Access) -> Any:
    """Return the app. Raises ConfigurationError without one."""
    if access.app is None:
        raise ConfigurationError("workers are reached through the broker of a Celery app: name it with -A APP")
    return access.app
