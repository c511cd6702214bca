"""Dispatchers: loops in threads, and a process that can kill itself midway.

The process is `python -m tests.support.celery.dispatch <task as JSON>`. It prints "ready" once everything is loaded,
waits for a line of input, dispatches due entries and prints how many it sent. Keys of the task: `settings` of the app,
`redis`, `batch`, and `dies`: the number of the ack before which it kills itself with SIGKILL; 0 means before the first
publish.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery

from redis_queue import DelayQueue
from redis_queue.celery import Dispatcher, DispatchLoop
from redis_queue.delay.model import Claim
from redis_queue.model import Entry


@contextmanager
def running(*loops: DispatchLoop) -> Iterator[None]:
    """Run *loops* in threads."""
    threads = [threading.Thread(target=loop.run) for loop in loops]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.stop()
        for thread in threads:
            thread.join()


class DeadlyQueue(DelayQueue):
    """A DelayQueue that kills its process at a given point."""

    def __init__(self, *arguments: Any, dies: int) -> None:
        super().__init__(*arguments)
        self._left = dies
        self._claim_batch = self.moves.claim_batch
        self.moves.claim_batch = self._claim_and_pass  # type: ignore[method-assign]

    def _claim_and_pass(self, *arguments: Any, **options: Any) -> Claim:
        claimed = self._claim_batch(*arguments, **options)
        self._pass()
        return claimed

    def ack_many(self, items: Iterable[Entry]) -> list[bool]:
        """Ack, or die first if this is the point."""
        self._pass()
        return super().ack_many(items)

    def _pass(self) -> None:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1


def main(task: dict[str, Any]) -> None:
    """Wait for a line of input, then dispatch."""
    app = Celery("tests")
    app.conf.update(task["settings"])
    queue = DeadlyQueue("scheduled", task["redis"], dies=task.get("dies", -1))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    sys.stdout.write(f"{Dispatcher(app, queue, batch=task['batch']).run().sent}\n")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
