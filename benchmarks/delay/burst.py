"""Many tasks at once: one worker executes a full queue, or many tasks that are due at the same time."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

from benchmarks import recording
from benchmarks.delay.apps import make_app, task_of
from benchmarks.delay.filling import fill
from benchmarks.delay.scheduling import singly
from benchmarks.delay.site import Site
from benchmarks.delay.workers import worker

WITHIN = 300.0
STASH = "benchmark-stash"


def undelayed(site: Site) -> float:
    """Return the seconds that a stock worker needs for tasks that are put into its queue at once."""
    client, place = site.client(), site.stock()
    if not client.exists(STASH):
        app = make_app(place)
        singly(task_of(app), site.scale.burst)
        client.rename(place.queue, STASH)
        app.close()
    client.copy(STASH, f"{STASH}-copy")
    with worker(place, site.folder) as running:
        time.sleep(1)
        started = time.time()
        client.rename(f"{STASH}-copy", place.queue)
        recording.wait_for(running.record, site.scale.burst, within=WITHIN)
        return recording.rows(running.record)[-1][0] - started


def falling_due(site: Site, *, atomic_fetch: bool = False) -> float:
    """Return the seconds that a worker needs for tasks that are due at the same time."""
    place = site.delayed("burst", atomic_fetch=atomic_fetch)
    app = make_app(place)
    with worker(place, site.folder) as running:
        due_at = datetime.now(timezone.utc) + timedelta(seconds=2 + site.scale.burst / 10_000)
        fill(app, site.scale.burst, due_at=due_at)
        assert time.time() < due_at.timestamp(), "the machine is too slow to store the entries before they are due"
        recording.wait_for(running.record, site.scale.burst, within=WITHIN)
        app.close()
        return recording.rows(running.record)[-1][0] - due_at.timestamp()
