"""``python -m benchmarks.kills.campaign.producer URL KIND FILE TASKS SEED RATE``: send tasks, and record each call."""

from __future__ import annotations

import contextlib
import random
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import redis
from kombu.exceptions import OperationalError

from benchmarks.kills.campaign.app import OURS, QUEUE, TASK, Setting, task_id
from chaos.tasks import OUTDATED
from redis_queue.celery import PartlySentError
from redis_queue.errors import StoreError

SENT: Final = 1
UNKNOWN: Final = 2
"""The call raised an error: nobody knows whether the task was sent."""

CALL: Final = struct.Struct("<IIdd")
"""A call: number of the task, its state, end of the call, due time or 0; both by the monotonic clock."""

CHUNK: Final = 250
BACKLOG: Final = 4000
DELAYED: Final = 0.05
MAX_DELAY: Final = 3.0
PAUSE: Final = 0.05

Calls = Sequence[tuple[int, float]]
"""Numbers of tasks, and the delay of each."""


class Producer:
    """The calls of one piece."""

    def __init__(self, url: str, kind: str) -> None:
        setting = Setting(url, kind)
        self._app = setting.app()
        self._task: Any = self._app.task(_run, name=TASK)
        self._batch: Callable[[], Any] = contextlib.nullcontext
        if kind == OURS:
            self._batch = vars(self._app)["durable_tasks"].batch
        self._client: Any = redis.Redis.from_url(url, socket_timeout=2)
        self.due: dict[int, float] = {}

    def send(self, calls: Calls) -> Iterator[tuple[int, int]]:
        """Send once; yield the number and state of those that are not certain to be unsent."""
        numbers, done = [number for number, _ in calls], []
        try:
            with self._batch():
                for number, delay in calls:
                    self.due[number] = time.monotonic() + delay if delay else 0.0
                    self._task.apply_async(
                        (number,), task_id=task_id(number), **({"countdown": delay} if delay else {})
                    )
                    done.append(number)
        except PartlySentError as error:
            for state, ids in ((SENT, error.sent), (UNKNOWN, error.unknown)):
                found = set(ids)
                yield from ((number, state) for number in numbers if task_id(number) in found)
        except (OperationalError, StoreError, redis.RedisError, AttributeError) as error:
            if isinstance(error, AttributeError) and str(error) != OUTDATED:
                raise
            # A batch that fails otherwise has sent nothing.
            if self._batch is contextlib.nullcontext:
                yield from ((number, SENT) for number in done)
                yield numbers[len(done)], UNKNOWN
        else:
            yield from ((number, SENT) for number in numbers)

    def wait(self) -> None:
        """Wait while many tasks wait in the queue, or Redis does not answer."""
        while True:
            with contextlib.suppress(redis.RedisError):
                if self._client.llen(QUEUE) < BACKLOG:
                    return
            time.sleep(PAUSE)


def _run(number: int) -> None:
    raise NotImplementedError


def main(url: str, kind: str, path: str, *numbers: str) -> None:
    """Send all, at most *rate* in a second, or as many as are executed if it is 0."""
    tasks, seed, rate = map(int, numbers)
    chunk, started = max(1, rate // 20) if rate else CHUNK, time.monotonic()
    producer, dice = Producer(url, kind), random.Random(f"calls {seed}")
    with Path(path).open("ab", buffering=0) as file:
        for start in range(0, tasks, chunk):
            some = range(start, min(tasks, start + chunk))
            left = [(number, dice.random() * MAX_DELAY * (dice.random() < DELAYED)) for number in some]
            while left:
                producer.wait()
                known = dict(producer.send(left))
                at = time.monotonic()
                file.write(b"".join(CALL.pack(n, state, at, producer.due[n]) for n, state in known.items()))
                left = [call for call in left if call[0] not in known]
            if rate:
                time.sleep(max(0.0, started + some.stop / rate - time.monotonic()))


if __name__ == "__main__":
    main(*sys.argv[1:])
