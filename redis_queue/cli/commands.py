"""The commands of both groups: ``redis-queue`` and ``celery -A app redis-queue``."""

from __future__ import annotations

from typing import Final

import click

from redis_queue.cli.dead import dead
from redis_queue.cli.dispatch import dispatch
from redis_queue.cli.doctor import doctor
from redis_queue.cli.load_scripts import load_scripts
from redis_queue.cli.metrics import metrics
from redis_queue.cli.migrate import adopt, release_all
from redis_queue.cli.putback import putback
from redis_queue.cli.quarantine import quarantine
from redis_queue.cli.queue import queue
from redis_queue.cli.scheduled import scheduled
from redis_queue.cli.stats import queues, stats
from redis_queue.cli.top import top
from redis_queue.cli.validate import validate
from redis_queue.cli.web import web

COMMANDS: Final[tuple[click.Command, ...]] = (
    stats,
    top,
    queues,
    queue,
    scheduled,
    dead,
    quarantine,
    dispatch,
    putback,
    validate,
    adopt,
    release_all,
    doctor,
    load_scripts,
    metrics,
    web,
)
