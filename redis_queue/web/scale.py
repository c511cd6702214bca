"""The endpoint for autoscalers."""

from __future__ import annotations

from dataclasses import asdict

from flask import Blueprint, Response, jsonify, request

from redis_queue.operate.demand import demand
from redis_queue.web.context import context

pages = Blueprint("scale", __name__)


@pages.get("/scale")
def show() -> Response:
    """Return the demand of some of Celery's queues as JSON."""
    return jsonify(asdict(demand(context().access, list(request.args.items(multi=True)))))
