"""The lateness of tasks that become due at a steady rate."""

from __future__ import annotations

import time
from datetime import datetime, timezone

from benchmarks import recording
from benchmarks.delay.apps import ARGUMENT, Place, make_app, task_of
from benchmarks.delay.site import Site
from benchmarks.delay.workers import worker

RATE = 200
AHEAD = 2.0
"""Seconds between the call that delays a task and its due time."""


def lateness(site: Site, place: Place) -> list[float]:
    """Return the lateness of tasks in milliseconds, in ascending order, on a worker of *place*."""
    count = int(RATE * site.scale.seconds)
    app = make_app(place)
    task = task_of(app)
    with worker(place, site.folder) as running:
        time.sleep(1)
        first = time.time() + AHEAD + 0.1
        for number in range(count):
            # With a step of whole milliseconds all due times of a round would have the same fraction of a millisecond.
            due = first + number / RATE + number % 10 / 10_000
            time.sleep(max(0.0, due - AHEAD - time.time()))
            task.apply_async((due, ARGUMENT), eta=datetime.fromtimestamp(due, timezone.utc))
        recording.wait_for(running.record, count, within=60)
        app.close()
        return recording.latenesses(running.record)
