"""A consumer to be killed: ``python -m benchmarks.leases.taking URL MODE``; it records and settles each message."""

from __future__ import annotations

import sys
from typing import Any

import redis
from kombu.connection import Connection
from kombu.entity import Queue
from kombu.messaging import Consumer

from benchmarks.modes import FETCH, QUEUE, STOCK, make_app
from redis_queue.celery.leases.connections import worker_connection
from redis_queue.celery.leases.qos import lease_channels
from tests.support.celery.fetching import leases_of

DONE = "done"
PREFETCH = 10
TIMEOUT = 2
"""The visibility timeout in seconds, so that messages of dead consumers are redelivered soon."""


def main(url: str, mode: str) -> None:
    """Take messages until killed."""
    client = redis.Redis.from_url(url)

    def take(body: Any, message: Any) -> None:
        client.rpush(DONE, body)
        message.ack()

    app = make_app(url, mode, visibility_timeout=TIMEOUT, unacked_restore_throttle=1)
    connection: Connection = app.connection_for_read() if mode == STOCK else worker_connection(app, None)
    if mode != STOCK:
        lease_channels(connection.transport, leases_of(connection), fetching=mode == FETCH)
    with Consumer(connection.default_channel, [Queue(QUEUE)], callbacks=[take], prefetch_count=PREFETCH):
        while True:
            try:
                connection.drain_events(timeout=1)
            except TimeoutError:
                continue


if __name__ == "__main__":
    main(*sys.argv[1:])
