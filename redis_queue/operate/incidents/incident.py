"""Incident: something that is wrong now; its page, and texts that rules share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal
from urllib.parse import urlencode

from redis_queue.basics.times import span_text
from redis_queue.doctor.finding import Finding
from redis_queue.monitor.model import RunningTask, Series, Tally
from redis_queue.operate.incidents.situation import Situation

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that is wrong now with *subject*.

    *cause* is a sentence, *since* None if unknown, *hits* the number of tasks or messages that it keeps back or ends.
    *page* is the address of the page where it is mended, relative to that of the dashboard; *advice* says what to do.
    *kind* is the name of the rule.
    """

    subject: str
    severity: Severity
    cause: str
    advice: str
    page: str
    since: datetime | None = None
    hits: int = 0
    kind: str = ""

    @property
    def finding(self) -> Finding:
        """The incident as a finding of the doctor, whose errors are faults of settings and stored data."""
        return Finding(self.kind, "warning", self.cause, self.advice)


Rule = Callable[[Situation], Iterator[Incident]]


LIST_OF: Final = {"celery-queue": "queues", "queue": "queues", "flow": "flows", "schedule": "schedules"}
"""The page that lists what a page shows one of."""


def page_of(path: str, **parameters: str) -> str:
    """Return the address of a page of the dashboard; that of its list for a name that the page refuses."""
    # Other programs may have written names that are not printable.
    if not "".join(parameters.values()).isprintable():
        return LIST_OF.get(path, path)
    return f"{path}?{urlencode(parameters)}"


def waits_text(count: int, noun: str = "message") -> str:
    """Return how many messages wait."""
    return f"1 {noun} waits" if count == 1 else f"{count:,} {noun}s wait"


def tasks_text(now: Situation, runs: Sequence[RunningTask]) -> str:
    """Return the most frequent of running tasks: how many, for how long, and how long they usually take."""
    if not runs:
        return ""
    series, count = Counter(Series(task.task, task.queue) for task in runs).most_common(1)[0]
    first = min((task for task in runs if Series(task.task, task.queue) == series), key=lambda task: task.since)
    usual = usual_seconds(now, first)
    told = "" if usual is None else f", usually {span_text(usual, parts=1)}"
    times = f"{count:,} x " if count > 1 else ""
    return f"{times}{series.task} for up to {span_text(now.age(first.since), parts=1)}{told}"


def usual_seconds(now: Situation, task: RunningTask, share: float = 0.5) -> float | None:
    """Return the run time that this share of the runs of a task do not exceed; None if there are too few runs."""
    return now.usual.get(Series(task.task, task.queue), Tally()).usual(share)
