"""The cost of an idle worker: its memory, and its round trips to Redis."""

from __future__ import annotations

import time

from benchmarks.delay.apps import Place, make_app
from benchmarks.delay.filling import fill
from benchmarks.delay.site import Site
from benchmarks.delay.workers import worker

SETTLE = 3.0


def requests_per_second(site: Site, place: Place) -> float:
    """Return the round trips per second from one idle worker to Redis; a script is one, whatever it calls."""
    with worker(place, site.folder):
        time.sleep(SETTLE)
        before, started = site.requests(), time.monotonic()
        time.sleep(site.scale.idle_seconds)
        return (site.requests() - before) / (time.monotonic() - started)


def memory_growth(site: Site, place: Place, entries: int) -> float:
    """Store *entries* far-future tasks; return the growth of a worker's main process in MB."""
    app = make_app(place)
    with worker(place, site.folder) as running:
        time.sleep(SETTLE)
        before = running.memory()
        fill(app, entries)
        time.sleep(SETTLE)
        app.close()
        return running.memory() - before
