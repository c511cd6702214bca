"""Search: the tasks, queues, workers and failures whose names contain a text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from redis_queue.errors import InvalidValueError
from redis_queue.monitor.model import GroupRow, WorkerRow
from redis_queue.monitor.report import OTHER
from redis_queue.operate.access import Access
from redis_queue.store.registry import RegistryRow

MAX_RESULTS: Final = 20
"""Maximum number of results of each kind."""


@dataclass(frozen=True, slots=True)
class Found:
    """What matches, up to :data:`MAX_RESULTS` of each kind; *tasks* and *celery_queues* are names.

    *more* names the kinds that have more.
    """

    tasks: Sequence[str]
    celery_queues: Sequence[str]
    queues: Sequence[RegistryRow]
    workers: Sequence[WorkerRow]
    failures: Sequence[GroupRow]
    more: Sequence[str]

    @property
    def names(self) -> list[str]:
        """The names of all that matches, each once, in order."""
        of_queues, of_workers = (known.name for known in self.queues), (row.name for row in self.workers)
        return sorted({*self.tasks, *self.celery_queues, *of_queues, *of_workers})

    @property
    def nothing(self) -> bool:
        """Whether nothing matches."""
        return not (self.tasks or self.celery_queues or self.queues or self.workers or self.failures)


def search(access: Access, text: str) -> Found:
    """Return what has *text* in its name.

    Tasks are those that ran within the last 90 days. It reads lists of names whose lengths are bounded, no messages.
    Raises InvalidValueError for an empty text, and StoreError.
    """
    if not text:
        raise InvalidValueError("text='': must not be empty")
    monitor = access.monitor
    series = [found for found in monitor.history.series() if found != OTHER]
    queues = [found.queue for found in series]
    if access.celery_queues is not None:
        queues += access.celery_queues.configured()
    listing = access.catalog.listing(text, limit=MAX_RESULTS)
    workers = monitor.workers.rows(MAX_RESULTS + 1, part=text, lost=True)
    groups = [row for row in monitor.failures.groups() if text in f"{row.group.task} {row.group.exception}"]
    tasks, celery_queues = _matching((found.task for found in series), text), _matching(queues, text)
    counts = {
        "tasks": len(tasks),
        "celery_queues": len(celery_queues),
        "queues": listing.total,
        "workers": len(workers),
        "failures": len(groups),
    }
    return Found(
        tasks[:MAX_RESULTS],
        celery_queues[:MAX_RESULTS],
        listing.known,
        workers[:MAX_RESULTS],
        groups[:MAX_RESULTS],
        [kind for kind, count in counts.items() if count > MAX_RESULTS],
    )


def _matching(names: Iterable[str], text: str) -> list[str]:
    return sorted({name for name in names if text in name})
