"""Actions on running tasks and on workers."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote, unquote

from redis_queue.basics.options import counted, did_you_mean
from redis_queue.basics.times import from_ms, to_ms
from redis_queue.celery.monitor import remote
from redis_queue.errors import ConfigurationError, InvalidNameError, InvalidValueError, WorkerRefusedError
from redis_queue.monitor.model import RunningTask, WorkerRow
from redis_queue.monitor.report import Reports
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Action, Argument, Choice, Plan, Result, flag, number
from redis_queue.operate.actions.queues import One, one_step
from redis_queue.operate.actions.rows import INVALID_ROW, Rows
from redis_queue.operate.audit import MAX_SUBJECTS, Subject
from redis_queue.operate.listing import Selection
from redis_queue.operate.liveness import age_of, state_of
from redis_queue.store.chunks import MANY
from redis_queue.store.ids import is_id

MAX_SIZE: Final = remote.MAX_SIZE
"""Maximum size of a pool."""

ENDS: Final = ("prefork", "gevent", "eventlet")
"""Pools that can end a running task."""

ENDS_SOFTLY: Final = ("prefork",)
"""Pools that can raise SoftTimeLimitExceeded in a running task."""

RESIZES: Final = ("prefork", "gevent", "eventlet")
"""Pools whose size can be changed."""

_ROW: Final = re.compile(r"(\d{1,15}):([^:]{1,1000}):([^:]{1,3000})", re.ASCII)

SOFTLY: Final = (
    "SoftTimeLimitExceeded is raised in each task, once. The task decides: it may clean up, retry, fail, or go on. "
    "A task that has ended when the command arrives is left alone, and so is a later run of it."
)
AT_ONCE: Final = (
    "Each task ends at once, wherever it is. It is not run again: its message is acknowledged, and its result is "
    "REVOKED. What it has done so far stays. A task that has ended when the command arrives is left alone, and so is a "
    "later run of it."
)


def reference(task: RunningTask) -> str:
    """Return a reference to this run for a form; a later run of the same task has another one."""
    parts = (quote(part, safe="", errors="surrogateescape") for part in (task.worker, task.id))
    return ":".join((str(to_ms(task.since)), *parts))


class RunningRows(Rows[RunningTask]):
    """Running tasks, each in one run."""

    name, noun, plural, at = "running", "running task", "running tasks", "since"
    gone = "had ended"
    complete = True

    def find(self, access: Access, choice: Choice) -> Selection[RunningTask]:
        """Return the runs of the tasks with these ids. Raises InvalidNameError for one that no worker reports."""
        known = {task.id: task for task in reversed(access.monitor.workers.running(MANY))}
        for id_ in choice.ids or ():
            if id_ not in known:
                raise InvalidNameError(
                    f"id={id_!r}: no worker reports that it runs; workers report it after a second. "
                    "A task that has not started: redis-queue stop"
                )
        return Selection([known[id_] for id_ in choice.ids or ()])

    def read(self, access: Access, choice: Choice) -> list[RunningTask]:
        """Return the runs as they were when the references were made, with the names that workers still report."""
        found: list[RunningTask] = []
        for row in dict.fromkeys(choice.references):
            parts = _ROW.fullmatch(row)
            worker, id_ = (unquote(parts[2]), unquote(parts[3])) if parts else ("", "")
            if parts is None or not is_id(id_) or not is_id(worker):
                raise InvalidValueError(INVALID_ROW)
            found.append(RunningTask(id_, "", "", worker, from_ms(int(parts[1]))))
        reported = {
            (task.worker, task.id, task.since): task
            for worker in {task.worker for task in found}
            for task in access.monitor.workers.running_of(worker)
        }
        return [reported.get((task.worker, task.id, task.since), task) for task in found]

    def current(self, access: Access, choice: Choice, items: Sequence[RunningTask]) -> list[RunningTask]:  # noqa: ARG002
        """Return the runs that have not ended: those with a name."""
        return [task for task in items if task.task]

    def reference(self, item: RunningTask) -> str:
        return reference(item)

    def subjects(self, choice: Choice, items: Sequence[RunningTask]) -> list[Subject]:  # noqa: ARG002
        """Return the first runs."""
        return [_subject(task) for task in items[:MAX_SUBJECTS]]

    def plan(self, action: Action, access: Access, choice: Choice) -> Plan:
        """Return the plan. Raises ConfigurationError without an app."""
        app_of(access)
        return super().plan(action, access, choice)

    def planned(self, action: Action, access: Access, choice: Choice, selection: Selection[RunningTask]) -> Plan:
        """Return the plan; before it is confirmed, with what speaks against it: pools that cannot end a task."""
        plan, soft = super().planned(action, access, choice, selection), bool(choice.arguments.get("soft"))
        if choice.confirmed is not None:
            return plan
        running = self.current(access, choice, selection.items)
        rows = [worker_of(access, name) for name in sorted({task.worker for task in running})]
        problems = [problem for row in rows if (problem := stoppable(row, soft=soft))]
        ended = len(selection.items) - len(running)
        warnings = [f"{ended:,} of the ticked tasks have ended since the page was made."] if ended else ()
        text = SOFTLY if soft else AT_ONCE
        return replace(plan, text=text, warnings=warnings, nothing="; ".join(problems))


def terminate(access: Access, tasks: Sequence[RunningTask], choice: Choice) -> Iterator[Result]:
    """Stop running tasks: each ends at once, is not run again, and its result is REVOKED.

    It needs a Celery app, and workers with the prefork, gevent or eventlet pool; --soft needs prefork. A task that has
    ended meanwhile, or runs anew, is left alone.

    Example: redis-queue -A shop terminate 6f1c7e1e-4d2b-4a6e-9f2b-000000000001
    """
    app, soft, pools = app_of(access), bool(choice.arguments.get("soft")), access.monitor.workers
    for worker, group in itertools.groupby(sorted(tasks, key=lambda task: task.worker), lambda task: task.worker):
        chosen, row = list(group), pools.row(worker)
        problem = f"{worker}: no report within the last minute" if row is None else stoppable(row, soft=soft)
        for start in range(0, len(chosen), remote.MAX_TASKS):
            part = chosen[start : start + remote.MAX_TASKS]
            found: frozenset[str] = frozenset()
            if not problem:
                try:
                    found = remote.stop(app, worker, [(task.id, to_ms(task.since)) for task in part], soft=soft)
                except WorkerRefusedError as error:
                    # It does not answer to the others either.
                    problem = str(error)
            stopped = [_subject(task) for task in part if task.id in found]
            skipped = Counter({problem: len(part) - len(stopped)} if problem else {})
            yield Result(len(stopped), tried=len(part), skipped=skipped, subjects=stopped)


def shut_down(access: Access, choice: Choice) -> Plan:
    """Let the worker end its running tasks, then itself, as after SIGTERM. A supervisor may start it again.

    Example: redis-queue -A shop worker celery@host shutdown
    """
    app, row = app_of(access), worker_of(access, choice.scope["name"])
    text = (
        f"The worker takes no more tasks, ends after its {counted(row.busy, 'running task')}, and gives "
        f"{counted(row.prefetched, 'prefetched message')} back to the broker. A supervisor such as systemd or "
        "Kubernetes may start it again."
    )
    question = f"Shut down {row.name} after its {counted(row.busy, 'running task')}"
    told = f"{row.name} ends after its running tasks"
    change = lambda: remote.shut_down(app, row.name, row.pid)  # noqa: E731
    return _of_process(row, choice, change, question=question, text=text, told=told)


def resize(access: Access, choice: Choice) -> Plan:
    """Let the worker run SIZE tasks at once, until it ends: its next start has the size of its command line.

    Only with the prefork, gevent and eventlet pools, and without --autoscale. Busy processes cannot be removed.

    Example: redis-queue -A shop worker celery@host resize 8
    """
    app, row, size = app_of(access), worker_of(access, choice.scope["name"]), choice.arguments["size"]
    if row.pool not in RESIZES:
        raise InvalidValueError(f"{row.name}: the size of a {row.pool or 'unknown'} pool cannot be changed")
    text = (
        f"The worker runs up to {counted(size, 'task')} at once, until it ends: its next start has the size of its "
        f"command line. It runs {row.busy:,} now; processes that are busy cannot be removed."
    )
    question = f"Resize {row.name} from {row.concurrency:,} to {size:,}"
    told, detail = f"{row.name} runs {counted(size, 'task')} at once", f"from {row.concurrency} to {size}"
    change = lambda: remote.resize(app, row.name, row.pid, size)  # noqa: E731
    return _of_process(row, choice, change, question=question, text=text, told=told, detail=detail)


def clear(access: Access, choice: Choice) -> Plan:
    """Remove a lost worker from the list; it would leave it an hour after its last report. It needs no Celery app.

    A worker that reports is refused.

    Example: redis-queue worker celery@host clear
    """
    row = _lost(access, choice.scope["name"])

    def change() -> int:
        _lost(access, row.name)
        return Reports(access.catalog.client, access.catalog.prefix).write(row, leaving=True)

    text = "It is removed from the list. If it runs after all, it is listed again with its next report."
    question, told = f"Clear {row.name}", f"{row.name} cleared"
    return one_step(question, row.name, change, text, told=told)


def _lost(access: Access, name: str) -> WorkerRow:
    row = access.monitor.workers.row(name, lost=True)
    if row is None:
        raise InvalidNameError(f"worker={name!r}: is not listed: it has left, or was lost more than an hour ago")
    if state_of(row, age_of(row, access.inspector.now().timestamp()))[0] != "lost":
        raise InvalidValueError(f"{name}: it has reported within the last minute, so it is not lost")
    return row


def _of_process(row: WorkerRow, choice: Choice, change: Callable[[], object], **known: str) -> Plan:
    """Return the plan to *change* one process: that which the form names, if it names one."""
    pid = choice.scope.get("pid") or row.pid
    if pid != row.pid:
        raise InvalidValueError(f"{row.name}: it is another process by now: reload the page")

    def checked() -> object:
        if row.stopping:
            raise WorkerRefusedError(_shutting_down(row))
        return change()

    return one_step(name=row.name, change=checked, fields={"pid": str(row.pid)}, **known)


def stoppable(worker: WorkerRow, *, soft: bool) -> str:
    """Return why *worker* cannot stop a task that it runs; "" if it can."""
    if worker.stopping:
        return _shutting_down(worker)
    if worker.pool in (ENDS_SOFTLY if soft else ENDS):
        return ""
    how = "raise SoftTimeLimitExceeded in" if soft else "end"
    return f"{worker.name}: its {worker.pool or 'unknown'} pool cannot {how} a running task"


def _shutting_down(worker: WorkerRow) -> str:
    return f"{worker.name}: it shuts down and takes no commands; it ends once its tasks have ended"


def worker_of(access: Access, name: str) -> WorkerRow:
    """Return the last report of a worker. Raises InvalidNameError for one that did not report within a minute."""
    row = access.monitor.workers.row(name)
    if row is None:
        names = [found.name for found in access.monitor.workers.rows(limit=1000)]
        hint = did_you_mean(name, names) if names else "no worker reports"
        raise InvalidNameError(f"worker={name!r}: did not report within the last minute; {hint}")
    return row


def app_of(access: Access) -> Any:
    """Return the app. Raises ConfigurationError without one."""
    if access.app is None:
        raise ConfigurationError("workers are reached through the broker of a Celery app: name it with -A APP")
    return access.app


def _subject(task: RunningTask) -> Subject:
    return Subject(task.id, task.worker, task.task, task.since)


SOFT: Final = flag("soft", "Raise SoftTimeLimitExceeded in the tasks; they may clean up.", "softly")
SIZE: Final = Argument(
    "size",
    "How many tasks it runs at once.",
    number("size", MAX_SIZE),
    missing=f"Resize to what? Fill in a number from 1 to {MAX_SIZE:,}.",
    metavar="SIZE",
    is_positional=True,
)

_runs, _worker = RunningRows(), One("worker", {"name": True, "pid": False})

ACTIONS: Final = (
    Action(
        _runs,
        "terminate",
        "Terminate",
        "stopped",
        terminate,
        (SOFT,),
        destroys=True,
        takes_all=False,
        phrase=lambda given: " softly" if given.get("soft") else "",
    ),
    Action(_worker, "shutdown", "Shut down", "shut down", shut_down, destroys=True),
    Action(_worker, "resize", "Resize", "resized", resize, (SIZE,), destroys=True),
    Action(_worker, "clear", "Clear", "cleared", clear),
)
