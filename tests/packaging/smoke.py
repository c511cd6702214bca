"""What a user does first with an installed package: a message of a queue, and a delayed task from end to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from celery import Celery

from redis_queue import RedisQueue
from redis_queue.celery import DurableTasks

URL = os.environ["REDIS_URL"]

app = Celery("smoke", broker=URL, backend=URL)
DurableTasks(app)


@app.task(name="smoke.add")
def add(a: int, b: int) -> int:
    return a + b


def main() -> None:
    """Raise AssertionError, or celery's TimeoutError, if something does not work."""
    queue = RedisQueue("smoke", URL)
    queue.put({"order": 42})
    message = queue.get(timeout=5)
    assert message is not None
    assert message.body == {"order": 42}
    assert queue.ack(message)

    waiting = add.apply_async((40, 2), countdown=0.5)
    command = [sys.executable, "-m", "celery", "-A", "smoke", "worker", "--pool", "solo", "--loglevel", "WARNING"]
    worker = subprocess.Popen(command)
    try:
        assert waiting.get(timeout=40) == 42
    finally:
        worker.send_signal(signal.SIGTERM)
        try:
            worker.wait(20)
        except subprocess.TimeoutExpired:
            worker.kill()
            raise
    assert worker.returncode == 0, worker.returncode


if __name__ == "__main__":
    main()
