"""The page of one task: where it is, what happened to it, and the tasks around it."""

from __future__ import annotations

from flask import Blueprint, render_template, request

from redis_queue.catalog import kind_of
from redis_queue.operate.canvas import canvas
from redis_queue.operate.task_life import task_life
from redis_queue.web import request_args
from redis_queue.web.context import context

pages = Blueprint("task", __name__)


@pages.get("/task")
def show() -> str | tuple[str, int]:
    """Show what is known of a task; 404 if no source knows it."""
    request_args.allow("id", "body")
    access = context().access
    life = task_life(access, request.args.get("id", ""))
    page = render_template(
        "task.html",
        life=life,
        tree=canvas(access, life) if life.is_known else None,
        kind=kind_of(life.stored[0]) if life.stored else "",
        with_body=request_args.flag("body"),
        now=life.at,
    )
    return page if life.is_known else (page, 404)
