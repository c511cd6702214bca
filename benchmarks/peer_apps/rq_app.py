"""RQ with its built-in scheduler, two workers that do not fork."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone

import rq
from redis import Redis

from benchmarks import recording
from benchmarks.peer_apps import ARGUMENT, URL


def hit(due: float, _argument: str) -> None:
    """Record the start."""
    recording.record(due)


def schedule(dues: Sequence[float]) -> None:
    """Delay one task for each due time."""
    queue = rq.Queue("bench", connection=Redis.from_url(URL))
    for due in dues:
        queue.enqueue_at(datetime.fromtimestamp(due, timezone.utc), hit, due, ARGUMENT)


def commands() -> list[list[str]]:
    """Return the commands of the workers."""
    return 2 * [["rq", "worker", "bench", "--with-scheduler", "--url", URL, "--worker-class", "rq.worker.SimpleWorker"]]
