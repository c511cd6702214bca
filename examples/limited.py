"""An API with a rate limit: a refused message is put back for as long as the API asks.

``python -m examples.limited`` sends 30 messages by three consumers to an API that takes ten calls a second.
It needs ``pip install .`` and a Redis: REDIS_URL, default redis://localhost:6379/0.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from redis_queue import Consumer, Nack, RedisQueue


class TooManyError(Exception):
    """The API refused the call; it may be repeated after *retry_after* seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"try again in {retry_after:.2f} s")
        self.retry_after = retry_after


@dataclass
class Api:
    """An external API: at most *most* calls in any *window* seconds."""

    most: int = 5
    window: float = 0.5
    taken: list[Any] = field(default_factory=list)
    refused: int = 0
    _times: deque[float] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def call(self, body: Any) -> None:
        """Accept *body*, or raise TooManyError."""
        with self._lock:
            now = time.monotonic()
            while self._times and self._times[0] <= now - self.window:
                self._times.popleft()
            if len(self._times) >= self.most:
                self.refused += 1
                raise TooManyError(self._times[0] + self.window - now)
            self._times.append(now)
            self.taken.append(body)


def handler(api: Api) -> Any:
    """Return the message handler of a consumer."""

    def handle(message: Any) -> None:
        try:
            api.call(message.body)
        except TooManyError as error:
            # Not a failure: the message waits in Redis, not in this thread, and other messages may overtake it.
            raise Nack("the API is busy", delay=error.retry_after) from error

    return handle


def main(url: str, count: int = 30) -> Api:
    """Send *count* messages through the API and return the API."""
    # Each nack counts as a delivery, so the number of deliveries is unlimited.
    queue = RedisQueue("limited", url, max_deliveries=0)
    api = Api()
    queue.put_many(range(count))
    consumer = Consumer(queue, handler(api), concurrency=3)
    worker = threading.Thread(target=consumer.run)
    worker.start()
    while len(api.taken) < count:
        time.sleep(0.05)
    consumer.stop()
    worker.join()
    return api


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m examples.limited", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=30, help="how many messages")
    done = main(os.environ.get("REDIS_URL", "redis://localhost:6379/0"), parser.parse_args().count)
    print(f"{len(done.taken)} taken, {done.refused} refused and taken later")
