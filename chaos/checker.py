"""Check all promises of a history.

Those of messages, which ``redis-queue validate`` checks, too, and those of locks, flows and unique tasks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chaos.flow_runs import OUTSIDE, broken_runs, is_run
from chaos.holds import broken_holds, is_hold
from chaos.unique_runs import broken_uniques, is_unique
from redis_queue.validation.history import Event, Verdict, Violation
from redis_queue.validation.history import check as check_messages


def check(events: Sequence[Event], left: Iterable[str]) -> Verdict:
    """Check the history *events* of a run; *left* are the ids that are still in Redis at its end.

    Besides the promises of messages: nobody takes a lock while another one holds it, and the fence of each holder is
    greater than those before. The runs of tasks have a place in their flows, and keep their limits, rates, order and
    turns. Calls of unique tasks have one task of a key at a time, and lose none.
    """
    others = [event for event in events if not is_unique(event)]
    verdict = check_messages((event for event in others if not is_hold(event) and not is_run(event)), left)
    verdict.violations += [Violation(*broken) for broken in broken_holds(filter(is_hold, others))]
    verdict.violations += [Violation(*broken) for broken in broken_runs(others)]
    verdict.violations += [Violation(*broken) for broken in broken_uniques(events)]
    outside = (event for event in events if event.op == OUTSIDE)
    verdict.violations += [Violation("ran outside its flow", event.id, [event]) for event in outside]
    return verdict
