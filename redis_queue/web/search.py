"""The search of all pages: names of tasks, queues, workers and failures, or the id of a task."""

from __future__ import annotations

from flask import Blueprint, redirect, render_template, url_for
from werkzeug.wrappers import Response

from redis_queue.operate.search import search
from redis_queue.store.ids import is_id
from redis_queue.web import request_args
from redis_queue.web.context import context
from redis_queue.web.suggestions import task_names

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
