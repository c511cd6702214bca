"""Stop tasks that match, wherever they are: delayed, waiting, fetched or running."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar, Final
from urllib.parse import quote, unquote

from redis_queue.basics.options import Conditions
from redis_queue.basics.times import from_ms, to_ms
from redis_queue.celery.queues.message import WaitingMessage
from redis_queue.celery.results import mark_revoked
from redis_queue.celery.stored_tasks import StoredTasks
from redis_queue.errors import InvalidValueError
from redis_queue.monitor.model import RunningTask
from redis_queue.operate.access import Access
from redis_queue.operate.actions.action import Action, Choice, Plan, Result
from redis_queue.operate.actions.rows import INVALID_ROW, Rows
from redis_queue.operate.actions.workers import app_of, terminate
from redis_queue.operate.audit import MAX_SUBJECTS, Subject
from redis_queue.operate.chain import message_of
from redis_queue.operate.items import contents_of
from redis_queue.operate.listing import Selection
from redis_queue.operate.task_rows import TaskRow
from redis_queue.operate.tasks import TaskSearch
from redis_queue.store.chunks import MANY, chunks
from redis_queue.store.ids import is_id

STATES: Final = ("delayed", "waiting", "fetched", "running")
"""The states of tasks that can be stopped, in the order in which a task has them."""

TEXT: Final = (
    "Tasks that are delayed, wait, or are fetched never run, and their results are REVOKED. Running ones end at once, "
    "are not run again, and what they have done so far stays. A fetched task that starts at this moment is not "
    "stopped: search again after a second."
)

_ROW: Final = re.compile(rf"({'|'.join(STATES)}):([^:]*):([^:]+):([\d.a-f]*):([^:]*)", re.ASCII)


def reference(row: TaskRow) -> str:
    """Return a reference to a task in its state for a form: to one run, or to one message."""
    since = "" if row.state != "running" or row.at is None else str(to_ms(row.at))
    parts = (row.state, row.queue, row.id, since or row.reference, row.worker)
    return ":".join(quote(part, safe="", errors="surrogateescape") for part in parts)


class TaskRows(Rows[TaskRow]):
    """Tasks that have not ended, each in its state."""

    name, noun, plural, at = "tasks", "task", "tasks", "at"
    scope: ClassVar = {"state": False}
    gone = "had ended, or went on to another state"
    complete = True

    def find(self, access: Access, choice: Choice) -> Selection[TaskRow]:
        """Return the tasks with the ids of *choice*, or those that match, with notes on what was not searched."""
        state = choice.scope.get("state")
        if state is not None and state not in STATES:
            raise InvalidValueError(f"state={state[:60]!r}: only tasks that have not ended can be stopped")
        only, wanted = choice.conditions or Conditions(), frozenset(choice.ids or ())
        if wanted:
            only = Conditions(id_prefix=next(iter(wanted)) if len(wanted) == 1 else None)
        elif not only and state is None:
            raise InvalidValueError("stop what? Give ids, or conditions such as the name of the task")
        search = TaskSearch(access, only, [state] if state else STATES)
        rows, more, looks = search.first(choice.most or MANY)
        for look in looks:
            if look.text:
                search.report.notes.append(look.text)
        meant = [row for row in rows if is_id(row.id) and (not wanted or row.id in wanted)]
        return Selection(meant, more, search.report)

    def read(self, access: Access, choice: Choice) -> list[TaskRow]:  # noqa: ARG002
        """Return the tasks as they were when the references were made, without their names."""
        found: list[TaskRow] = []
        for text in dict.fromkeys(choice.references):
            parts = _ROW.fullmatch(text)
            state, queue, id_, reference, worker = (unquote(part) for part in parts.groups()) if parts else [""] * 5
            if not is_id(id_) or (state == "running" and not (reference.isdecimal() and is_id(worker))):
                raise InvalidValueError(INVALID_ROW)
            since = from_ms(int(reference)) if state == "running" else None
            found.append(TaskRow(state, id_, "", since, queue, worker, reference=reference))
        return found

    def current(self, access: Access, choice: Choice, items: Sequence[TaskRow]) -> list[TaskRow]:  # noqa: ARG002
        """Return *items*: what each does by now decides whether it is stopped."""
        return list(items)

    def reference(self, item: TaskRow) -> str:
        return reference(item)

    def subjects(self, choice: Choice, items: Sequence[TaskRow]) -> list[Subject]:  # noqa: ARG002
        return [Subject(row.id, row.queue, row.task, row.at) for row in items[:MAX_SUBJECTS]]

    def planned(self, action: Action, access: Access, choice: Choice, selection: Selection[TaskRow]) -> Plan:
        """Return the plan, with the number of tasks in each state. Raises ConfigurationError without an app."""
        app_of(access)
        plan = super().planned(action, access, choice, selection)
        states = Counter(row.state for row in selection.items)
        counts = [(state, states[state]) for state in STATES if states[state]]
        return replace(
            plan,
            text=TEXT,
            changes=[(state, count, 0) for state, count in counts],
            detail=", ".join(f"{count:,} {state}" for state, count in counts),
            warnings=plan.report.notes,
        )


def stop(access: Access, rows: Sequence[TaskRow], choice: Choice) -> Iterator[Result]:
    """Stop tasks wherever they are: delayed ones, those that wait in a queue or a flow, fetched and running ones.

    Those that have not started are revoked, and never run; their messages are deleted where they wait. Running ones are
    terminated, as by the command terminate. It needs a Celery app. What cannot be searched is told.

    Example: redis-queue -A shop stop --task shop.mail --stamp tenant=acme --dry-run
    """
    app, stored = app_of(access), StoredTasks.of(app_of(access))
    unstarted = [row for row in rows if row.state != "running"]
    # First of all: what goes on to another state meanwhile is revoked there, too.
    for chunk in chunks(unstarted):
        ids = list(dict.fromkeys(row.id for row in chunk))
        stored.revoke_many(ids)
        app.control.revoke(ids)
        _delete(access, [row for row in chunk if row.state == "waiting"])
        yield Result(len(chunk), tried=len(chunk), subjects=_tasks.subjects(choice, chunk))
    running = [
        RunningTask(row.id, row.task, row.queue, row.worker, row.at)
        for row in rows
        if row.state == "running" and row.at is not None
    ]
    yield from terminate(access, running, choice)


def _delete(access: Access, rows: Sequence[TaskRow]) -> None:
    """Delete messages that wait: workers would discard them as late as they take them, and at the rates of flows."""
    for queue, group in itertools.groupby(sorted(rows, key=lambda row: row.queue), lambda row: row.queue):
        with contents_of(access, queue, None) as contents:
            for removed, _ in contents.remove([row.reference for row in group]):
                for message in map(WaitingMessage.of, removed):
                    mark_revoked(access.app, message.id, message_of(None, message, None))


_tasks: Final = TaskRows()

ACTIONS: Final = (Action(_tasks, "stop", "Stop", "stopped", stop, destroys=True, takes_all=False),)
