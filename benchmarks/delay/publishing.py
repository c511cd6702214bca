"""Publish with py-amqp alone: the messages of the dispatcher, with the same number per confirm, without Redis."""

from __future__ import annotations

import os
import time
from datetime import datetime, timezone
from typing import Any

from kombu.connection import Connection

from benchmarks.delay.apps import ARGUMENT, Place, make_app, task_of
from benchmarks.delay.site import Site
from redis_queue.celery import DurableTasks
from redis_queue.celery.message.envelope import Envelope
from redis_queue.store.chunks import CHUNK

FAR = 86400.0
CONFIRM_WITHIN = 30.0


def seconds_to_publish(site: Site) -> float:
    """Return the seconds in which RabbitMQ confirms as many messages as the dispatcher moves."""
    envelope = _message(site)
    name = f"redis_queue_bench_{os.urandom(4).hex()}"
    confirmed = 0

    def confirm(tag: int, multiple: bool) -> None:  # noqa: ARG001
        nonlocal confirmed
        confirmed = max(confirmed, tag)

    with Connection(site.rabbitmq) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.events["basic_ack"].add(confirm)
        channel.queue_declare(name, durable=True, auto_delete=False)
        try:
            _publish(channel, envelope, name)
            started = time.perf_counter()
            for sent in range(1, site.scale.moved + 1):
                _publish(channel, envelope, name)
                while sent % CHUNK == 0 and confirmed <= sent:
                    connection.drain_events(timeout=CONFIRM_WITHIN)
            return time.perf_counter() - started
        finally:
            channel.queue_delete(name)


def _message(site: Site) -> Envelope:
    app = make_app(Place(site.rabbitmq, "bench", site.url))
    try:
        delayed = DurableTasks(app, leases=False)
        sample = task_of(app).apply_async((datetime.now(timezone.utc).timestamp(), ARGUMENT), countdown=FAR).id
        entry = delayed.queue.get(sample)
        delayed.cancel(sample)
        assert entry is not None
        assert isinstance(entry.payload, bytes)
        return Envelope.unpack(entry.payload, entry.id, entry.headers)
    finally:
        app.close()


def _publish(channel: Any, envelope: Envelope, queue: str) -> None:
    message = channel.prepare_message(
        envelope.body,
        0,
        envelope.content_type,
        envelope.content_encoding,
        dict(envelope.headers),
        {name: value for name, value in envelope.properties.items() if name != "priority"},
    )
    channel.basic_publish(message, exchange="", routing_key=queue, mandatory=True)
