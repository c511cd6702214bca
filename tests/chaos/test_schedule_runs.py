"""The checker finds each broken promise of schedules, and none in a correct history."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from types import SimpleNamespace

import pytest

from chaos.checker import check
from chaos.schedule_runs import ran, stands
from redis_queue.celery.message.headers import CALL
from redis_queue.schedules.state import Event as ScheduleEvent
from redis_queue.schedules.state import State
from redis_queue.validation.history import Event

EVERY = 1000
FIRST = 10_000
SKIP = ScheduleEvent("skipped", FIRST, due=FIRST + EVERY, until=FIRST + 2 * EVERY, count=2, text="late")


def run(number: int, call: str = "one", name: str = "s1") -> list[Event]:
    due = datetime.fromtimestamp((FIRST + number * EVERY) / 1000, timezone.utc)
    return ran(SimpleNamespace(schedule=name, scheduled_for=due.isoformat(), **{CALL: call}))


def state(*, runs: int, late: int = 0, due: int = FIRST + 4 * EVERY) -> State:
    """Return the state of a schedule after four due times."""
    return State("0" * 8, due, FIRST - EVERY, runs=runs, late=late)


def promises(events: Sequence[Event], left: State | None, *skips: ScheduleEvent) -> set[str]:
    """Return the broken promises of *events*, at whose end the state is *left*."""
    ends = [] if left is None else stands("s1", EVERY, left, skips)
    return {violation.promise for violation in check([*events, *ends], ()).violations}


def runs(*numbers: int) -> list[Event]:
    return [event for number in numbers for event in run(number)]


def test_each_due_time_that_ran_or_was_skipped_breaks_nothing() -> None:
    assert promises(runs(0, 1, 2, 3), state(runs=4)) == set()
    assert promises(runs(0, 3), state(runs=2, late=2), SKIP) == set()


def test_message_that_was_redelivered_is_one_run() -> None:
    assert promises(runs(0, 1, 2, 3, 3), state(runs=4)) == set()


BROKEN = {
    "two runs of one due time": (runs(0, 1, 2, 3) + run(3, "two"), state(runs=4)),
    "missed and unsaid": (runs(0, 1, 2), state(runs=3)),
    "sent and did not run": (runs(0, 1, 2), state(runs=4)),
    "out of step": (runs(0, 1, 2, 3), state(runs=4, due=FIRST + 4 * EVERY + 1)),
    "ran without a schedule": (runs(0), None),
}


@pytest.mark.parametrize("promise", BROKEN)
def test_broken_promise_is_found(promise: str) -> None:
    events, left = BROKEN[promise]
    assert promise in promises(events, left)


def test_run_of_a_skipped_due_time_is_found() -> None:
    assert promises(runs(0, 2), state(runs=2, late=2), SKIP) == {"skipped and ran"}


def test_early_run_is_found() -> None:
    late = [event._replace(at=FIRST - 1) if event.op == "claim" else event for event in runs(0)]
    assert promises(late, state(runs=1, late=3)) == {"early"}
