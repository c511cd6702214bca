"""The page of running tasks."""

from __future__ import annotations

from typing import Final

from flask import Blueprint, render_template

from redis_queue.operate.actions.workers import reference
from redis_queue.operate.running import running
from redis_queue.web import request_args
from redis_queue.web.context import context
from redis_queue.web.suggestions import task_names

pages = Blueprint("running", __name__)

ROWS: Final = 200


@pages.get("/running")
def show() -> str:
    """Show the tasks that have run for a second or more."""
    request_args.allow("task", "worker")
    task, worker = request_args.text("task"), request_args.text("worker")
    rows = running(context().access, task=task or "", worker=worker or "", limit=ROWS + 1)
    return render_template(
        "running.html",
        rows=rows[:ROWS],
        more=len(rows) > ROWS,
        search={"task": task, "worker": worker},
        names=task_names(),
        reference_of=reference,
        now=context().inspector.now(),
    )
