"""Celery on Redis: stock, and with DurableTasks."""

from __future__ import annotations

from typing import Any, ClassVar

from celery import Celery

from benchmarks.kills.peer import TIMEOUT, Execute, Peer
from redis_queue.celery import DurableTasks

TASK = "kills"


class CeleryPeer(Peer):
    """Celery's own transport and countdown, late acks, a sweep every second, and no waiting for a dead sweeper."""

    name = "Celery"
    sweeps: ClassVar[dict[str, int]] = {
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        "unacked_mutex_expire": TIMEOUT,
    }

    def app(self) -> Celery:
        """Return a new app."""
        app = Celery("kills", broker=self.url.replace("unix://", "redis+socket://"), set_as_current=False)
        app.conf.update(
            task_acks_late=True,
            task_ignore_result=True,
            worker_send_task_events=False,
            broker_connection_retry_on_startup=True,
            broker_transport_options={"visibility_timeout": TIMEOUT, **self.sweeps},
        )
        return app

    def send(self, label: str, delay: float) -> None:
        """Send by name."""
        app = self.__dict__.setdefault("_sender", None) or self.app()
        self.__dict__["_sender"] = app
        app.send_task(TASK, (label,), task_id=label, **({"countdown": delay} if delay else {}))

    def serve(self, execute: Execute) -> None:
        """Run a worker of the solo pool."""
        app = self.app()
        options: dict[str, Any] = {"without_gossip": True, "without_mingle": True, "without_heartbeat": True}
        app.task(name=TASK)(execute)
        app.Worker(pool="solo", loglevel="ERROR", **options).start()


class DelayedPeer(CeleryPeer):
    """Celery with delays in the store, leases and atomic fetch."""

    name = "Celery with redis_queue"
    sweeps: ClassVar[dict[str, int]] = {}

    def app(self) -> Celery:
        """Return a new app."""
        app = super().app()
        app.conf.update(redis_queue_atomic_fetch=True, redis_queue_max_deliveries=1000, redis_queue_url=self.url)
        DurableTasks(app)
        return app
