"""The pages of incidents, of the doctor and of the audit, and the endpoint for autoscalers."""

from __future__ import annotations

from dataclasses import asdict

from flask import Blueprint, Response, jsonify, render_template, request

from redis_queue.doctor.finding import ORDER
from redis_queue.operate.diagnosis import examine
from redis_queue.operate.forecast import demand
from redis_queue.web import request_args
from redis_queue.web.context import context, page

pages = Blueprint("doctor", __name__)


@pages.get("/incidents")
def incidents() -> str:
    """Show the incidents, the most urgent first."""
    request_args.allow()
    return page("incidents.html", seen=context().incidents.last())


@pages.get("/doctor")
def show() -> str:
    """Show the findings of all checks, errors first."""
    request_args.allow()
    # A request to the workers would write to the broker.
    found = examine(context().access, ask=False)
    context().health.note(found)
    findings = sorted(found, key=lambda finding: ORDER[finding.severity])
    counts = {severity: sum(finding.severity == severity for finding in found) for severity in ORDER}
    counts["ok"] = sum(finding.silent for finding in found)
    return render_template("doctor.html", findings=findings, counts=counts)


@pages.get("/scale")
def scale() -> Response:
    """Return the demand of some of Celery's queues as JSON."""
    return jsonify(asdict(demand(context().access, list(request.args.items(multi=True)))))


@pages.get("/audit")
def audit() -> str:
    """Show the last 100 actions."""
    request_args.allow()
    return render_template("audit.html", actions=context().audit.last(100))
