"""The page of the audit log."""

from __future__ import annotations

from flask import Blueprint, render_template

from redis_queue.web import request_args
from redis_queue.web.context import context

pages = Blueprint("audit", __name__)


@pages.get("/audit")
def show() -> str:
    """Show the last 100 actions."""
    request_args.allow()
    return render_template("audit.html", actions=context().audit.last(100))
