"""The search of all pages for names and ids, suggestions, the list of tasks, and the page of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flask import Blueprint, redirect, render_template, request, url_for
from werkzeug.wrappers import Response

from redis_queue.catalog import kind_of
from redis_queue.monitor.model import GroupRow, Series, WorkerRow
from redis_queue.monitor.report import OTHER
from redis_queue.operate.access import Access
from redis_queue.operate.actions import entries, failures, workers
from redis_queue.operate.actions import tasks as stopping
from redis_queue.operate.canvas import canvas
from redis_queue.operate.queue_row import BROKEN
from redis_queue.operate.task_life import Doing, TaskLife, phases, task_life
from redis_queue.operate.task_rows import TaskRow
from redis_queue.operate.tasks import STATES, TaskSearch
from redis_queue.store.ids import is_id
from redis_queue.store.keys import is_name
from redis_queue.store.registry import RegistryRow
from redis_queue.web import request_args
from redis_queue.web.context import context, page
from redis_queue.web.request_args import MAX_TEXT

pages = Blueprint("search", __name__)

MAX_RESULTS: Final = 20
"""Maximum number of results of each kind."""

MAX_SUGGESTIONS: Final = 100
"""Maximum number of names of one field."""

TONES_OF_PHASES: Final[Mapping[Doing, str]] = {"delayed": "soft", "waited": "warn", "prefetched": "late", "ran": "main"}


@dataclass(frozen=True, slots=True)
class Found:
    """What matches, up to :data:`MAX_RESULTS` of each kind; *tasks* and *celery_queues* are names.

    *more* names the kinds that have more.
    """

    tasks: Sequence[str]
    celery_queues: Sequence[str]
    queues: Sequence[RegistryRow]
    workers: Sequence[WorkerRow]
    failures: Sequence[GroupRow]
    more: Sequence[str]

    @property
    def names(self) -> list[str]:
        """The names of all that matches, each once, in order."""
        of_queues, of_workers = (known.name for known in self.queues), (row.name for row in self.workers)
        return sorted({*self.tasks, *self.celery_queues, *of_queues, *of_workers})

    @property
    def nothing(self) -> bool:
        """Whether nothing matches."""
        return not (self.tasks or self.celery_queues or self.queues or self.workers or self.failures)


def find(access: Access, text: str) -> Found:
    """Return what has *text* in its name.

    Tasks are those that ran within the last 90 days. It reads lists of names whose lengths are bounded, no messages.
    Raises StoreError.
    """
    monitor = access.monitor
    series = [one for one in monitor.history.series() if one != OTHER]
    queues = [one.queue for one in series]
    if access.celery_queues is not None:
        queues += access.celery_queues.configured()
    groups = [row for row in monitor.failures.groups() if text in f"{row.group.task} {row.group.exception}"]
    found: dict[str, Sequence[Any]] = {
        "tasks": _matching((one.task for one in series), text),
        "celery_queues": _matching(queues, text),
        "queues": access.catalog.listing(text, limit=MAX_RESULTS + 1).known,
        "workers": monitor.workers.rows(MAX_RESULTS + 1, part=text, lost=True),
        "failures": groups,
    }
    more = [kind for kind, rows in found.items() if len(rows) > MAX_RESULTS]
    return Found(**{kind: rows[:MAX_RESULTS] for kind, rows in found.items()}, more=more)


def _matching(names: Iterable[str], text: str) -> list[str]:
    return sorted({name for name in names if text in name})


@pages.get("/search")
def show() -> str | Response:
    """Show what has this text in its name. If nothing has, it is the id of a task, or a part of its arguments."""
    request_args.allow("q")
    text = request_args.text("q")
    found = None if text is None else find(context().access, text)
    if text is not None and found is not None and found.nothing:
        is_known = is_id(text) and task_life(context().access, text).is_known
        return redirect(url_for("search.task", id=text) if is_known else url_for("search.tasks", text=text))
    return render_template("search.html", text=text, found=found)


@pages.get("/search/suggest")
def suggest() -> str:
    """Return options with the names that contain what was typed so far."""
    request_args.allow("q")
    text = request_args.text("q")
    found = None if text is None else find(context().access, text)
    names = task_names() if found is None else found.names
    return render_template("suggestions.html", names=names)


def task_names() -> list[str]:
    """Return names of tasks that ran within the last 90 days, in order."""
    return _sorted(series.task for series in _series())


def queue_names(known: Iterable[str] = ()) -> list[str]:
    """Return names of queues whose tasks ran within the last 90 days, and *known* ones, in order."""
    return _sorted([*known, *(series.queue for series in _series())])


def _series() -> list[Series]:
    try:
        found = context().access.monitor.history.series()
    except BROKEN:
        # A page works without suggestions.
        return []
    return [series for series in found if series != OTHER]


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if 0 < len(name) <= MAX_TEXT and name.isprintable()})[:MAX_SUGGESTIONS]


CONDITIONS: Final = {
    "text": "text",
    "task": "task_part",
    "queue": "queue",
    "worker": "worker",
    "release": "release",
    "id_prefix": "id_prefix",
    "tag": "stamp",
    "since": "due_after",
    "until": "due_before",
}
"""Fields of the form of tasks, and the conditions that they set."""

MAX_CURSOR: Final = 8000


@pages.get("/tasks")
def tasks() -> str:
    """Show tasks that match the search, wherever they are."""
    request_args.allow("state", *CONDITIONS, "after", "limit", "body")
    state, access = request_args.choice("state", ("", *STATES), ""), context().access
    after = request_args.text("after", most=MAX_CURSOR)
    listing = TaskSearch(access, request_args.conditions(CONDITIONS), [state] if state else [])
    fields = ("state", *CONDITIONS)
    found = request_args.searched(listing, fields, after, "no task waits or runs, and no run is kept")
    return page(
        "tasks.html",
        states=STATES,
        stoppable=stopping.STATES,
        reference_of=stopping.reference,
        searches=listing.searches,
        kept=access.monitor.failures.kept(),
        **found,
    )


@pages.get("/task", endpoint="task")
def show_task() -> str | tuple[str, int]:
    """Show what is known of a task; 404 if no source knows it."""
    request_args.allow("id", "body")
    access = context().access
    life = task_life(access, request.args.get("id", ""))
    shown = render_template(
        "task.html",
        life=life,
        tree=canvas(access, life) if life.is_known else None,
        phases=phases(life),
        tones_of_phases=TONES_OF_PHASES,
        kind=kind_of(life.stored[0]) if life.stored else "",
        rows={
            "running": workers.reference(life.running) if life.running else "",
            "stored": entries.reference(life.stored[0], life.stored[1].id) if life.stored else "",
            "failure": failures.reference(life.failure) if life.failure else "",
            "stop": stopping.reference(TaskRow("fetched", life.id, "", None, life.queue)) if life.is_fetched else "",
        },
        schedule=_schedule(life),
        waits=life.failure is not None and not failures.is_dispatched(access),
        with_body=request_args.flag("body"),
        now=life.at,
    )
    return shown if life.is_known else (shown, 404)


def _schedule(life: TaskLife) -> str:
    """Return the name of the schedule that sent a task; "" if its message, if there is one, does not tell."""
    found = life.message.headers.get("schedule") if life.message else None
    return found if isinstance(found, str) and is_name(found) else ""
