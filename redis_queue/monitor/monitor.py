"""Monitor: what the workers under one prefix report, as four readers."""

from __future__ import annotations

from redis_queue.monitor.failures import Failures
from redis_queue.monitor.history import History
from redis_queue.monitor.runs import Runs
from redis_queue.monitor.workers import Workers
from redis_queue.store.connection import Client
from redis_queue.store.records import Clock, server_clock


class Monitor:
    """Readers of workers, kept runs, history and failures under *prefix*. Creating it does no I/O."""

    def __init__(self, client: Client, prefix: str, clock: Clock = server_clock) -> None:
        self.workers = Workers(client, prefix, clock)
        self.runs = Runs(client, prefix)
        self.history = History(client, prefix, clock)
        self.failures = Failures(client, prefix, clock)
