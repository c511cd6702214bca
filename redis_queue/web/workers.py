"""The pages of workers and of running tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from flask import Blueprint, abort, render_template

from redis_queue.delay.dispatch_log import DispatcherRow
from redis_queue.delay.queue import DelayQueue
from redis_queue.operate.actions.workers import RESIZES, reference
from redis_queue.operate.items import MAX_QUEUES, running
from redis_queue.operate.liveness import with_tasks, worker_states
from redis_queue.operate.queue_row import Faults
from redis_queue.operate.work_checks import ANSWER_WITHIN
from redis_queue.web import request_args
from redis_queue.web.context import context, page
from redis_queue.web.request_args import ROWS
from redis_queue.web.search import task_names

pages = Blueprint("workers", __name__)

MAX_OFFSET: Final = 10_000

MAX_RUNNING: Final = 200

MAX_RELEASES: Final = 10
"""Maximum number of releases that the page of workers lists, the last ones."""


@pages.get("/workers")
def show() -> str:
    return _page(None)


@pages.post("/workers/ask")
def ask() -> str:
    """Show dispatchers and workers. Not a GET: the request to the workers writes to the broker."""
    app = context().access.app
    if app is None:
        abort(404, "This dashboard has no Celery app, so it does not know any workers.")
    stats = app.control.inspect(timeout=ANSWER_WITHIN).stats() or {}
    active: Mapping[str, Any] = {}
    reserved: Mapping[str, Any] = {}
    if stats:
        # Ask only workers that have answered, so that nobody waits for the timeout.
        again = app.control.inspect(list(stats), timeout=ANSWER_WITHIN, limit=len(stats))
        active, reserved = again.active() or {}, again.reserved() or {}
    return _page([_row(name, found, active.get(name), reserved.get(name)) for name, found in sorted(stats.items())])


def _page(workers: list[dict[str, Any]] | None) -> str:
    request_args.allow("name", "offset")
    name, offset = request_args.text("name"), request_args.number("offset", 0, 0, MAX_OFFSET)
    access, rows = context().access, list[tuple[str, DispatcherRow]]()
    faults = Faults()
    for known in access.catalog.listing(kind="delay", limit=MAX_QUEUES).known:
        with faults.of(known.kind, known.name):
            queue = access.catalog.open(known)
            if isinstance(queue, DelayQueue):
                rows += [(queue.name, row) for row in queue.dispatch_log.dispatchers()]
    now = access.inspector.now()
    states = worker_states(access.monitor.workers, name or "")
    return render_template(
        "workers.html",
        reports=with_tasks(access.monitor.workers, states[offset : offset + ROWS]),
        counts=Counter(one.state for one in states),
        releases=[] if name else access.monitor.releases()[:MAX_RELEASES],
        by_release=Counter(one.row.release for one in states if one.state != "lost"),
        next=offset + ROWS if offset + ROWS < len(states) else None,
        offset=offset,
        name=name,
        dispatchers=rows,
        broken=[row for row in faults.rows.values() if row.kind == "delay"],
        workers=workers,
        resizes=RESIZES,
        now=now,
    )


def _row(name: str, stats: Any, active: Any, reserved: Any) -> dict[str, Any]:
    pool = stats.get("pool") or {}
    return {
        "name": name,
        "pool": str(pool.get("implementation") or "").rpartition(":")[2],
        "concurrency": pool.get("max-concurrency"),
        "active": len(active or ()),
        "reserved": len(reserved or ()),
        "done": sum((stats.get("total") or {}).values()),
        "uptime": stats.get("uptime"),
    }


@pages.get("/running", endpoint="running")
def show_running() -> str:
    """Show the tasks that have run for a second or more."""
    request_args.allow("task", "worker")
    task, worker = request_args.text("task"), request_args.text("worker")
    rows = running(context().access, task=task or "", worker=worker or "", limit=MAX_RUNNING + 1)
    return page(
        "running.html",
        rows=rows[:MAX_RUNNING],
        more=len(rows) > MAX_RUNNING,
        search={"task": task, "worker": worker},
        names=task_names(),
        reference_of=reference,
    )
