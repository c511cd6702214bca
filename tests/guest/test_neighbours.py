"""Other extensions of Celery do beside DurableTasks what they do on stock."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.servers import RedisServer

CALLS = {"guest.add": 8, "guest.again": 1, "guest.fail": 1}
"""The calls of ``call_all`` in the process of the client, and how many are of each task."""

SEEN: dict[str, Any] = {
    "batches": {"batches": [[0, 1, 2], [3, 4], [5]], "results": [0, 10, 20, 30, 40], "delayed": 50},
    "singleton": {"runs": [1, 1, 2], "ids": [4, 1], "new": True},
    "sentry": {
        "runs": {
            "guest.add ok": 10,
            "guest.fail internal_error": 1,
            "guest.again aborted": 1,
            "guest.again ok": 1,
            "guest.total ok": 1,
        },
        "of the trace": 13,
        # send_task, which apply_async calls, tells of the call as well.
        "submitted": {"guest.add": 15, "guest.again": 2, "guest.fail": 2},
        "published": {"guest.add": 7, "guest.again": 1, "guest.fail": 1},
        "errors": [["LookupError", "guest.fail"]],
        "checks": ["in_progress", "ok"],
    },
    "opentelemetry": {
        "spans": {
            **{f"apply_async/{name} of web": number for name, number in CALLS.items()},
            "apply_async/guest.add of run/guest.add": 1,
            "apply_async/guest.again of run/guest.again": 1,
            "apply_async/guest.total of run/guest.add": 1,
            "run/guest.add of apply_async/guest.add": 9,
            "run/guest.again of apply_async/guest.again": 2,
            "run/guest.fail of apply_async/guest.fail": 1,
            "run/guest.total of apply_async/guest.total": 1,
        },
        "traces": 1,
    },
    "django_results": {
        "rows": {
            "add 0": 2,
            "add 1": 3,
            **{f"add {n}": 1 for n in (2, 3, 4, 5, 7, 11)},
            "total 7": 1,
            'again "twice"': 1,
            "fail LookupError": 1,
        },
        "groups": 1,
        "values": [0, 1],
    },
    "prometheus": {"tasks": {"started": 14, "succeeded": 12, "failed": 1, "retried": 1}, "waiting": {"celery": 1}},
    "flower": {
        "tasks": {
            "guest.add(1,) SUCCESS": 2,
            **{f"guest.add({n},) SUCCESS": 1 for n in (0, 2, 3, 4, 5, 7)},
            "guest.add(5, 6) SUCCESS": 1,
            "guest.total([3, 4],) SUCCESS": 1,
            "guest.again() SUCCESS": 1,
            "guest.fail() FAILURE": 1,
        },
        "events": {
            "task-sent": 13,
            "task-received": 13,
            "task-started": 13,
            "task-succeeded": 11,
            "task-failed": 1,
            "task-retried": 1,
        },
    },
}


@pytest.mark.parametrize("line", [(), ("line",)], ids=["stock", "with the line"])
@pytest.mark.parametrize("guest", SEEN)
def test_a_guest_sees_what_it_sees_on_stock(guest: str, line: tuple[str, ...], tmp_path: Path) -> None:
    with RedisServer() as server:
        url = f"redis+socket://{server.socket}"
        done = subprocess.run(
            [sys.executable, "-m", "tests.guest.stage", guest, url, *line],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == SEEN[guest]
