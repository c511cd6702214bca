"""RQ with its own scheduler and workers that do not fork; jobs have unlimited retries."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import rq
from redis import Redis
from rq.scheduler import RQScheduler

from benchmarks.kills.peer import TIMEOUT, Execute, Peer

_execute: list[Execute] = []


def work(label: str) -> None:
    """Execute a task; RQ imports this function by its name."""
    _execute[0](label)


class RqPeer(Peer):
    """RQ."""

    name = "RQ"
    crew = (*Peer.crew, "scheduler")

    def send(self, label: str, delay: float) -> None:
        """Enqueue, with or without a delay."""
        options: dict[str, Any] = {"job_id": label, "retry": rq.Retry(max=1000), "result_ttl": 0}
        queue = rq.Queue("kills", connection=Redis.from_url(self.url), default_timeout=TIMEOUT)
        if delay:
            queue.enqueue_in(timedelta(seconds=delay), work, label, **options)
        else:
            queue.enqueue(work, label, **options)

    def serve(self, execute: Execute) -> None:
        """Run a worker."""
        _execute[:] = [execute]
        connection = Redis.from_url(self.url)
        worker = rq.SimpleWorker(
            ["kills"], connection=connection, job_monitoring_interval=1, worker_ttl=TIMEOUT, maintenance_interval=1
        )
        worker.work(logging_level="ERROR")

    def others(self) -> dict[str, Callable[[], None]]:
        """Return the scheduler."""
        return {"scheduler": lambda: RQScheduler(["kills"], connection=Redis.from_url(self.url), interval=1).work()}
