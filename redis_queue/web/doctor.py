"""The page of the doctor's findings."""

from __future__ import annotations

from flask import Blueprint, render_template

from redis_queue.doctor.finding import ORDER
from redis_queue.operate.diagnosis import examine
from redis_queue.web import request_args
from redis_queue.web.context import context

pages = Blueprint("doctor", __name__)


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
