"""The reference application with its own queues and exchanges, for a shared RabbitMQ.

The prefix of the names comes from the environment; the rest is that of `tasks` and `celeryconfig`.
"""

from __future__ import annotations

import os
from typing import Any

from kombu.entity import Queue

from tasks import app

__all__ = ["app"]

PREFIX = os.environ["PRIVATE_PREFIX"]

declared: Any = Queue  # kombu does not annotate it

app.conf.update(
    task_default_queue=f"{PREFIX}-{app.conf.task_default_queue}",
    task_queues=[declared(f"{PREFIX}-{name}") for name in app.conf.task_queues],
    beat_schedule={
        name: {**entry, "options": {**entry["options"], "queue": f"{PREFIX}-{entry['options']['queue']}"}}
        for name, entry in app.conf.beat_schedule.items()
    },
    control_exchange=f"{PREFIX}-control",
    event_exchange=f"{PREFIX}-events",
    event_queue_prefix=f"{PREFIX}-events",
)
