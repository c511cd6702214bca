"""Actions on running tasks and on workers: a preview, then the action, then a line in the audit log."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from urllib.parse import quote, unquote

from flask import Blueprint, abort, flash, g, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from redis_queue.basics.times import from_ms, to_ms
from redis_queue.errors import WorkerRefusedError
from redis_queue.monitor.model import RunningTask, WorkerRow
from redis_queue.operate import worker_actions
from redis_queue.operate.audit import Action
from redis_queue.operate.worker_actions import MOST_SIZE, stoppable, subjects_of, worker_of
from redis_queue.store.ids import is_id
from redis_queue.web import request_args
from redis_queue.web.confirmation import NOT_CONFIRMED, begin_operation, confirmed_count, new_operation
from redis_queue.web.context import context
from redis_queue.web.permissions import require

pages = Blueprint("worker_actions", __name__)

MOST_TASKS: Final = 200
"""Most running tasks of one action, as many as the page lists."""

CHANGES: Final = {"shutdown": "Shut down", "resize": "Resize"}
"""Verbs for workers, and their labels."""

_ROW: Final = re.compile(r"(\d{1,15}):([^:]{1,1000}):([^:]{1,3000})", re.ASCII)


def reference(task: RunningTask) -> str:
    """Return a reference to this run for a form; a later run of the same task has another one."""
    parts = (quote(part, safe="", errors="surrogateescape") for part in (task.worker, task.id))
    return ":".join((str(to_ms(task.since)), *parts))


@pages.post("/running/preview")
def preview_stop() -> str:
    """Show the running tasks of an action, with a form to confirm it."""
    soft, tasks = _soft(), _tasks()
    access = context().access
    _check_app()
    workers = {name: worker_of(access, name) for name in {task.worker for task in tasks}}
    still = _reported(tasks)
    problems = sorted(filter(None, {stoppable(workers[task.worker], soft=soft) for task in still}))
    able = [] if problems else still
    return render_template(
        "stop_action.html",
        soft=soft,
        tasks=able,
        gone=len(tasks) - len(still),
        problems=problems,
        rows=[reference(task) for task in able],
        operation=new_operation(),
        now=context().inspector.now(),
    )


@pages.post("/running/act")
def stop() -> Response:
    """Stop exactly the runs of a preview, once."""
    soft, tasks = _soft(), _tasks()
    if confirmed_count(MOST_TASKS) != len(tasks):
        abort(400, NOT_CONFIRMED)
    _check_app()
    begin_operation()
    at, done, problems = context().inspector.now(), list[RunningTask](), list[str]()
    names = {(task.worker, task.id): task.task for task in _reported(tasks)}
    try:
        for part in worker_actions.stop(context().access, tasks, soft=soft):
            done += [replace(task, task=names.get((task.worker, task.id), "")) for task in part.stopped]
            if part.problem:
                problems.append(part.problem)
    finally:
        by_worker = ", ".join(sorted({task.worker for task in tasks}))
        how = ["softly"] if soft else []
        text, subjects = "; ".join([*how, *problems]), subjects_of(done)
        context().audit.record([Action(at, g.user, "terminate", by_worker, len(done), text, subjects)])
    for problem in dict.fromkeys(problems):
        flash(f"{problem}.")
    gone = len(tasks) - len(done)
    flash(f"{len(done):,} stopped.{f' {gone:,} had ended.' if gone and not problems else ''}")
    return redirect(url_for("running.show"), 303)


@pages.post("/workers/preview")
def preview_change() -> str:
    """Show what an action does to a worker, with a form to confirm it."""
    verb, row, size = _change()
    return render_template(
        "worker_action.html", verb=verb, question=CHANGES[verb], row=row, size=size, operation=new_operation()
    )


@pages.post("/workers/act")
def change() -> Response:
    """Shut a worker down, or change the size of its pool, once."""
    verb, row, size = _change()
    if confirmed_count(1) != 1 or request_args.number("pid", 0, 0, 1 << 31, request.form) != row.pid:
        abort(400, NOT_CONFIRMED)
    begin_operation()
    at, problem = context().inspector.now(), ""
    try:
        if verb == "resize":
            worker_actions.resize(context().access, row, size)
        else:
            worker_actions.shut_down(context().access, row)
    except WorkerRefusedError as error:
        problem = str(error)
    detail = f"from {row.concurrency} to {size}" if verb == "resize" else ""
    text = "; ".join(filter(None, (detail, problem)))
    context().audit.record([Action(at, g.user, verb, row.name, 0 if problem else 1, text)])
    told = (
        f"{row.name} runs {size:,} tasks at once." if verb == "resize" else f"{row.name} ends after its running tasks."
    )
    flash(f"{problem}." if problem else told)
    return redirect(url_for("workers.show"), 303)


def _check_app() -> None:
    if context().access.app is None:
        abort(404, "This dashboard has no Celery app, so it cannot reach workers.")


def _soft() -> bool:
    """Check the permission, and return whether the form asks for a soft end."""
    request_args.reject_repeated(request.form, "row")
    require(request_args.choice("verb", ("terminate",), "", request.form))
    return request_args.flag("soft", request.form)


def _tasks() -> list[RunningTask]:
    """Return the runs of the form, as they were when it was made."""
    rows = list(dict.fromkeys(request.form.getlist("row")))
    request_args.check_rows(rows, "Stop what?", MOST_TASKS)
    found: list[RunningTask] = []
    for row in rows:
        parts = _ROW.fullmatch(row)
        worker, id_ = (unquote(parts[2]), unquote(parts[3])) if parts else ("", "")
        if parts is None or not is_id(id_) or not is_id(worker):
            abort(400, request_args.INVALID_ROW)
        found.append(RunningTask(id_, "", "", worker, from_ms(int(parts[1]))))
    return found


def _reported(tasks: Sequence[RunningTask]) -> list[RunningTask]:
    """Return the reports of those runs that have not ended."""
    workers = {task.worker for task in tasks}
    running = {
        (found.worker, found.id): found for name in workers for found in context().monitor.workers.running_of(name)
    }
    return [found for task in tasks if (found := running.get((task.worker, task.id))) and found.since == task.since]


def _change() -> tuple[str, WorkerRow, int]:
    """Return the verb, the worker and the new size of the form."""
    form = request.form
    request_args.reject_repeated(form)
    verb = require(request_args.choice("verb", CHANGES, "", form))
    name = request_args.text("worker", form, exact=True)
    if name is None:
        abort(400, "Which worker? Choose one from the list.")
    _check_app()
    row = worker_of(context().access, name)
    if verb != "resize":
        return verb, row, row.concurrency
    size = request_args.number("size", 0, 1, MOST_SIZE, form)
    if not size:
        abort(400, f"Resize to what? Fill in a number from 1 to {MOST_SIZE:,}.")
    return verb, row, worker_actions.check_size(row, size)
