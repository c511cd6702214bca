"""The search of all pages: names of tasks, queues, workers and failures, or the id of a task; and suggestions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from flask import Blueprint, redirect, render_template, url_for
from werkzeug.wrappers import Response

from redis_queue.monitor.model import Series
from redis_queue.monitor.report import OTHER
from redis_queue.operate.faults import BROKEN
from redis_queue.operate.search import search
from redis_queue.store.ids import is_id
from redis_queue.web import request_args
from redis_queue.web.context import context
from redis_queue.web.request_args import MAX_TEXT

pages = Blueprint("search", __name__)


@pages.get("/search")
def show() -> str | Response:
    """Show what has this text in its name. If nothing has, the text is the id of a task."""
    request_args.allow("q")
    text = request_args.text("q")
    found = None if text is None else search(context().access, text)
    if found is not None and found.nothing and is_id(text):
        return redirect(url_for("task.show", id=text))
    return render_template("search.html", text=text, found=found)


@pages.get("/search/suggest")
def suggest() -> str:
    """Return options with the names that contain what was typed so far."""
    request_args.allow("q")
    text = request_args.text("q")
    found = None if text is None else search(context().access, text)
    names = task_names() if found is None else found.names
    return render_template("suggestions.html", names=names)


MOST: Final = 100
"""Most names of one field."""


def task_names() -> list[str]:
    """Return names of tasks that ran within the last 90 days, in order."""
    return _sorted(series.task for series in _series())


def queue_names(known: Iterable[str] = ()) -> list[str]:
    """Return names of queues whose tasks ran within the last 90 days, and *known* ones, in order."""
    return _sorted([*known, *(series.queue for series in _series())])


def _series() -> list[Series]:
    try:
        found = context().monitor.history.series()
    except BROKEN:
        # A page works without suggestions.
        return []
    return [series for series in found if series != OTHER]


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted({name for name in names if 0 < len(name) <= MAX_TEXT and name.isprintable()})[:MOST]
