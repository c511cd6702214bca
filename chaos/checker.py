"""Check all promises of a history: those of messages, which ``redis-queue validate`` checks too, of locks and flows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from chaos.flow_runs import broken_runs, is_run
from chaos.holds import broken_holds, is_hold
from redis_queue.validation.checker import Verdict, Violation
from redis_queue.validation.checker import check as check_messages
from redis_queue.validation.history import Event


def check(events: Sequence[Event], left: Iterable[str]) -> Verdict:
    """Check the history *events* of a run; *left* are the ids that are still in Redis at its end.

    Besides the promises of messages: nobody takes a lock while another one holds it, and the fence of each holder is
    greater than those before. The runs of tasks keep the limits, rates, order and turns of their flows.
    """
    verdict = check_messages((event for event in events if not is_hold(event) and not is_run(event)), left)
    verdict.violations += [Violation(*broken) for broken in broken_holds(filter(is_hold, events))]
    verdict.violations += [Violation(*broken) for broken in broken_runs(events)]
    return verdict
