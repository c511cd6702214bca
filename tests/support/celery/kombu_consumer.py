"""Run a kombu consumer in its own process: ``python -m tests.support.celery.kombu_consumer URL KIND``.

It records and settles each message. The kinds: ``stock`` and ``atomic`` kill themselves as soon as Redis has returned
the first message; ``drain`` keeps running.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import redis
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer

from redis_queue.celery.fetch.channel import FetchingChannel
from redis_queue.celery.leases.qos import LeasedQoS, lease_channels
from tests.support.celery.fetching import leases_of

QUEUE = "taking"
DONE = "tests:done"
TIMEOUT = 1


def die(*_: Any, **__: Any) -> None:
    """Kill this process without any cleanup."""
    os.kill(os.getpid(), signal.SIGKILL)


def main(url: str, kind: str) -> None:
    """Consume messages."""
    client = redis.Redis.from_url(url)
    connection: Any = Connection(
        url.replace("unix://", "redis+socket://"), transport_options={"visibility_timeout": TIMEOUT}
    )
    lease_channels(connection.transport, leases_of(connection), fetching=kind == "atomic")
    if kind == "stock":
        LeasedQoS.append = die  # type: ignore[method-assign]
    if kind == "atomic":
        FetchingChannel._take_in = die  # type: ignore[method-assign]

    def note(body: Any, message: Any) -> None:
        client.rpush(DONE, body)
        message.ack()

    with Consumer(connection.default_channel, [Queue(QUEUE)], callbacks=[note]):
        while True:
            try:
                connection.drain_events(timeout=0.2)
            except TimeoutError:
                continue


if __name__ == "__main__":
    main(*sys.argv[1:])
