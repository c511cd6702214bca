"""Dramatiq on Redis: one thread per worker process, unlimited retries, dead workers are noticed within seconds."""

from __future__ import annotations

import time

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.kills.peer import TIMEOUT, Execute, Peer


class DramatiqPeer(Peer):
    """Dramatiq."""

    name = "Dramatiq"

    def send(self, label: str, delay: float) -> None:
        """Send, with or without a delay."""
        actor = self.__dict__.get("_actor") or self._make(lambda _label: None)[1]
        self.__dict__["_actor"] = actor
        actor.send_with_options(args=(label,), delay=round(delay * 1000) or None)

    def serve(self, execute: Execute) -> None:
        """Run a worker."""
        broker, _ = self._make(execute)
        dramatiq.Worker(broker, worker_threads=1).start()
        while True:
            time.sleep(3600)

    def _make(self, execute: Execute) -> tuple[RedisBroker, dramatiq.Actor]:
        # The unit is one in a million calls: one call in ten looks for dead workers, as often as the other peers.
        broker = RedisBroker(url=self.url, heartbeat_timeout=1000 * TIMEOUT, maintenance_chance=100_000)
        actor = dramatiq.actor(execute, actor_name="kills", broker=broker, max_retries=None, min_backoff=10)
        return broker, actor
